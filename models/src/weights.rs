//! How a model reaches its parameters while it records a step, and what it says about each.

use crate::error::{Error, Result};
use std::collections::HashMap;
use xtrain_graphs::{ScopeGuard, Tensor, Trace};

/// How a new parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    Normal {
        std: f64,
    },
    /// Normal, but for the row of an embedding's padding token, which is zero.
    NormalWithZeroRow {
        std: f64,
        row: usize,
    },
}

/// One trainable tensor, by its Hugging Face name.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    pub name: String,
    pub dims: Vec<usize>,
    pub init: Init,
    /// Whether weight decay applies: not to biases and LayerNorm weights, as transformers' Trainer has it.
    pub decay: bool,
    /// Whether it belongs to the task's head: a checkpoint that was saved for another task has none like it.
    pub head: bool,
}

/// What a tensor found in a checkpoint is to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    /// The parameter of this name.
    Parameter(String),
    /// Known and not needed: a buffer, or a copy of a tied tensor.
    NotNeeded,
    /// Part of the head of another task.
    OtherHead,
    Unknown,
}

/// The model's parameters as tensors of one trace, seen from one place in the model.
#[derive(Clone)]
pub struct Weights<'a> {
    trace: &'a Trace,
    all: &'a HashMap<String, Tensor>,
    prefix: String,
}

impl<'a> Weights<'a> {
    pub fn new(trace: &'a Trace, all: &'a HashMap<String, Tensor>) -> Self {
        Weights { trace, all, prefix: String::new() }
    }

    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// The weights below `name`, and the model path to go with them until the guard is dropped.
    pub fn enter(&self, name: &str) -> (Weights<'a>, ScopeGuard) {
        let prefix = format!("{}{name}.", self.prefix);
        (Weights { trace: self.trace, all: self.all, prefix }, self.trace.scope(name))
    }

    pub fn get(&self, name: &str) -> Result<&'a Tensor> {
        let full = format!("{}{name}", self.prefix);
        self.all.get(&full).ok_or(Error::NoSuchWeight { name: full })
    }
}
