//! Element-wise operations in one pass over memory by the CPU plugin (`native/cpp/kernels/one_pass.h`).

use super::spec::{CallSpec, Emission, array};
use crate::dtype::DType;
use crate::op::attributes::{Binary, F64, Gelu, Unary};
use crate::op::block_codes::{BlockCodes, DynamicMap};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Element-wise steps over arrays of one shape and over scalars, and sums over all their elements, in one
/// pass over memory. Operands are f32, bf16 or u8 arrays of `dims`, f32 arrays of `blocks`, `f32[]`, or
/// arrays of any shape of which a view is read; every value in between is f32.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OnePass {
    /// The dimensions of every array operand and result.
    pub dims: Vec<usize>,
    /// The dimensions of operands and results with an element for each block of 256; none: there are no
    /// such.
    pub blocks: Vec<usize>,
    /// Of each operand, where the elements lie in it; `None`, or no entry: it is of one of the shapes above.
    pub views: Vec<Option<PassView>>,
    /// In the order of computation.
    pub steps: Vec<Step>,
    /// What the call gives, in order.
    pub results: Vec<PassResult>,
    /// Arrays of which results are parts. The call gives them behind the other results.
    pub arrays: Vec<Shape>,
}

/// Where the elements of an array of a [`OnePass`]'s dimensions lie in another one, f32 or bf16.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PassView {
    /// Of the first element.
    pub offset: usize,
    /// For each dimension the distance of neighbours, in elements: 1 for the last, 0 where the same is read
    /// again.
    pub strides: Vec<usize>,
}

impl PassView {
    /// Of an array of these dimensions itself.
    pub fn plain(dims: &[usize]) -> Self {
        let mut strides = vec![1; dims.len()];
        for dim in (1..dims.len()).rev() {
            strides[dim - 1] = strides[dim] * dims[dim];
        }
        PassView { offset: 0, strides }
    }

    /// Whether an array of this shape has all elements.
    fn fits(&self, dims: &[usize], array: &Shape) -> bool {
        let is_float = matches!(array.dtype, DType::F32 | DType::BF16);
        let reach = dims.iter().zip(&self.strides);
        let last: usize = reach
            .map(|(&size, stride)| (size.max(1) - 1) * stride)
            .sum();
        let in_rows = self.strides.last() == Some(&1);
        let is_inside = dims.contains(&0) || self.offset + last < array.elements();
        is_float && in_rows && is_inside && self.strides.len() == dims.len()
    }
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
    /// The Gaussian error linear unit of a value.
    Gelu(Gelu, u32),
    /// Its derivative there.
    GeluSlope(Gelu, u32),
}

/// A step that no primitive is, as a node ([`Op::PassStep`](crate::op::Op::PassStep)).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PassStep {
    /// [`Step::Decode`], [`Step::Scales`] or [`Step::Encode`].
    Codes(BlockCodes),
    /// [`Step::Gelu`] of an f32 array.
    Gelu(Gelu),
    /// [`Step::GeluSlope`] of an f32 array.
    GeluSlope(Gelu),
}

impl PassStep {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            PassStep::Codes(part) => part.name(),
            PassStep::Gelu(_) => "gelu",
            PassStep::GeluSlope(_) => "gelu_slope",
        }
    }
}

/// A result of a [`OnePass`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PassResult {
    /// Number of the operand or step.
    pub value: u32,
    /// What the value becomes: an array or its sum.
    pub form: PassForm,
}

/// What a result of a [`OnePass`] is made of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PassForm {
    /// An array in f32, bf16 or u8; it takes the place of this operand, if one is named, which nothing
    /// else may need any more.
    Array(DType, Option<u32>),
    /// The same of an f32 array with an element for each block.
    Blocks(Option<u32>),
    /// The sum of all elements, `f32[]`.
    Sum,
    /// The elements that the view finds in one of the call's `arrays`.
    Part(u32, PassView),
}

impl CallSpec for OnePass {
    fn name(&self) -> &'static str {
        "one_pass"
    }

    fn results(&self, operands: &[&Shape]) -> Result<Vec<Shape>, String> {
        let takes = |(index, shape): (usize, &&Shape)| {
            if let Some(view) = self.view(index) {
                return view.fits(&self.dims, shape);
            }
            let is_array = shape.dims[..] == self.dims[..];
            let dtypes: &[DType] = if is_array {
                &[DType::F32, DType::BF16, DType::U8]
            } else {
                &[DType::F32]
            };
            let is_taken = is_array || shape.rank() == 0 || shape.dims[..] == self.blocks[..];
            is_taken && dtypes.contains(&shape.dtype)
        };
        if let Some((_, other)) = operands.iter().enumerate().find(|&operand| !takes(operand)) {
            return Err(format!(
                "takes arrays of {:?}, views of that and scalars, not {other}",
                self.dims
            ));
        }
        let reads = |step: &Step| match *step {
            Step::Constant(_) => vec![],
            Step::Unary(_, a)
            | Step::Round(a)
            | Step::Scales(_, a)
            | Step::Gelu(_, a)
            | Step::GeluSlope(_, a) => vec![a],
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
            let replaces = match &result.form {
                PassForm::Array(dtype, operand) => replaces(*operand, *dtype, &self.dims),
                PassForm::Blocks(operand) => replaces(*operand, DType::F32, &self.blocks),
                PassForm::Sum => true,
                PassForm::Part(array, view) => (self.arrays.get(*array as usize))
                    .is_some_and(|array| view.fits(&self.dims, array)),
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
        for (index, array) in self.arrays.iter().enumerate() {
            let is_part = |result: &&PassResult| matches!(result.form, PassForm::Part(of, _) if of as usize == index);
            let parts = self.results.iter().filter(is_part).count();
            if parts * self.dims.iter().product::<usize>() != array.elements() {
                return Err(format!("{parts} results do not fill {array}"));
            }
        }
        let shape = |result: &PassResult| match result.form {
            PassForm::Array(dtype, _) => Some(Shape::new(dtype, &self.dims[..])),
            PassForm::Blocks(_) => Some(Shape::new(DType::F32, &self.blocks[..])),
            PassForm::Sum => Some(Shape::new(DType::F32, [])),
            PassForm::Part(..) => None,
        };
        let whole = self.results.iter().filter_map(shape);
        Ok(whole.chain(self.arrays.iter().cloned()).collect())
    }

    fn is_tuple(&self) -> bool {
        true
    }

    fn aliases(&self) -> Vec<(usize, usize)> {
        let is_whole = |result: &&PassResult| !matches!(result.form, PassForm::Part(..));
        let results = self.results.iter().filter(is_whole).enumerate();
        let replaced = results.filter_map(|(index, result)| match result.form {
            PassForm::Array(_, operand) | PassForm::Blocks(operand) => {
                Some((index, operand? as usize))
            }
            PassForm::Sum | PassForm::Part(..) => None,
        });
        replaced.collect()
    }

    fn emission(&self, operands: &[&Shape]) -> Result<Emission, String> {
        let steps = self.steps.iter().map(step);
        let steps = steps.collect::<Result<Vec<[i64; 4]>, String>>()?.concat();
        // Each operand and result: its value, if it is a result, its kind, and where its elements lie.
        let plain = PassView::plain(&self.dims);
        let mut places = Vec::new();
        for (index, shape) in operands.iter().enumerate() {
            let place = match self.view(index) {
                Some(view) => (0, Some(view)),
                None if shape.dims[..] == self.dims[..] => (0, Some(&plain)),
                None if shape.rank() == 0 => (1, None),
                None => (2, None),
            };
            places.push((None, place));
        }
        for result in &self.results {
            let place = match &result.form {
                PassForm::Array(..) => (0, Some(&plain)),
                PassForm::Sum => (1, None),
                PassForm::Blocks(_) => (2, None),
                PassForm::Part(array, view) => (3 + i64::from(*array), Some(view)),
            };
            places.push((Some(i64::from(result.value)), place));
        }
        let kept = self.rows();
        let sizes: Vec<usize> = kept.iter().map(|&(_, size)| size).collect();
        let attribute = |(value, (kind, view)): &(Option<i64>, (i64, Option<&PassView>))| {
            let at = |dim: usize| view.map_or(0, |view| view.strides[dim] as i64);
            let strides = kept[..kept.len() - 1].iter().map(|&(dim, _)| at(dim));
            let offset = view.map_or(0, |view| view.offset as i64);
            let all = value.iter().copied().chain([*kind, offset]);
            all.chain(strides).collect::<Vec<i64>>()
        };
        let [of_operands, of_results] = [&places[..operands.len()], &places[operands.len()..]]
            .map(|places| places.iter().flat_map(attribute).collect::<Vec<i64>>());
        if !self.is_possible() {
            return Err(format!(
                "rows of {sizes:?} have more than {MOST_SIZES} sizes"
            ));
        }
        let config = format!(
            "{{sizes = {}, steps = {}, operands = {}, results = {}}}",
            array(&sizes),
            array(&steps),
            array(&of_operands),
            array(&of_results),
        );
        Ok(Emission::new("xtrain.one_pass", config))
    }
}

/// As many sizes as a call may have, as `native/cpp/kernels/one_pass.h` has it.
const MOST_SIZES: usize = 8;

impl OnePass {
    /// The view that is read of an operand.
    fn view(&self, operand: usize) -> Option<&PassView> {
        self.views.get(operand)?.as_ref()
    }

    /// Whether the call has room for the sizes of its rows.
    pub(crate) fn is_possible(&self) -> bool {
        self.rows().len() <= MOST_SIZES
    }

    /// The dimensions with neighbours merged that are one in all views: of each the last of its dimensions,
    /// whose strides it has, and its size. There is at least one.
    fn rows(&self) -> Vec<(usize, usize)> {
        let written = self.results.iter().filter_map(|result| match &result.form {
            PassForm::Part(_, view) => Some(view),
            _ => None,
        });
        let views: Vec<&PassView> = self.views.iter().flatten().chain(written).collect();
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for (dim, &size) in self.dims.iter().enumerate() {
            let is_one = |outer: usize| {
                let fits = |view: &&PassView| view.strides[outer] == view.strides[dim] * size;
                views.iter().all(fits)
            };
            match kept.last_mut() {
                // A dimension of one element has any stride but the last's.
                _ if size == 1 && dim + 1 < self.dims.len() => {}
                Some((outer, all)) if is_one(*outer) => (*outer, *all) = (dim, *all * size),
                _ => kept.push((dim, size)),
            }
        }
        kept
    }
}

/// The steps' kinds, as `native/cpp/kernels/one_pass.h` numbers them; `passes/one_pass` takes no
/// other operations.
const UNARY: [(Unary, i64); 6] = [
    (Unary::Logistic, 19),
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
        Step::Gelu(Gelu::Erf, a) => (Some(20), [a, 0, 0]),
        Step::Gelu(Gelu::Tanh, a) => (Some(21), [a, 0, 0]),
        Step::GeluSlope(Gelu::Erf, a) => (Some(22), [a, 0, 0]),
        Step::GeluSlope(Gelu::Tanh, a) => (Some(23), [a, 0, 0]),
    };
    let kind = kind.ok_or_else(|| format!("{step:?} is no step of a pass"))?;
    Ok([kind, a.into(), b.into(), c.into()])
}

fn number<T: PartialEq>(table: &[(T, i64)], op: T) -> Option<i64> {
    let entry = table.iter().find(|(known, _)| *known == op);
    entry.map(|(_, number)| *number)
}
