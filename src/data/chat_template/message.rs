//! What a template is given: messages as they stand in their row, and what else a row has for it.

use serde::Serialize;
use serde_json::{Map, Value};

/// One turn of a conversation, with all its fields.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Message {
    fields: Map<String, Value>,
}

/// Names of a message's reasoning; templates read the first, gpt-oss's the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Message {
    /// A turn of this role.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        let mut fields = Map::new();
        fields.insert("role".into(), role.into());
        fields.insert("content".into(), content.into().into());
        Message { fields }
    }

    /// A message as transformers hands it on: without fields that are null, and with its reasoning
    /// under the names that templates read.
    pub fn of(mut fields: Map<String, Value>) -> Message {
        fields.retain(|_, value| !value.is_null());
        let reasoning = REASONING.iter().find_map(|name| fields.get(*name).cloned());
        if let Some(reasoning) = reasoning {
            let mut all = Map::new();
            all.insert("thinking".into(), reasoning.clone());
            all.extend(fields);
            all.insert("reasoning_content".into(), reasoning);
            fields = all;
        }
        Message { fields }
    }

    /// The same with another content.
    pub fn with_content(&self, content: &str) -> Message {
        let mut fields = self.fields.clone();
        fields.insert("content".into(), content.into());
        Message { fields }
    }

    /// Its content, where that is text.
    pub fn content(&self) -> Option<&str> {
        self.fields.get("content").and_then(Value::as_str)
    }

    /// Its role; empty where that is no text.
    pub fn role(&self) -> &str {
        let role = self.fields.get("role").and_then(Value::as_str);
        role.unwrap_or_default()
    }
}

/// What a template reads besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variables {
    /// Tools that a model may call, as JSON schemas.
    pub tools: Option<Value>,
    /// Texts that an answer may draw on.
    pub documents: Option<Value>,
    /// Further variables by their names.
    pub more: Map<String, Value>,
}

/// Arguments of `apply_chat_template` that are no variables of a template, and whether false means
/// what is done anyway.
const ARGUMENTS: [(&str, bool); 16] = [
    ("add_generation_prompt", true),
    ("chat_template", false),
    ("continue_final_message", true),
    ("conversation", false),
    ("input", false),
    ("max_length", false),
    ("messages", false),
    ("padding", true),
    ("processing_class", false),
    ("return_assistant_tokens_mask", true),
    ("return_dict", false),
    ("return_tensors", false),
    ("sanitize_control_tokens", true),
    ("tokenize", false),
    ("tokenizer_kwargs", false),
    ("truncation", true),
];

impl Variables {
    /// Of the columns `tools`, `documents` and `chat_template_kwargs` of a row, null where it has
    /// none. `Err` says what is wrong with them.
    pub fn of(tools: Value, documents: Value, more: Value) -> Result<Variables, String> {
        let mut found = Variables::default();
        let mut more = match more {
            Value::Null => Map::new(),
            Value::Object(more) => more,
            other => {
                return Err(format!(
                    "chat_template_kwargs is {}, not an object of a template's variables",
                    kind(&other)
                ));
            }
        };
        // They overrule the columns.
        let tools = more.shift_remove("tools").unwrap_or(tools);
        let documents = more.shift_remove("documents").unwrap_or(documents);
        let tools = match tools {
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|error| format!("tools is text and no JSON: {error}"))?,
            other => other,
        };
        found.tools = objects("tools", tools)?;
        found.documents = objects("documents", documents)?;
        for (name, is_false_usual) in ARGUMENTS {
            let Some(value) = more.get(name) else {
                continue;
            };
            let is_usual = value.is_null() || (is_false_usual && *value == Value::Bool(false));
            if !is_usual || name == "messages" {
                return Err(format!(
                    "chat_template_kwargs: {name} = {value} is not supported, only variables of the template are"
                ));
            }
            more.shift_remove(name);
        }
        found.more = more;
        Ok(found)
    }

    /// The variables by their names. One that a row lacks is null, for which templates ask.
    pub(super) fn given(&self) -> Map<String, Value> {
        let mut given = self.more.clone();
        let or_null = |value: &Option<Value>| value.clone().unwrap_or_default();
        given.insert("tools".into(), or_null(&self.tools));
        given.insert("documents".into(), or_null(&self.documents));
        given
    }
}

/// A list of objects, if there is one.
fn objects(name: &str, value: Value) -> Result<Option<Value>, String> {
    match value {
        Value::Null => Ok(None),
        Value::Array(items) => match items.iter().position(|item| !item.is_object()) {
            Some(place) => {
                let found = kind(&items[place]);
                Err(format!("{name}[{place}] is {found}, not an object"))
            }
            None => Ok(Some(Value::Array(items))),
        },
        other => Err(format!("{name} is {}, not a list of objects", kind(&other))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
