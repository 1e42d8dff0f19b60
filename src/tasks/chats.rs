//! Texts and conversations to learn from, as rows of tables have them, and the chat template that makes
//! texts of conversations.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::Value;
use xtrain_data::chat_template::{ChatTemplate, Message, Rendered, Variables};
use xtrain_data::formats::cell::Cell;
use xtrain_data::formats::table::Table;
use xtrain_data::settings::TableSettings;
use xtrain_data::{Error, Place, Result, Tokenizer};

/// Opens a table of texts or conversations; raw bytes read are added to `count`.
///
/// # Errors
/// The file cannot be read, is no table, or has pictures.
pub(super) fn open(path: &Path, settings: &TableSettings, count: Arc<AtomicU64>) -> Result<Table> {
    let table = Table::open(path, settings, count)?;
    let Some(pictures) = table.find(None, &["image", "images"]) else {
        return Ok(table);
    };
    Err(Error::BadTable {
        path: path.to_path_buf(),
        reason: format!(
            "it has the column {:?}: models of pictures are not supported, remove it to train on the text alone",
            table.columns()[pictures]
        ),
    })
}

/// What a tokenizer says of texts: how conversations are written, and what ends a text.
pub(super) struct Writer {
    pub template: Option<ChatTemplate>,
    /// Empty where the tokenizer has no such token.
    pub end: String,
}

impl Writer {
    /// # Errors
    /// The template is damaged.
    pub fn of(tokenizer: &Tokenizer) -> Result<Writer> {
        let end = tokenizer.eos_id().and_then(|id| tokenizer.token(id));
        Ok(Writer {
            template: ChatTemplate::of(tokenizer)?,
            end: end.unwrap_or_default(),
        })
    }

    /// What the template makes of turns, and of the question for an answer if it `asks`. `otherwise` completes
    /// the advice to those who have no template.
    ///
    /// # Errors
    /// There is no template, or it refuses the turns; `place` is the row's.
    pub fn render(
        &self,
        turns: &[Message],
        asks: bool,
        variables: &Variables,
        place: &Place,
        otherwise: &str,
    ) -> Result<Rendered> {
        let bad = |reason: String| Error::BadRow {
            place: place.clone(),
            reason,
        };
        let template = self.template.as_ref().ok_or_else(|| {
            bad(format!(
                "it is a conversation, and the tokenizer has no chat template: use a model with chat_template.jinja \
                 or a chat_template in tokenizer_config.json{otherwise}"
            ))
        })?;
        let text = template.render(turns, asks, variables);
        text.map_err(|error| match error {
            // No row is to blame for it.
            Error::EndlessTemplate {
                place: template,
                reason,
            } => Error::EndlessTemplate {
                place: format!("{place}: {template}"),
                reason,
            },
            refused => bad(refused.to_string()),
        })
    }
}

/// ShareGPT's names for those who speak, and the usual ones.
const ROLES: [(&str, &str); 2] = [("human", "user"), ("gpt", "assistant")];

/// A role by its usual name.
pub(super) fn usual_role(name: &str) -> &str {
    let known = ROLES.iter().find(|(known, _)| *known == name);
    known.map_or(name, |(_, usual)| usual)
}

/// The messages of a cell's list.
pub(super) fn messages(column: &str, turns: Vec<Cell>) -> Result<Vec<Message>, String> {
    if turns.is_empty() {
        return Err(format!("column {column:?} has no messages"));
    }
    let message = |(i, turn): (usize, Cell)| {
        let Value::Object(mut fields) = turn.into_json() else {
            return Err(format!(
                "{column}[{i}] is no message, an object with role and content"
            ));
        };
        // What a table's other rows have is null in this one.
        fields.retain(|_, value| !value.is_null());
        // ShareGPT's names become the usual ones, those of fields as in TRL.
        if let Some(role) = fields.shift_remove("from") {
            let role = match role {
                Value::String(name) => usual_role(&name).into(),
                other => other,
            };
            fields.insert("role".into(), role);
            if let Some(content) = fields.shift_remove("value") {
                fields.insert("content".into(), content);
            }
        }
        match fields.get("role") {
            Some(Value::String(_)) => Ok(Message::of(fields)),
            _ => Err(format!("{column}[{i}] has no role that is text")),
        }
    };
    turns.into_iter().enumerate().map(message).collect()
}
