//! Activation functions by transformers' names (`ACT2FN`).

use crate::config::Config;
use crate::error::Result;
use xtrain_graphs::Tensor;
use xtrain_graphs::op::Gelu;

/// An activation function, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU (Hendrycks and Gimpel 2016), exact or by tanh.
    Gelu(Gelu),
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    /// `max(x, 0)`
    Relu,
    /// `x * sigmoid(x)`
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

/// Names that are understood, for the message about one that is not.
const KNOWN: &str =
    "gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, relu, silu, swish, tanh";

impl Activation {
    /// Reads the activation that `key` names.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn from_config(config: &Config, key: &str, default: &str) -> Result<Self> {
        Ok(match config.text_or(key, default)?.as_str() {
            "gelu" => Activation::Gelu(Gelu::Erf),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Activation::Gelu(Gelu::Tanh),
            "quick_gelu" => Activation::QuickGelu,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            "tanh" => Activation::Tanh,
            _ => {
                return Err(
                    config.unsupported(key, format!("not a known activation; known: {KNOWN}"))
                );
            }
        })
    }

    /// The function of every element of `x`.
    ///
    /// # Errors
    /// If `x` is not of a float type.
    pub fn apply(self, x: &Tensor) -> xtrain_graphs::Result<Tensor> {
        match self {
            Activation::Gelu(kind) => x.gelu(kind),
            Activation::QuickGelu => x.mul(&x.mul_scalar(1.702)?.logistic()?),
            Activation::Relu => x.relu(),
            Activation::Silu => x.mul(&x.logistic()?),
            Activation::Tanh => x.tanh(),
        }
    }

    /// Of a gated MLP (Shazeer 2020): the activation of `gate` times `up`, both `[N, F]`. With SiLU its
    /// values are cheap to make of these two, so they are not kept for the backward pass. With GELU a
    /// second computation takes 1 to 2 % of a step.
    ///
    /// # Errors
    /// If the shapes differ or are not of a float type.
    pub fn gated(self, gate: &Tensor, up: &Tensor) -> xtrain_graphs::Result<Tensor> {
        let _again = matches!(self, Activation::Silu).then(|| gate.trace().cheap());
        self.apply(gate)?.mul(up)
    }
}
