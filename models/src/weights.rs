//! How a model reaches its parameters while it records a step, and what it says about each.

use crate::error::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;
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
    /// Whether weight decay applies: not to biases and LayerNorm weights, as transformers' Trainer
    /// has it.
    pub decay: bool,
    /// Whether it belongs to the task's head: a checkpoint that was saved for another task has none
    /// like it.
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

/// A parameter as a recorded step has it.
#[derive(Clone)]
pub enum Weight {
    /// All of it.
    Whole(Tensor),
    /// One part along `dim`, of which each replica of a group has another; it is put together where
    /// it is used.
    Part {
        part: Tensor,
        dim: usize,
        groups: Arc<[Vec<u32>]>,
    },
    /// One for each stage of a pipeline that uses it, by the stage.
    OfStages(Vec<(usize, Weight)>),
}

impl Weight {
    /// What the step holds of it, in the order of stages.
    pub fn held(&self) -> Vec<&Tensor> {
        match self {
            Weight::Whole(whole) => vec![whole],
            Weight::Part { part, .. } => vec![part],
            Weight::OfStages(weights) => weights
                .iter()
                .flat_map(|(_, weight)| weight.held())
                .collect(),
        }
    }

    /// The whole; where it has to be put together, not before `after` is there.
    fn whole(&self, after: Option<&Tensor>) -> Result<Tensor> {
        match (self, after) {
            (Weight::Whole(whole), _) => Ok(whole.clone()),
            (Weight::Part { part, dim, groups }, Some(after)) => {
                Ok(part.after(after)?.all_gather(groups, *dim)?)
            }
            (Weight::Part { part, dim, groups }, None) => Ok(part.all_gather(groups, *dim)?),
            (Weight::OfStages(weights), _) => {
                let (first, weight) = weights.first().expect("a stage at least");
                let stage = weight.held()[0].trace().stage().unwrap_or(*first);
                let here = weights.iter().find(|(of, _)| *of == stage);
                here.map_or(weight, |(_, weight)| weight).whole(after)
            }
        }
    }
}

/// The model's parameters as tensors of one trace, seen from one place in the model.
#[derive(Clone)]
pub struct Weights<'a> {
    trace: &'a Trace,
    all: &'a HashMap<String, Weight>,
    prefix: String,
    /// The input of the layer that this is seen from.
    layer_input: Option<Tensor>,
}

impl<'a> Weights<'a> {
    pub fn new(trace: &'a Trace, all: &'a HashMap<String, Weight>) -> Self {
        Weights {
            trace,
            all,
            prefix: String::new(),
            layer_input: None,
        }
    }

    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// The weights below `name`, and the model path to go with them until the guard is dropped.
    pub fn enter(&self, name: &str) -> (Weights<'a>, ScopeGuard) {
        let prefix = format!("{}{name}.", self.prefix);
        (
            Weights {
                prefix,
                ..self.clone()
            },
            self.trace.scope(name),
        )
    }

    /// As [`Weights::enter`], for one of the layers that make up most of the model. Parameters that
    /// lie in parts are put together when its input `x` is there, not before, so that only a
    /// layer's are in memory at a time.
    pub fn enter_layer(&self, name: &str, x: &Tensor) -> (Weights<'a>, ScopeGuard) {
        self.enter_layer_with(name, name, x)
    }

    /// As [`Weights::enter_layer`], for a layer whose weights, below `name`, are other layers' too:
    /// the model path tells them apart.
    pub fn enter_layer_with(
        &self,
        path: &str,
        name: &str,
        x: &Tensor,
    ) -> (Weights<'a>, ScopeGuard) {
        let prefix = format!("{}{name}.", self.prefix);
        (
            Weights {
                prefix,
                layer_input: Some(x.clone()),
                ..self.clone()
            },
            self.trace.layer(path),
        )
    }

    /// A parameter in its whole shape.
    pub fn get(&self, name: &str) -> Result<Tensor> {
        let full = format!("{}{name}", self.prefix);
        match self.all.get(&full) {
            Some(weight) => weight.whole(self.layer_input.as_ref()),
            None => Err(Error::NoSuchWeight { name: full }),
        }
    }
}
