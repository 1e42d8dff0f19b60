//! Chat templates: how a model's conversations become text. A template is Jinja that comes with the
//! tokenizer, as `chat_template.jinja` or in `tokenizer_config.json`; it is rendered as
//! transformers' `apply_chat_template` renders it.
//!
//! A template is a program of somebody else. The engine counts its steps, and the program
//! renders in a process of its own ([`worker`]), whose memory, stack and time are bounded: operations
//! within one step can cost any amount of them.

mod engine;
mod message;
mod source;
pub mod worker;

use super::error::{Error, Result};
use super::tokenizer::Tokenizer;
pub use engine::Rendered;
use engine::{Engine, Failure, Request};
pub use message::{Message, Variables};
use serde_json::{Value, json};
use source::Source;
use std::sync::{Mutex, PoisonError};
use worker::Worker;
use xtrain_checkpoint::hash;

/// What a rendering may cost whatever the conversation: steps of the engine and bytes of text.
/// Published templates take less than 10,000 steps and write less than 10,000 bytes besides the
/// messages.
const STEPS: u64 = 1_000_000;
const OUTPUT: usize = 256 << 10;

/// What each message adds to them. Some templates look at every other message for each.
const STEPS_PER_MESSAGE: u64 = 20_000;
const OUTPUT_PER_MESSAGE: usize = 1 << 10;

/// What each byte of what the template is given adds to the bytes of text: as JSON a byte becomes six.
const OUTPUT_PER_BYTE: usize = 8;

/// Where a template is rendered.
enum Renderer {
    /// Within this process, bounded in steps only: of tests.
    Here(Box<Engine>),
    /// In a process of its own; `None`: it ended, and the next rendering starts another.
    Apart(Option<Worker>),
}

/// One template of a model.
struct Template {
    source: Source,
    renderer: Mutex<Renderer>,
}

/// A model's templates.
pub struct ChatTemplate {
    default: Option<Template>,
    /// The one for conversations with tools, where it is another.
    tool_use: Option<Template>,
    /// The names of all.
    names: Vec<String>,
}

impl ChatTemplate {
    /// The templates that come with a tokenizer; `None` where there are none.
    ///
    /// # Errors
    /// If one that is used is no text or no valid Jinja.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        let sources = Source::all(tokenizer)?;
        if sources.is_empty() {
            return Ok(None);
        }
        let names = sources.iter().map(|source| source.name.clone()).collect();
        let mut found = ChatTemplate {
            default: None,
            tool_use: None,
            names,
        };
        for source in sources {
            match source.name.as_str() {
                "default" => found.default = Some(Template::new(source)?),
                "tool_use" => found.tool_use = Some(Template::new(source)?),
                _ => {}
            }
        }
        Ok(Some(found))
    }

    /// What decides how a tokenizer's templates write a conversation; `None` where there is none
    /// that can be read.
    pub fn key(tokenizer: &Tokenizer) -> Option<Value> {
        let sources = Source::all(tokenizer).ok()?;
        let keys: Vec<Value> = sources.iter().map(Source::key).collect();
        (!keys.is_empty()).then(|| json!({"templates": keys, "engine": 2}))
    }

    /// Whether the text of a tokenizer's template has generation tags, as TRL looks for them.
    pub fn has_generation_tags(tokenizer: &Tokenizer) -> Option<bool> {
        let sources = Source::all(tokenizer).ok()?;
        let default = sources.iter().find(|source| source.name == "default")?;
        Some(default.has_generation_tags())
    }

    /// A digest of the text of the template for conversations without tools.
    pub fn digest(&self) -> Option<String> {
        let text = self.default.as_ref()?.source.text.trim();
        Some(hash::sha256(text.as_bytes()))
    }

    /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's answer
    /// begins.
    ///
    /// # Errors
    /// If the template uses what is not supported, or raises an error itself, as where roles do not
    /// alternate; or if it costs more than a conversation of this size may.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<Rendered> {
        let by_tools = self.tool_use.as_ref().filter(|_| variables.tools.is_some());
        match by_tools.or(self.default.as_ref()) {
            Some(template) => template.render(messages, add_generation_prompt, variables),
            None => Err(Error::ChatTemplate {
                place: source::CONFIG_PLACE.to_string(),
                reason: format!(
                    "there are several ({}) and none is named default",
                    self.names.join(", ")
                ),
            }),
        }
    }
}

impl Template {
    fn new(source: Source) -> Result<Template> {
        let renderer = if worker::is_available() {
            Worker::start(&source.text, &source.tokens).map(|worker| Renderer::Apart(Some(worker)))
        } else {
            Engine::new(&source.text, source.tokens.clone())
                .map(|engine| Renderer::Here(Box::new(engine)))
        };
        let renderer = renderer.map_err(|failure| error(&source, failure))?;
        Ok(Template {
            renderer: Mutex::new(renderer),
            source,
        })
    }

    fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
        variables: &Variables,
    ) -> Result<Rendered> {
        let mut given = variables.given();
        given.insert("messages".into(), json!(messages));
        given.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let bytes: usize = given.values().map(bytes_of).sum();
        let request = Request {
            variables: given,
            steps: STEPS + STEPS_PER_MESSAGE * messages.len() as u64 + bytes as u64,
            output: OUTPUT + OUTPUT_PER_MESSAGE * messages.len() + OUTPUT_PER_BYTE * bytes,
        };
        let mut renderer = self.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        let rendered = match &mut *renderer {
            Renderer::Here(engine) => engine.render(request),
            Renderer::Apart(worker) => self.render_apart(worker, request),
        };
        rendered.map_err(|failure| match failure {
            Failure::Unbounded(reason) => {
                let conversation = format!("a conversation of {} messages", messages.len());
                let reason = format!("{reason} for {conversation} and {bytes} bytes");
                error(&self.source, Failure::Unbounded(reason))
            }
            refused => error(&self.source, refused),
        })
    }

    fn render_apart(
        &self,
        worker: &mut Option<Worker>,
        request: Request,
    ) -> Result<Rendered, Failure> {
        let mut running = match worker.take() {
            Some(running) => running,
            None => Worker::start(&self.source.text, &self.source.tokens)?,
        };
        let rendered = running.render(request);
        *worker = (!running.has_ended()).then_some(running);
        rendered
    }
}

/// Bytes of the texts in a value.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(name, value)| name.len() + bytes_of(value))
                .sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

fn error(source: &Source, failure: Failure) -> Error {
    let place = source.place.clone();
    match failure {
        Failure::Refused(reason) => Error::ChatTemplate { place, reason },
        Failure::Unbounded(reason) => Error::EndlessTemplate { place, reason },
    }
}

#[cfg(test)]
#[path = "chat_template/tests.rs"]
mod tests;
