//! Jinja2 with the values of Python, as transformers sets it up for chat templates: the immutable
//! sandbox with `trim_blocks`, `lstrip_blocks`, `break` and `continue`, generation tags, and its own
//! `tojson`, `raise_exception`, `strftime_now`, `dict` and `namespace`.
//!
//! A template gives the text that Jinja2 gives, or an error that says what it does that Python
//! refuses or this engine lacks. What is left unsaid by Jinja's own documents follows CPython 3.11 and
//! Jinja 3.1. A rendering has a number of steps, which text and items cost, too.

mod access;
mod arguments;
mod ast;
mod error;
mod escape;
mod filters;
mod format;
mod interpreter;
mod json;
mod lexer;
mod meter;
mod methods;
mod names;
mod numbers;
mod ops;
mod parser;
mod print;
mod printf;
mod sort;
mod strings;
mod tests;
mod text;
mod time;
mod value;

pub use error::{Error, Result};
pub use print::float as python_float;

use interpreter::Interpreter;
use serde_json::{Map, Value as Json};
use std::ops::Range;
use value::{Scope, Value};

/// A parsed template.
pub struct Template {
    body: Vec<ast::Stmt>,
    has_generation: bool,
}

/// The text of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    pub text: String,
    /// What stood between generation tags, in characters. These are transformers' numbers: of tags
    /// within a macro or another captured block, they do not say where their text came to stand.
    pub generations: Vec<Range<usize>>,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// If it is no valid Jinja, or uses a statement that is not implemented.
    pub fn parse(source: &str) -> Result<Template> {
        let (body, has_generation) = parser::parse(source)?;
        Ok(Template {
            body,
            has_generation,
        })
    }

    /// Whether it has generation tags.
    pub fn has_generation(&self) -> bool {
        self.has_generation
    }

    /// The text with these variables, in at most this number of steps.
    ///
    /// # Errors
    /// If the template does what Python refuses or this engine lacks, or raises an error itself; or if
    /// the steps are used up.
    pub fn render(&self, variables: &Map<String, Json>, steps: u64) -> Result<Rendered> {
        meter::start(steps);
        let context = Scope::new(None);
        for (name, value) in variables {
            context.set(name.as_str().into(), Value::of_json(value)?);
        }
        let top = Scope::new(Some(&context));
        let mut interpreter = Interpreter::default();
        let text = interpreter.render(&self.body, &top)?;
        let generations = interpreter.generations.iter();
        Ok(Rendered {
            text,
            generations: generations.map(|(start, end)| *start..*end).collect(),
        })
    }
}
