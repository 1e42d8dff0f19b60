//! Element-wise operations in one pass over memory by the CPU plugin (`native/cpp/kernels/one_pass.h`).

use super::spec::{CallSpec, Emission, array};
use crate::dtype::DType;
use crate::op::attributes::{Binary, F64, Unary};
use crate::op::block_codes::DynamicMap;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Element-wise steps over arrays of one shape and over scalars, and sums over all their elements, in one
/// pass over memory. Operands are f32, bf16 or u8 arrays of `dims`, f32 arrays of `blocks` or `f32[]`; every value in
/// between is f32.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnePass {
    /// The dimensions of every array operand and result.
    pub dims: Vec<usize>,
    /// The dimensions of operands and results with an element for each block of 256; none: there are no
    /// such.
    pub blocks: Vec<usize>,
    /// In the order of computation.
    pub steps: Vec<Step>,
    /// What the call gives, in order.
    pub results: Vec<PassResult>,
}

/// One step of a [`OnePass`]. Values are numbered, the operands first, then the steps in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// The same f32 for every element.
    Constant(F64),
    /// The function of a value.
    Unary(Unary, u32),
    /// Rounds to bf16.
    Round(u32),
    /// The function of two values.
    Binary(Binary, u32, u32),
    /// The second where the first is not 0, else the third.
    Select(u32, u32, u32),
    /// [`BlockCodes::Decode`](crate::op::BlockCodes::Decode) of codes and scales.
    Decode(DynamicMap, u32, u32),
    /// [`BlockCodes::Scales`](crate::op::BlockCodes::Scales) with this floor.
    Scales(F64, u32),
    /// [`BlockCodes::Encode`](crate::op::BlockCodes::Encode) of values and scales.
    Encode(DynamicMap, u32, u32),
}

/// A result of a [`OnePass`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PassResult {
    /// Number of the operand or step.
    pub value: u32,
    /// What the value becomes: an array or its sum.
    pub form: PassForm,
}

/// What a result of a [`OnePass`] is made of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PassForm {
    /// An array in f32, bf16 or u8; it takes the place of this operand, if one is named, which nothing
    /// else may need any more.
    Array(DType, Option<u32>),
    /// The same of an f32 array with an element for each block.
    Blocks(Option<u32>),
    /// The sum of all elements, `f32[]`.
    Sum,
}

impl CallSpec for OnePass {
    fn name(&self) -> &'static str {
        "one_pass"
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let takes = |shape: &Shape| {
            let is_array = shape.dims[..] == self.dims[..];
            let dtypes: &[DType] = if is_array {
                &[DType::F32, DType::BF16, DType::U8]
            } else {
                &[DType::F32]
            };
            let is_taken = is_array || shape.rank() == 0 || shape.dims[..] == self.blocks[..];
            is_taken && dtypes.contains(&shape.dtype)
        };
        if let Some(other) = operands.iter().find(|shape| !takes(shape)) {
            return Err(format!(
                "takes arrays of {:?} and scalars, not {other}",
                self.dims
            ));
        }
        let reads = |step: &Step| match *step {
            Step::Constant(_) => vec![],
            Step::Unary(_, a) | Step::Round(a) | Step::Scales(_, a) => vec![a],
            Step::Binary(_, a, b) | Step::Decode(_, a, b) | Step::Encode(_, a, b) => vec![a, b],
            Step::Select(a, b, c) => vec![a, b, c],
        };
        let known = |values: usize| move |value: &u32| (*value as usize) < values;
        let are_steps_known = (self.steps.iter().enumerate())
            .all(|(index, step)| reads(step).iter().all(known(operands.len() + index)));
        let values = operands.len() + self.steps.len();
        let is_result_known = |result: &PassResult| {
            let replaces = |operand: Option<u32>, dtype: DType, dims: &[usize]| {
                operand.is_none_or(|operand| {
                    let replaced = operands.get(operand as usize);
                    replaced.is_some_and(|x| x.dtype == dtype && x.dims[..] == *dims)
                })
            };
            let replaces = match result.form {
                PassForm::Array(dtype, operand) => replaces(operand, dtype, &self.dims),
                PassForm::Blocks(operand) => replaces(operand, DType::F32, &self.blocks),
                PassForm::Sum => true,
            };
            // An f32 operand as it is could be read where it is overwritten; bf16 is converted first.
            let is_kept = operands
                .get(result.value as usize)
                .is_none_or(|x| x.dtype == DType::BF16);
            is_kept && (result.value as usize) < values && replaces
        };
        if !are_steps_known || !self.results.iter().all(is_result_known) {
            return Err("a step or a result names no value".into());
        }
        if self.results.is_empty() {
            return Err("has no result".into());
        }
        let shape = |result: &PassResult| match result.form {
            PassForm::Array(dtype, _) => Shape::new(dtype, &self.dims[..]),
            PassForm::Blocks(_) => Shape::new(DType::F32, &self.blocks[..]),
            PassForm::Sum => Shape::new(DType::F32, []),
        };
        Ok(self.results.iter().map(shape).collect())
    }

    fn is_tuple(&self) -> bool {
        true
    }

    fn aliases(&self) -> Vec<(usize, usize)> {
        let results = self.results.iter().enumerate();
        let replaced = results.filter_map(|(index, result)| match result.form {
            PassForm::Array(_, operand) | PassForm::Blocks(operand) => {
                Some((index, operand? as usize))
            }
            PassForm::Sum => None,
        });
        replaced.collect()
    }

    fn emission(&self, _operands: &[&Shape]) -> Result<Emission, String> {
        let steps = self.steps.iter().map(step);
        let steps = steps.collect::<Result<Vec<[i64; 4]>, String>>()?.concat();
        let of_results = self.results.iter().flat_map(|result| {
            let form = match result.form {
                PassForm::Array(..) => 0,
                PassForm::Sum => 1,
                PassForm::Blocks(_) => 2,
            };
            [i64::from(result.value), form]
        });
        let config = format!(
            "{{elements = {} : i64, steps = {}, results = {}}}",
            self.dims.iter().product::<usize>(),
            array(&steps),
            array(&of_results.collect::<Vec<i64>>()),
        );
        Ok(Emission::new("xtrain.one_pass", config))
    }
}

/// The steps' kinds, as `native/cpp/kernels/one_pass.h` numbers them; `passes/one_pass.rs` takes no
/// other operations.
const UNARY: [(Unary, i64); 5] = [
    (Unary::Neg, 3),
    (Unary::Abs, 4),
    (Unary::Sign, 5),
    (Unary::Sqrt, 6),
    (Unary::Rsqrt, 7),
];
const BINARY: [(Binary, i64); 6] = [
    (Binary::Add, 8),
    (Binary::Sub, 9),
    (Binary::Mul, 10),
    (Binary::Div, 11),
    (Binary::Max, 12),
    (Binary::Min, 13),
];

/// A step's kind and its three attributes.
fn step(step: &Step) -> Result<[i64; 4], String> {
    let (kind, [a, b, c]) = match *step {
        Step::Constant(value) => (Some(0), [(value.get() as f32).to_bits(), 0, 0]),
        Step::Round(a) => (Some(1), [a, 0, 0]),
        Step::Select(a, b, c) => (Some(2), [a, b, c]),
        Step::Unary(op, a) => (number(&UNARY, op), [a, 0, 0]),
        Step::Binary(op, a, b) => (number(&BINARY, op), [a, b, 0]),
        Step::Decode(DynamicMap::Signed, a, b) => (Some(14), [a, b, 0]),
        Step::Decode(DynamicMap::Unsigned, a, b) => (Some(15), [a, b, 0]),
        Step::Encode(DynamicMap::Signed, a, b) => (Some(16), [a, b, 0]),
        Step::Encode(DynamicMap::Unsigned, a, b) => (Some(17), [a, b, 0]),
        Step::Scales(floor, a) => (Some(18), [a, (floor.get() as f32).to_bits(), 0]),
    };
    let kind = kind.ok_or_else(|| format!("{step:?} is no step of a pass"))?;
    Ok([kind, a.into(), b.into(), c.into()])
}

fn number<T: PartialEq>(table: &[(T, i64)], op: T) -> Option<i64> {
    let entry = table.iter().find(|(known, _)| *known == op);
    entry.map(|(_, number)| *number)
}
