//! Linear layers. Every family's go through [`Weights::linear`], so that this is the one place that
//! knows how a matrix is held, and where something can be added to its product.

use crate::axis::Axis;
use crate::error::Result;
use crate::weights::Weights;
use xtrain_graphs::Tensor;

/// What a linear layer maps, and where its matrix and its bias are: torch's `Linear` with both of
/// its own, unless said otherwise.
#[derive(Clone, Copy)]
pub struct Linear<'n> {
    from: Axis,
    to: (Axis, usize),
    has_bias: bool,
    /// The matrix is `[in, out]`, not `[out, in]`.
    is_conv1d: bool,
    std: Option<f64>,
    tied_to: Option<&'n str>,
    /// The bias's full name, where it is not the module's.
    bias: Option<&'n str>,
    /// The module's place in the model path, where it is not its name.
    path: Option<&'n str>,
}

impl<'n> Linear<'n> {
    /// `x [N, in] W^T [in, out] + b`: `from` is the axis of `in`, `to` that of `out` with its size.
    pub fn new(from: Axis, to: (Axis, usize)) -> Self {
        Linear {
            from,
            to,
            has_bias: true,
            is_conv1d: false,
            std: None,
            tied_to: None,
            bias: None,
            path: None,
        }
    }

    /// The same without a bias.
    pub fn without_bias(self) -> Self {
        self.with_bias_if(false)
    }

    /// The same with a bias or without one.
    pub fn with_bias_if(self, has_bias: bool) -> Self {
        Linear { has_bias, ..self }
    }

    /// The same with its matrix stored as `[in, out]`: transformers' `Conv1D`.
    pub fn conv1d(self) -> Self {
        Linear {
            is_conv1d: true,
            ..self
        }
    }

    /// The same with a matrix that starts normal with this standard deviation, not with the
    /// configuration's `initializer_range`.
    pub fn with_std(self, std: f64) -> Self {
        Linear {
            std: Some(std),
            ..self
        }
    }

    /// The same with the parameter of this full name as its matrix, which was asked for before.
    pub fn tied_to(self, full_name: &'n str) -> Self {
        Linear {
            tied_to: Some(full_name),
            ..self
        }
    }

    /// The same, tied where this says so.
    pub fn tied_if(self, is_tied: bool, full_name: &'n str) -> Self {
        if is_tied {
            self.tied_to(full_name)
        } else {
            self
        }
    }

    /// The same with the bias of this full name, which need not be below the module's.
    pub fn with_bias_named(self, full_name: &'n str) -> Self {
        Linear {
            bias: Some(full_name),
            ..self
        }
    }

    /// The same at this place in the model path.
    pub fn at(self, path: &'n str) -> Self {
        Linear {
            path: Some(path),
            ..self
        }
    }
}

impl Weights<'_> {
    /// The linear layer `name` of this module, applied to `x` `[N, in]`.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn linear(&self, name: &str, x: &Tensor, layer: Linear<'_>) -> Result<Tensor> {
        let (weights, _scope) = self.enter_at(layer.path.unwrap_or(name), name);
        let (to, from) = (layer.to, (layer.from, x.dims()[1]));
        let dims = if layer.is_conv1d {
            [from, to]
        } else {
            [to, from]
        };
        let matrix = match (layer.tied_to, layer.std) {
            (Some(full_name), _) => weights.shared("weight", full_name)?,
            (None, Some(std)) => weights.matrix_with_std("weight", dims, std)?,
            (None, None) => weights.matrix("weight", dims)?,
        };
        let product = if layer.is_conv1d {
            x.matmul(&matrix)?
        } else {
            x.matmul_transposed(&matrix)?
        };
        if !layer.has_bias {
            return Ok(product);
        }
        let bias = match layer.bias {
            Some(full_name) => weights.bias_named("bias", full_name, to)?,
            None => weights.bias("bias", to)?,
        };
        Ok(product.add(&bias)?)
    }
}
