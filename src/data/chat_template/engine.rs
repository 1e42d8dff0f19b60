//! A chat template within this process: Jinja as transformers sets it up, with a number of steps that
//! a rendering may take.

use super::python;
use chrono::DateTime;
use chrono::format::StrftimeItems;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The name that a template has within its environment.
const TEMPLATE: &str = "chat";

/// Characters of a template's own message that are shown.
const LONGEST_MESSAGE: usize = 400;

/// A rendering: a conversation and what it may cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub messages: Value,
    pub add_generation_prompt: bool,
    /// Steps of the engine, each of which pays for 64 bytes, too.
    pub steps: u64,
    /// Bytes of the text.
    pub output: usize,
}

/// Why a template gives no text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Failure {
    /// It is no valid Jinja, or refuses this conversation.
    Refused(String),
    /// It costs more than a conversation of this size may.
    Unbounded(String),
}

/// A parsed template.
pub(super) struct Engine {
    environment: Environment<'static>,
    tokens: Map<String, Value>,
}

impl Engine {
    /// Parses a template whose generation tags are gone.
    pub fn new(source: String, tokens: Map<String, Value>) -> Result<Engine, Failure> {
        let mut environment = environment();
        let added = environment.add_template_owned(TEMPLATE, source);
        added.map_err(|error| Failure::Refused(message(&error)))?;
        Ok(Engine {
            environment,
            tokens,
        })
    }

    /// The text of a conversation.
    pub fn render(&mut self, request: Request) -> Result<String, Failure> {
        let mut context = self.tokens.clone();
        // There are none, which templates may ask for by `is not none`.
        for key in ["tools", "documents"] {
            context.insert(key.into(), Value::Null);
        }
        context.insert("messages".into(), request.messages);
        let asks = request.add_generation_prompt;
        context.insert("add_generation_prompt".into(), asks.into());
        self.environment.set_fuel(Some(request.steps));
        let template = self.environment.get_template(TEMPLATE);
        let rendered = template.and_then(|template| template.render(Serde(context)));
        let text = rendered.map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => {
                Failure::Unbounded(format!("takes more than {} steps", request.steps))
            }
            _ => Failure::Refused(message(&error)),
        })?;
        if text.len() > request.output {
            let reason = format!("writes more than {} bytes", request.output);
            return Err(Failure::Unbounded(reason));
        }
        Ok(text)
    }
}

/// The words of an error, of which a template may choose any number.
fn message(error: &minijinja::Error) -> String {
    let text = match error.detail() {
        // The template's own words.
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_string(),
        _ => error.to_string(),
    };
    let mut letters = text.chars();
    let shown = letters.by_ref().take(LONGEST_MESSAGE);
    // A message is one line.
    let line = shown.map(|letter| if letter.is_control() { ' ' } else { letter });
    let line: String = line.collect();
    let is_cut = letters.next().is_some();
    if is_cut { line + "..." } else { line }
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    // Texts are no HTML.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    python::extend(&mut environment);
    environment.add_function(
        "raise_exception",
        |reason: String| -> std::result::Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        strftime(&format, now.map_or(0, |since| since.as_secs()))
    });
    environment
}

/// `{% generation %}` marks the assistant's words, for training; here it is a block that is always
/// taken.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 2];
        text.push_str(&rest[..start]);
        text.push_str(&match tag.trim_matches(['{', '%', '}', '-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_string(),
        });
        rest = &rest[start + length + 2..];
    }
    text.push_str(rest);
    text
}

/// The date and time, in UTC, by a format of C's `strftime`; letters that it does not have stay.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let time = i64::try_from(seconds).ok();
    let time = time.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let items = StrftimeItems::new_lenient(format);
    let mut text = String::new();
    match write!(
        text,
        "{}",
        time.unwrap_or_default().format_with_items(items)
    ) {
        Ok(()) => text,
        // A letter that only a reader of dates has.
        Err(_) => format.to_string(),
    }
}
