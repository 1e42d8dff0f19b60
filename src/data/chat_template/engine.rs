//! A chat template within this process, with a number of steps that a rendering may take.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::Range;
use xtrain_jinja::{Error, Template};

/// Characters of a template's own message that are shown.
const LONGEST_MESSAGE: usize = 400;

/// A rendering: what the template reads, and what it may cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub variables: Map<String, Value>,
    /// Steps of the engine, which pay for text and items, too.
    pub steps: u64,
    /// Bytes of the text.
    pub output: usize,
}

/// A conversation as its template writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rendered {
    pub text: String,
    /// What stood between generation tags, in characters; `None` where the template has no tags.
    pub generations: Option<Vec<Range<usize>>>,
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
    template: Template,
    tokens: Map<String, Value>,
}

impl Engine {
    /// Parses a template.
    pub fn new(source: &str, tokens: Map<String, Value>) -> Result<Engine, Failure> {
        let template = Template::parse(source);
        Ok(Engine {
            template: template.map_err(|error| failure(&error, 0))?,
            tokens,
        })
    }

    /// The text of a conversation.
    pub fn render(&self, request: Request) -> Result<Rendered, Failure> {
        let mut variables = self.tokens.clone();
        variables.extend(request.variables);
        let rendered = self.template.render(&variables, request.steps);
        let rendered = rendered.map_err(|error| failure(&error, request.steps))?;
        if rendered.text.len() > request.output {
            let reason = format!("writes more than {} bytes", request.output);
            return Err(Failure::Unbounded(reason));
        }
        let has_tags = self.template.has_generation();
        Ok(Rendered {
            text: rendered.text,
            generations: has_tags.then_some(rendered.generations),
        })
    }
}

fn failure(error: &Error, steps: u64) -> Failure {
    match error {
        Error::Steps => Failure::Unbounded(format!("takes more than {steps} steps")),
        other => Failure::Refused(message(&other.to_string())),
    }
}

/// The words of an error, of which a template may choose any number.
fn message(text: &str) -> String {
    let mut letters = text.chars();
    let shown = letters.by_ref().take(LONGEST_MESSAGE);
    // A message is one line.
    let line = shown.map(|letter| if letter.is_control() { ' ' } else { letter });
    let line: String = line.collect();
    let is_cut = letters.next().is_some();
    if is_cut { line + "..." } else { line }
}
