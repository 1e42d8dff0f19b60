//! How many bytes a kernel of a compiled module reads and writes. Each operand and each result
//! counts once, and of an array of which only a row is read or replaced (a layer's, in a loop over
//! layers) only the row does.

use super::{Computation, Instruction, Shape, array_bytes};
use std::collections::HashMap;

/// Bytes of each value of the computations that were asked for, by computation and instruction.
#[derive(Default)]
pub(super) struct Sizes(HashMap<i64, HashMap<i64, f64>>);

impl Sizes {
    pub fn of(&mut self, computation: &Computation) -> &HashMap<i64, f64> {
        let measured = || {
            let instructions = computation.instructions.iter();
            instructions.map(|i| (i.id, bytes_of(i))).collect()
        };
        self.0.entry(computation.id).or_insert_with(measured)
    }
}

/// Of one instruction, given the sizes of its computation's values.
pub(super) fn of(
    instruction: &Instruction,
    sizes: &HashMap<i64, f64>,
    all: &HashMap<i64, &Computation>,
) -> f64 {
    let size = |id: &i64| sizes.get(id).copied().unwrap_or_default();
    let operands = || instruction.operand_ids.iter().map(size);
    let inner = instruction
        .called_computation_ids
        .first()
        .and_then(|id| all.get(id));
    match (instruction.opcode.as_str(), inner) {
        ("dynamic-slice", _) => 2.0 * bytes_of(instruction),
        ("dynamic-update-slice", _) => 2.0 * operands().nth(1).unwrap_or_default(),
        ("fusion", Some(inner)) => {
            let read: f64 = operands()
                .enumerate()
                .map(|(number, whole)| read_by_fusion(number as i64, whole, inner))
                .sum();
            read + written_by_fusion(bytes_of(instruction), inner)
        }
        _ => operands().sum::<f64>() + bytes_of(instruction),
    }
}

/// What a fusion reads of an operand.
fn read_by_fusion(number: i64, whole: f64, inner: &Computation) -> f64 {
    let parameter = inner
        .instructions
        .iter()
        .find(|i| i.opcode == "parameter" && i.parameter_number == number);
    let Some(parameter) = parameter else {
        return whole;
    };
    let mut read = 0.0;
    for user in inner
        .instructions
        .iter()
        .filter(|i| i.operand_ids.contains(&parameter.id))
    {
        read += match (
            user.opcode.as_str(),
            user.operand_ids.first() == Some(&parameter.id),
        ) {
            ("dynamic-slice", true) => bytes_of(user),
            // It is replaced in place.
            ("dynamic-update-slice", true) => 0.0,
            _ => return whole,
        };
    }
    read.min(whole)
}

/// What a fusion writes of its result.
fn written_by_fusion(whole: f64, inner: &Computation) -> f64 {
    let find = |id: i64| inner.instructions.iter().find(|i| i.id == id);
    let mut root = find(inner.root_id);
    while let Some(renamed) = root.filter(|root| root.opcode == "bitcast") {
        root = renamed.operand_ids.first().and_then(|&id| find(id));
    }
    match root.filter(|root| root.opcode == "dynamic-update-slice") {
        Some(update) => update
            .operand_ids
            .get(1)
            .and_then(|&id| find(id))
            .map_or(whole, bytes_of),
        None => whole,
    }
}

/// Bytes of an instruction's result.
pub(super) fn bytes_of(instruction: &Instruction) -> f64 {
    instruction.shape.as_ref().map_or(0.0, shape_bytes)
}

fn shape_bytes(shape: &Shape) -> f64 {
    let inner: f64 = shape.tuple_shapes.iter().map(shape_bytes).sum();
    inner + array_bytes(shape) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f32[rows, 100]`.
    fn array(id: i64, opcode: &str, rows: i64, operands: &[i64]) -> Instruction {
        let shape = Shape {
            element_type: 11,
            dimensions: vec![rows, 100],
            ..Default::default()
        };
        Instruction {
            opcode: opcode.into(),
            shape: Some(shape),
            id,
            operand_ids: operands.into(),
            ..Default::default()
        }
    }

    /// A fusion that reads one row of 50, doubles it and puts it into another array of 50 rows.
    #[test]
    fn of_a_stack_one_row_counts() {
        let parameter = |id, number, rows| Instruction {
            parameter_number: number,
            ..array(id, "parameter", rows, &[])
        };
        let instructions = vec![
            parameter(1, 0, 50),
            parameter(2, 1, 50),
            parameter(3, 2, 1),
            array(4, "dynamic-slice", 1, &[1, 3]),
            array(5, "add", 1, &[4, 4]),
            array(6, "dynamic-update-slice", 50, &[2, 5, 3]),
            array(7, "bitcast", 50, &[6]),
        ];
        let inner = Computation {
            id: 9,
            root_id: 7,
            instructions,
            ..Default::default()
        };
        let fusion = Instruction {
            called_computation_ids: vec![9],
            ..array(20, "fusion", 50, &[11, 12, 13])
        };
        let sizes = HashMap::from([(11, 20_000.0), (12, 20_000.0), (13, 400.0)]);
        // The row in, the row out, and the index, which is read whole: it is no stack.
        assert_eq!(
            of(&fusion, &sizes, &HashMap::from([(9, &inner)])),
            400.0 + 400.0 + 400.0
        );
        let plain = array(20, "add", 50, &[11, 12]);
        assert_eq!(of(&plain, &sizes, &HashMap::new()), 60_000.0);
    }
}
