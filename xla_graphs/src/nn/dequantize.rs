//! The values of matrices that are held in few bits ([`Dequantize`]), without a gather over them: XLA
//! fuses arithmetic of elements into one loop over the codes.

use crate::dtype::DType;
use crate::error::Result;
use crate::op::{Comparison, Composite, Dequantize, Op};
use crate::ops::rule::{Inferred, expect};
use crate::shape::Shape;
use crate::trace::Tensor;

/// Factors that have one factor together.
const NESTED_BLOCK: usize = 256;
/// What comes before these in the third operand.
const NESTED_START: usize = 1 + 256;

pub(crate) fn infer(of: Dequantize, operands: &[&Shape]) -> Inferred {
    let (codes, factors) = match operands {
        [codes, factors] | [codes, factors, _] => (codes, factors),
        _ => return Err(format!("takes 2 or 3 operands, got {}", operands.len())),
    };
    let Some((last, runs)) = codes.dims.split_last() else {
        return Err("the codes have no dimension".into());
    };
    expect("the codes", codes, of.book.dtype(), &codes.dims)?;
    let is_nested = operands.len() == 3;
    let dtype = if is_nested { DType::U8 } else { DType::F32 };
    expect("the factors", factors, dtype, runs)?;
    if let Some(nested) = operands.get(2) {
        let blocks = factors.elements().div_ceil(NESTED_BLOCK);
        expect(
            "the factors' factors",
            nested,
            DType::F32,
            &[NESTED_START + blocks],
        )?;
    }
    let each = if of.book.values().is_some() { 2 } else { 1 };
    let mut dims = runs.to_vec();
    dims.push(last * each);
    Ok(Shape::new(DType::F32, dims))
}

/// The node in primitives.
pub(crate) fn expand(of: Dequantize, x: &[Tensor]) -> Result<Tensor> {
    let factors = match x {
        [_, codes, nested] => {
            let own = nested_factors(nested, codes.dims())?;
            factors(codes, &own, nested)?
        }
        _ => x[1].clone(),
    };
    let values = match of.book.values() {
        Some(values) => look_up(&halves(&x[0])?, &values)?,
        None => x[0].convert(DType::F32)?,
    };
    let runs: Vec<usize> = (0..factors.rank()).collect();
    let scaled = values.mul(&factors.broadcast_in(values.dims(), &runs)?)?;
    let scaled = match of.rounded {
        Some(dtype) => scaled.convert(dtype)?.convert(DType::F32)?,
        None => scaled,
    };
    let shape = infer(of, &x.iter().map(Tensor::shape).collect::<Vec<_>>());
    scaled.reshape(&shape.expect("it was checked when it was recorded").dims)
}

/// The factor of each factor, `f32[runs]`.
pub(crate) fn nested_factors(nested: &Tensor, runs: &[usize]) -> Result<Tensor> {
    let end = nested.dims()[0];
    let own = nested.slice_dim(0, NESTED_START, end)?;
    let blocks = end - NESTED_START;
    let wide = own.broadcast_in(&[blocks, NESTED_BLOCK], &[0])?;
    wide.reshape(&[blocks * NESTED_BLOCK])?
        .slice_dim(0, 0, runs.iter().product())?
        .reshape(runs)
}

/// Factors from their codes, `u8[runs]`, and the factor of each, `f32[runs]`.
pub(crate) fn factors(codes: &Tensor, own: &Tensor, nested: &Tensor) -> Result<Tensor> {
    let table = nested.slice_dim(0, 1, NESTED_START)?;
    let values = table.take_rows(&codes.convert(DType::S32)?)?;
    let added = nested.slice_dim(0, 0, 1)?.reshape(&[])?;
    values.mul(own)?.add(&added.broadcast_to(values.dims())?)
}

/// The codes in `u8[.., n]` as `u8[.., 2, n]`: lower halves, then upper halves.
fn halves(codes: &Tensor) -> Result<Tensor> {
    let rank = codes.rank();
    let mut dims = codes.dims().to_vec();
    dims.insert(rank - 1, 2);
    let map: Vec<usize> = (0..rank - 1).chain([rank]).collect();
    let shift = codes.trace().iota(DType::U8, &dims, rank - 1)?;
    let both = codes
        .broadcast_in(&dims, &map)?
        .shift_right_logical(&shift.mul_scalar(4.0)?)?;
    both.and(&both.trace().full(15.0, both.shape())?)
}

/// What each code from 0 to 15 stands for: a tree of choices by its bits.
fn look_up(codes: &Tensor, values: &[f32; 16]) -> Result<Tensor> {
    let (trace, shape) = (codes.trace(), codes.shape());
    let wide = shape.with_dtype(DType::F32);
    let mut level: Vec<Tensor> = values
        .iter()
        .map(|value| trace.full(f64::from(*value), &wide))
        .collect::<Result<_>>()?;
    for bit in [1.0, 2.0, 4.0, 8.0] {
        let is_set = codes
            .and(&trace.full(bit, shape)?)?
            .compare_scalar(Comparison::Ne, 0.0)?;
        level = level
            .chunks(2)
            .map(|pair| is_set.select(&pair[1], &pair[0]))
            .collect::<Result<_>>()?;
    }
    Ok(level.swap_remove(0))
}

impl Tensor {
    /// The values of what is held in few bits, of which these are the codes ([`Dequantize`] has the other
    /// operands). No gradient goes through it.
    ///
    /// # Errors
    /// If an operand has another type or shape.
    #[track_caller]
    pub fn dequantize(&self, of: Dequantize, others: &[&Tensor]) -> Result<Tensor> {
        self.apply(Op::Composite(Composite::Dequantize(of)), others)
    }
}
