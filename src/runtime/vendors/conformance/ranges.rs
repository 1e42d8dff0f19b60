//! What the integers of a module can be: an interval for each instruction, from constants, iotas
//! and clamps forwards. An index that cannot be shown to lie inside of its table may stop a run on
//! hardware that does not clamp.

use super::table::element;
use crate::hlo::{Computation, Instruction};
use std::collections::HashMap;

/// Both ends are in it.
pub(super) type Range = (i64, i64);

/// The intervals of a computation's integer instructions, by id.
pub(super) fn of(computation: &Computation) -> HashMap<i64, Range> {
    let mut ranges: HashMap<i64, Range> = HashMap::new();
    // Operands precede their users in a serialized computation.
    for instruction in &computation.instructions {
        let Some(all) = everything(instruction) else {
            continue;
        };
        let operand = |i: usize| {
            instruction
                .operand_ids
                .get(i)
                .and_then(|id| ranges.get(id))
                .copied()
        };
        let found =
            range(instruction, all, &operand).filter(|found| all.0 <= found.0 && found.1 <= all.1);
        // What leaves the type wraps, and then can be anything.
        ranges.insert(instruction.id, found.unwrap_or(all));
    }
    ranges
}

/// Everything that the type can hold; `None` for what is no integer.
pub(super) fn everything(instruction: &Instruction) -> Option<Range> {
    match instruction.shape.as_ref()?.element_type {
        element::PRED => Some((0, 1)),
        element::S32 => Some((i32::MIN.into(), i32::MAX.into())),
        element::U32 => Some((0, u32::MAX.into())),
        element::U8 => Some((0, u8::MAX.into())),
        element::S64 => Some((i64::MIN, i64::MAX)),
        element::U64 => Some((0, i64::MAX)),
        _ => None,
    }
}

fn range(
    instruction: &Instruction,
    all: Range,
    operand: &dyn Fn(usize) -> Option<Range>,
) -> Option<Range> {
    let both = |combine: fn(Range, Range) -> Option<Range>| combine(operand(0)?, operand(1)?);
    let union = |parts: std::ops::Range<usize>| {
        let mut parts = parts.map(operand);
        parts.try_fold((i64::MAX, i64::MIN), |sum, part| {
            part.map(|part| (sum.0.min(part.0), sum.1.max(part.1)))
        })
    };
    match instruction.opcode.as_str() {
        "constant" => literal(instruction),
        "iota" => {
            let dim = usize::try_from(*instruction.dimensions.first()?).ok()?;
            Some((
                0,
                (instruction.shape.as_ref()?.dimensions.get(dim)? - 1).max(0),
            ))
        }
        "broadcast" | "reshape" | "transpose" | "slice" | "copy" | "reverse" | "gather"
        | "convert" | "opt-barrier" => operand(0),
        "concatenate" => union(0..instruction.operand_ids.len()),
        "pad" => union(0..2),
        "select" => union(1..3),
        "maximum" => both(|a, b| Some((a.0.max(b.0), a.1.max(b.1)))),
        "minimum" => both(|a, b| Some((a.0.min(b.0), a.1.min(b.1)))),
        "clamp" => {
            let (low, x, high) = (operand(0)?, operand(1)?, operand(2)?);
            Some((x.0.max(low.0).min(high.0), x.1.max(low.1).min(high.1)))
        }
        "add" => both(|a, b| Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?))),
        "subtract" => both(|a, b| Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?))),
        "multiply" => both(|a, b| {
            let products = [
                a.0.checked_mul(b.0)?,
                a.0.checked_mul(b.1)?,
                a.1.checked_mul(b.0)?,
                a.1.checked_mul(b.1)?,
            ];
            Some((*products.iter().min()?, *products.iter().max()?))
        }),
        "negate" => operand(0).and_then(|a| Some((a.1.checked_neg()?, a.0.checked_neg()?))),
        // Of what is not negative, the smaller bounds the bits that are left.
        "and" => both(|a, b| (a.0 >= 0 && b.0 >= 0).then(|| (0, a.1.min(b.1)))),
        "compare" => Some(all),
        _ => None,
    }
}

/// The smallest and the largest integer of a constant.
pub(super) fn literal(instruction: &Instruction) -> Option<Range> {
    let literal = instruction.literal.as_ref()?;
    let values = literal.s32s.iter().map(|&v| i64::from(v));
    let values = values
        .chain(literal.s64s.iter().copied())
        .chain(literal.u32s.iter().map(|&v| i64::from(v)));
    let values = values.chain(
        literal
            .u64s
            .iter()
            .map(|&v| i64::try_from(v).unwrap_or(i64::MAX)),
    );
    values.fold(None, |range, v| {
        Some(range.map_or((v, v), |(low, high): Range| (low.min(v), high.max(v))))
    })
}
