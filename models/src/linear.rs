//! Linear layers. Every family's go through [`Weights::linear`], so that this is the one place that
//! knows how a matrix is held, and where something can be added to its product.

use crate::axis::Axis;
use crate::declaration::LinearModule;
use crate::error::Result;
use crate::lora;
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

    /// What is known of it by its module's full name.
    pub(crate) fn module(&self, name: &str) -> LinearModule {
        LinearModule {
            name: name.to_string(),
            is_conv1d: self.is_conv1d,
            is_output: false,
            is_tied: self.tied_to.is_some(),
            has_bias: self.has_bias,
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
        weights.note_linear(&layer);
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
        let base = Base {
            matrix: &matrix,
            is_conv1d: layer.is_conv1d,
        };
        let mut product = base.product(x)?;
        if layer.has_bias {
            let bias = match layer.bias {
                Some(full_name) => weights.bias_named("bias", full_name, to)?,
                None => weights.bias("bias", to)?,
            };
            product = product.add(&bias)?;
        }
        match weights.added(x, &base, from, to)? {
            Some(added) => Ok(product.add(&added)?),
            None => Ok(product),
        }
    }

    /// What an adapter adds to this linear layer's product of `x`, if it does: scale B A x and, where
    /// rows have magnitudes m (DoRA, Liu et al. 2024), m / n (W + scale B A) x - W x, n being the norms
    /// of the rows of W + scale B A, through which no gradient goes.
    fn added(
        &self,
        x: &Tensor,
        base: &Base,
        from: (Axis, usize),
        to: (Axis, usize),
    ) -> Result<Option<Tensor>> {
        let Some((adapter, rng)) = self.adapter() else {
            return Ok(None);
        };
        let Some(layer) = adapter.layer(self.module()) else {
            return Ok(None);
        };
        let _scope = self.trace().scope("lora");
        let rank = (Axis::Rank, layer.rank);
        // As PEFT starts it: Kaiming's uniform distribution with a = sqrt(5).
        let bound = 1.0 / (from.1 as f64).sqrt();
        let a = self.uniform(lora::A, [rank, from], bound)?;
        let b = self.zeros(lora::B, [to, rank])?;
        let dropped = rng.dropout(x, layer.dropout)?;
        let inner = dropped.matmul_transposed(&a)?.mul_scalar(layer.scale)?; // [N, r]
        let mut added = inner.matmul_transposed(&b)?; // [N, out]
        if layer.has_bias {
            let bias = self.bias(lora::B_BIAS, to)?.mul_scalar(layer.scale)?;
            added = added.add(&bias)?;
        }
        if !layer.has_magnitude {
            return Ok(Some(added));
        }
        let magnitude = self.row_norms(lora::MAGNITUDE, to, base.inputs())?;
        let delta = base.delta(&a, &b)?.mul_scalar(layer.scale)?;
        let norms = base.row_norms(&base.matrix.add(&delta)?)?.stop_gradient()?;
        let factor = magnitude.div(&norms)?; // [out]
        let own = base.product(&dropped)?;
        let grown = added.add(&own)?.mul(&factor.broadcast_in(own.dims(), &[1])?)?;
        Ok(Some(grown.sub(&own)?))
    }
}

/// A linear layer's own matrix.
struct Base<'t> {
    /// `[out, in]`, or the reverse.
    matrix: &'t Tensor,
    is_conv1d: bool,
}

impl Base<'_> {
    /// `[N, out]` of `x` `[N, in]`.
    fn product(&self, x: &Tensor) -> Result<Tensor> {
        Ok(if self.is_conv1d {
            x.matmul(self.matrix)?
        } else {
            x.matmul_transposed(self.matrix)?
        })
    }

    /// The product of B `[out, r]` and A `[r, in]`, laid out as the matrix is.
    fn delta(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        Ok(if self.is_conv1d {
            a.transpose(&[1, 0])?.matmul_transposed(b)?
        } else {
            b.matmul(a)?
        })
    }

    /// `[out]`: the norm of what each output is made of.
    fn row_norms(&self, matrix: &Tensor) -> Result<Tensor> {
        Ok(matrix.mul(matrix)?.sum(&[self.inputs()])?.sqrt()?)
    }

    /// The dimension of inputs.
    fn inputs(&self) -> usize {
        if self.is_conv1d { 0 } else { 1 }
    }
}
