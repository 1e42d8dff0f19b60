//! Linear layers and embeddings of tokens. Every family's go through [`Weights::linear`] and
//! [`Weights::embedding`], so that this is the one place that knows how a matrix is held, and where
//! something can be added to its product.

use crate::axis::Axis;
use crate::declaration::AdaptableModule;
use crate::error::Result;
use crate::layers;
use crate::lora;
use crate::weights::Weights;
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, Tensor};

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
    pub(crate) fn module(&self, name: &str) -> AdaptableModule {
        AdaptableModule {
            name: name.to_string(),
            is_conv1d: self.is_conv1d,
            is_output: false,
            is_tied: self.tied_to.is_some(),
            has_bias: self.has_bias,
            is_embedding: false,
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
        weights.note_adaptable(layer.module(weights.module()));
        let (to, from) = (layer.to, (layer.from, x.dims()[1]));
        let dims = if layer.is_conv1d {
            [from, to]
        } else {
            [to, from]
        };
        // A copy that an adapter trains is tied to nothing.
        let is_copied = weights
            .adapter()
            .is_some_and(|(adapter, _)| adapter.saves(weights.module()));
        let matrix = match (layer.tied_to, layer.std) {
            (Some(full_name), _) if is_copied => weights.copied("weight", dims, full_name)?,
            (Some(full_name), _) => weights.shared("weight", full_name)?,
            (None, Some(std)) => weights.matrix_with_std("weight", dims, std)?,
            (None, None) => weights.matrix("weight", dims)?,
        };
        let base = Base {
            matrix: &matrix,
            is_conv1d: layer.is_conv1d,
        };
        let mut product = base.product(x)?;
        if let Some(table) = layer.tied_to {
            product = weights.with_tied_tokens(product, x, table)?;
        }
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

    /// Rows `[N, C]` of the table of the module `name`, whose axes are tokens and `C`, for `ids` `[B, T]`. The
    /// lookup of `padding_idx` sends the table no gradient.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub(crate) fn embedding(
        &self,
        name: &str,
        ids: &Tensor,
        dims: [(Axis, usize); 2],
        padding_idx: Option<usize>,
    ) -> Result<Tensor> {
        let weights = self.below(name);
        let table = weights.table("weight", dims, padding_idx)?;
        weights.note_adaptable(AdaptableModule {
            name: weights.module().to_string(),
            is_conv1d: false,
            is_output: false,
            is_tied: false,
            has_bias: false,
            is_embedding: true,
        });
        let rows = layers::embedding(&table, ids, padding_idx)?;
        let rows = weights.with_tokens(rows, ids, dims)?;
        let layer = weights
            .adapter()
            .and_then(|(adapter, _)| adapter.layer(weights.module()));
        let Some(layer) = layer else {
            return Ok(rows);
        };
        let _scope = weights.trace().scope("lora");
        let ([tokens, embed], rank) = (dims, (Axis::Rank, layer.rank));
        // As PEFT starts them, the reverse of a linear layer's.
        let a = weights.zeros(lora::EMBEDDING_A, [rank, tokens])?;
        let b = weights.matrix_with_std(lora::EMBEDDING_B, [embed, rank], 1.0)?;
        let inner = layers::embedding(&a.transpose(&[1, 0])?, ids, padding_idx)?; // [N, r]
        let added = inner.mul_scalar(layer.scale)?.matmul_transposed(&b)?;
        Ok(rows.add(&added)?)
    }

    /// Rows `[N, C]` that were looked up in this module's table, those of tokens that an adapter trains
    /// by themselves replaced.
    fn with_tokens(&self, rows: Tensor, ids: &Tensor, dims: [(Axis, usize); 2]) -> Result<Tensor> {
        let Some((adapter, _)) = self.adapter() else {
            return Ok(rows);
        };
        let tokens = adapter.tokens(self.module());
        if tokens.is_empty() {
            return Ok(rows);
        }
        let table = format!("{}.weight", self.module());
        let own = [(Axis::Rank, tokens.len()), dims[1]];
        let trained = self.rows_of(lora::TOKENS, own, &table, tokens)?; // [n, C]
        let ids = ids.reshape(&[ids.shape().elements()])?;
        let chosen = one_hot(&ids, tokens, 1)?; // [N, n]
        let is_own = chosen.sum(&[1])?.compare_scalar(Comparison::Gt, 0.0)?;
        let is_own = is_own.broadcast_in(rows.dims(), &[0])?;
        Ok(is_own.select(&chosen.matmul(&trained)?, &rows)?)
    }

    /// Logits `[N, V]` of `x` `[N, C]` by a tied table, those of tokens that an adapter trains by
    /// themselves replaced: the head has the same rows.
    fn with_tied_tokens(&self, logits: Tensor, x: &Tensor, table: &str) -> Result<Tensor> {
        let Some((adapter, _)) = self.adapter() else {
            return Ok(logits);
        };
        let module = table.strip_suffix(".weight").unwrap_or(table);
        let tokens = adapter.tokens(module);
        if tokens.is_empty() || adapter.saves(self.module()) {
            return Ok(logits);
        }
        let trained = self.tied(&format!("{module}.{}", lora::TOKENS))?;
        let places = logits.trace().iota(DType::S32, &logits.dims()[1..], 0)?;
        let chosen = one_hot(&places, tokens, 0)?; // [n, V]
        let is_own = chosen.sum(&[0])?.compare_scalar(Comparison::Gt, 0.0)?;
        let is_own = is_own.broadcast_in(logits.dims(), &[1])?;
        let own = x.matmul_transposed(&trained)?.matmul(&chosen)?;
        Ok(is_own.select(&own, &logits)?)
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
        let [a, b] = match adapter.tied_table(self.module()) {
            Some(table) => {
                let transposed = |part: &str| -> Result<Tensor> {
                    let matrix = self.tied(&format!("{table}.{part}"))?;
                    Ok(matrix.transpose(&[1, 0])?)
                };
                [
                    transposed(lora::EMBEDDING_B)?,
                    transposed(lora::EMBEDDING_A)?,
                ]
            }
            None => [
                self.uniform(lora::A, [rank, from], bound)?,
                self.zeros(lora::B, [to, rank])?,
            ],
        };
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
        let grown = added
            .add(&own)?
            .mul(&factor.broadcast_in(own.dims(), &[1])?)?;
        Ok(Some(grown.sub(&own)?))
    }
}

/// 1 where an id is one of the tokens, with a dimension for them at `dim`: `f32[N, n]` or `f32[n, N]`.
fn one_hot(ids: &Tensor, tokens: &[usize], dim: usize) -> Result<Tensor> {
    let count = ids.dims()[0];
    let dims = if dim == 0 { [1, count] } else { [count, 1] };
    let mut all = Vec::new();
    for token in tokens {
        let is_it = ids.compare_scalar(Comparison::Eq, *token as f64)?;
        all.push(is_it.convert(DType::F32)?.reshape(&dims)?);
    }
    Ok(Tensor::concat(&all.iter().collect::<Vec<_>>(), dim)?)
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
