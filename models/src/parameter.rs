//! What is known of a parameter before there are values.

use crate::axis::Axis;
use crate::quantization::{HeldArray, QuantizedMatrix};
use xtrain_graphs::optim::ParameterInfo;
use xtrain_graphs::{DType, Shape};

/// How a new parameter starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Biases.
    Zeros,
    /// Weights of norms.
    Ones,
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Normal, but for the row of an embedding's padding token, which is zero.
    NormalWithZeroRow {
        /// Standard deviation.
        std: f64,
        /// The padding token's id.
        row: usize,
    },
    /// Sines and cosines of the row's number, from fast to slow.
    Sinusoids,
    /// Uniform between `-bound` and `bound`.
    Uniform {
        /// The largest value.
        bound: f64,
    },
    /// For each output of the matrix beside it, `weight`, the norm of what it is made of.
    RowNorms {
        /// The matrix's dimension of inputs.
        inputs: usize,
    },
    /// The values of another parameter.
    CopyOf {
        /// Its name.
        parameter: String,
    },
    /// Some of the rows of another parameter.
    RowsOf {
        /// Its name.
        parameter: String,
        /// Their numbers.
        rows: Vec<usize>,
    },
}

/// The set of weights that a parameter belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ParameterSet {
    /// The model's own, which a finished run saves.
    #[default]
    Policy,
    /// A second copy of a model, which a loss compares the policy with; it is never trained.
    Reference,
    /// What is added to a policy's weights, saved by itself.
    Adapter,
}

/// One parameter, by its Hugging Face name.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSpec {
    /// As transformers' `state_dict` has it.
    pub name: String,
    /// Sizes.
    pub dims: Vec<usize>,
    /// What each of `dims` stands for.
    pub axes: Vec<Axis>,
    /// The values that it starts with.
    pub init: Init,
    /// Whether weight decay applies: to matrices and tables, not to biases and norms' weights, as
    /// transformers' Trainer has it.
    pub decay: bool,
    /// Whether it belongs to the head: a checkpoint with another head has none like it.
    pub head: bool,
    /// Further names that transformers' `state_dict` has for it: those of a layer that it is tied
    /// to.
    pub aliases: Vec<String>,
    /// The set of weights that it belongs to.
    pub set: ParameterSet,
    /// Whether training changes it. Only such a parameter has a gradient, optimizer state and
    /// further copies, and only its state is exchanged, saved and resumed.
    pub trained: bool,
    /// How it is held, if in few bits; such a parameter is not trained.
    pub quantized: Option<QuantizedMatrix>,
}

impl ParameterSpec {
    /// Its numbers.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Its name and its [aliases](ParameterSpec::aliases).
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .map(String::as_str)
    }

    /// Whether this is its name or one of its [aliases](ParameterSpec::aliases).
    pub fn answers_to(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// The arrays that hold it where values have this type, the one of its own name first.
    pub fn arrays(&self, dtype: DType) -> Vec<HeldArray> {
        match self.quantized {
            Some(quantized) => quantized.arrays(&self.name, &self.dims),
            None => vec![HeldArray {
                name: self.name.clone(),
                shape: Shape::new(dtype, self.dims.clone()),
                along: (0..self.dims.len()).collect(),
            }],
        }
    }

    /// What each of its dimensions consists of, of which devices can hold parts; nothing where none can.
    pub fn units(&self) -> Vec<usize> {
        match self.quantized {
            Some(quantized) => quantized.units(&self.dims),
            None => self.dims.clone(),
        }
    }

    /// What an optimizer knows of it.
    pub fn info(&self) -> ParameterInfo<'_> {
        let is_hidden = |axis: &Axis| match axis {
            Axis::Embed
            | Axis::Heads
            | Axis::KvHeads
            | Axis::Qkv { .. }
            | Axis::Head
            | Axis::Mlp
            | Axis::GateUp
            | Axis::Rank => true,
            Axis::Vocab | Axis::Positions | Axis::Segments | Axis::Labels => false,
        };
        let is_table = |axis: &Axis| {
            let is_hidden_row = self.axes.get(1) == Some(&Axis::Embed) && self.axes.len() == 2;
            matches!(axis, Axis::Vocab | Axis::Positions | Axis::Segments) && is_hidden_row
        };
        ParameterInfo {
            dims: &self.dims,
            is_hidden_matrix: self.dims.len() == 2 && !self.head && self.axes.iter().all(is_hidden),
            is_embedding: !self.head && self.axes.first().is_some_and(is_table),
        }
    }
}

/// What a tensor found in a checkpoint is to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredName {
    /// The parameter of this name.
    Parameter(String),
    /// Known and not needed: a buffer, or a copy of a tied tensor.
    NotNeeded,
    /// Part of another head.
    OtherHead,
    /// No model of the family has it.
    Unknown,
}
