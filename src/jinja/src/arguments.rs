//! Arguments of a call, by place and by name.

use crate::error::{Result, refuse};
use crate::value::Value;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Args {
    pub positional: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Args {
    /// The arguments in the order of a function's parameters, of which the first `required` must be
    /// there. A parameter without a name is given by its place alone.
    pub fn bind<const N: usize>(
        &self,
        function: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            let given = self.positional.len();
            return refuse(format!(
                "{function}() takes at most {N} arguments ({given} given)"
            ));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(&self.positional) {
            *place = Some(value.clone());
        }
        for (name, value) in &self.named {
            let place = parameters
                .iter()
                .position(|it| !it.is_empty() && **it == **name);
            match place {
                Some(place) if bound[place].is_none() => bound[place] = Some(value.clone()),
                Some(_) => {
                    return refuse(format!("{function}() got multiple values for '{name}'"));
                }
                None => {
                    return refuse(format!(
                        "{function}() got an unexpected keyword argument '{name}'"
                    ));
                }
            }
        }
        if bound[..required].iter().any(Option::is_none) {
            return refuse(format!("{function}() lacks an argument"));
        }
        Ok(bound)
    }

    /// No argument.
    pub fn none(&self, function: &str) -> Result<()> {
        self.bind(function, [], 0).map(|_: [Option<Value>; 0]| ())
    }
}

/// The text that an argument must be.
pub(crate) fn text(value: &Value, what: &str) -> Result<Arc<str>> {
    match value.defined()?.as_str() {
        Some(text) => Ok(text.clone()),
        None => refuse(format!("{what} must be str, not {}", value.type_name())),
    }
}

/// The whole number that an argument must be.
pub(crate) fn int(value: &Value, what: &str) -> Result<i128> {
    match value.defined()?.as_int() {
        Some(value) => Ok(value),
        None => {
            let kind = value.type_name();
            refuse(format!(
                "{what}: '{kind}' object cannot be interpreted as an integer"
            ))
        }
    }
}

/// An argument's text, if it is there.
pub(crate) fn optional_text(value: Option<&Value>, what: &str) -> Result<Option<Arc<str>>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => text(value, what).map(Some),
    }
}

/// An argument's number, if it is there.
pub(crate) fn optional_int(value: Option<&Value>, what: &str) -> Result<Option<i128>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => int(value, what).map(Some),
    }
}
