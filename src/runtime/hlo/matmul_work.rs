//! The floating-point operations of a launch's matmuls, read from the optimized module: of plain dots
//! and those in fusions from their dimensions, of library calls from their attributes.

use super::{Computation, Instruction, Precision, PrimitiveType, Shape, config};
use std::collections::HashMap;
use xtrain_graphs::op::{CallSpec, CpuKernel, F64, FusedAttention};
use xtrain_graphs::{DType, Shape as ArrayShape};

/// Fusions lie in fusions at most this deep.
const DEEPEST: usize = 8;

/// Floating-point operations: two for each pair of numbers that is multiplied and added.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MatmulWork {
    /// Of operands of 16 bits or fewer.
    pub low: f64,
    /// Of all others.
    pub wide: f64,
    /// Whether f32 operands may be rounded to TF32.
    pub rounds_f32: bool,
}

impl MatmulWork {
    /// All operations.
    pub fn flops(&self) -> f64 {
        self.low + self.wide
    }

    fn add(&mut self, flops: f64, operand: PrimitiveType, is_exact: bool) {
        match operand {
            PrimitiveType::F32 => {
                self.wide += flops;
                self.rounds_f32 |= !is_exact;
            }
            PrimitiveType::F64 => self.wide += flops,
            _ => self.low += flops,
        }
    }
}

/// Of one launch.
pub(super) fn of(
    instruction: &Instruction,
    around: &Computation,
    all: &HashMap<i64, &Computation>,
) -> MatmulWork {
    let mut work = MatmulWork::default();
    match instruction.opcode.as_str() {
        "custom-call" => of_call(instruction, around, &mut work),
        _ => of_dots(instruction, around, all, 0, &mut work),
    }
    work
}

fn of_dots(
    instruction: &Instruction,
    around: &Computation,
    all: &HashMap<i64, &Computation>,
    depth: usize,
    work: &mut MatmulWork,
) {
    if instruction.opcode == "dot" {
        let dims = instruction.dot_dimension_numbers.as_ref();
        let contracted = dims.map(|dims| &dims.lhs_contracting_dimensions[..]);
        let precisions = instruction.precision_config.as_ref();
        let precisions = precisions.map(|config| &config.operand_precision[..]);
        let is_exact = precisions.is_some_and(|all| all.contains(&(Precision::Highest as i32)));
        count(
            instruction,
            around,
            contracted.unwrap_or_default(),
            is_exact,
            work,
        );
    } else if instruction.opcode == "fusion" && depth < DEEPEST {
        let called = instruction.called_computation_ids.iter();
        for inner in called.filter_map(|id| all.get(id)) {
            for instruction in &inner.instructions {
                of_dots(instruction, inner, all, depth + 1, work);
            }
        }
    }
}

/// Counts a matmul whose left operand is the first one.
fn count(
    matmul: &Instruction,
    around: &Computation,
    contracted: &[i64],
    is_exact: bool,
    work: &mut MatmulWork,
) {
    let Some(left) = operand(matmul, around, 0) else {
        return;
    };
    let size = |dim: &i64| {
        usize::try_from(*dim)
            .ok()
            .and_then(|d| left.dimensions.get(d))
    };
    let contracted: f64 = contracted
        .iter()
        .filter_map(size)
        .map(|&n| n as f64)
        .product();
    let result = matmul.shape.as_ref().map_or(0.0, result_elements);
    work.add(2.0 * result * contracted, left.element_type(), is_exact);
}

/// The shape of an instruction's operand.
pub(super) fn operand<'c>(
    instruction: &Instruction,
    around: &'c Computation,
    number: usize,
) -> Option<&'c Shape> {
    let id = instruction.operand_ids.get(number)?;
    let found = around.instructions.iter().find(|i| i.id == *id)?;
    found.shape.as_ref()
}

/// Elements of an array, or of a tuple's first one: behind it are workspaces.
fn result_elements(shape: &Shape) -> f64 {
    match shape.tuple_shapes.first() {
        Some(first) => result_elements(first),
        None => shape.dimensions.iter().map(|&d| d as f64).product(),
    }
}

fn of_call(call: &Instruction, around: &Computation, work: &mut MatmulWork) {
    match call.custom_call_target.as_str() {
        target if target.starts_with("__cudnn$fmha") => {
            if let Some((flops, dtype)) = of_attention(call, around) {
                work.add(flops, dtype, false);
            }
        }
        target if target.starts_with("__cublas$") => {
            let config = &config(call)["gemm_backend_config"];
            let texts = |value: &serde_json::Value| -> Vec<String> {
                let all = value.as_array().into_iter().flatten();
                all.filter_map(|text| text.as_str().map(str::to_string))
                    .collect()
            };
            let dims = &config["dot_dimension_numbers"]["lhs_contracting_dimensions"];
            let contracted: Vec<i64> = texts(dims).iter().flat_map(|d| d.parse()).collect();
            let precisions = texts(&config["precision_config"]["operand_precision"]);
            let is_exact = precisions.iter().any(|precision| precision == "HIGHEST");
            count(call, around, &contracted, is_exact, work);
        }
        // The CPU plugin's own kernels have their sizes in MLIR's words.
        "xtrain.matmul" | "xtrain.gemv" => {
            let text = String::from_utf8_lossy(&call.backend_config);
            let pairs: f64 = numbers(&text, "sizes").iter().product();
            work.add(2.0 * pairs, of_kernel(&text), true);
        }
        "xtrain.attention" => {
            let text = String::from_utf8_lossy(&call.backend_config);
            let [b, h, _, t, s, d] = numbers(&text, "sizes")[..] else {
                return;
            };
            // q, k and v forward; dy, the output and the statistics besides backward.
            let is_backward = numbers(&text, "layouts").len() > 3 * 4;
            let matmuls = if is_backward { 5.0 } else { 2.0 };
            let seen = if numbers(&text, "masks").first() == Some(&1.0) {
                0.5
            } else {
                1.0
            };
            work.add(
                2.0 * matmuls * b * h * t * s * d * seen,
                of_kernel(&text),
                true,
            );
        }
        _ => {}
    }
}

/// cuDNN skips what masks hide, which `CallSpec` knows.
fn of_attention(call: &Instruction, around: &Computation) -> Option<(f64, PrimitiveType)> {
    let config = &config(call)["cudnn_fmha_backend_config"];
    let query = operand(call, around, 0)?;
    // [B, H, T, S], whichever way q, k and v are laid out.
    let scores = config["intermediate_tensor_shape"]["dimensions"].as_array();
    let scores = scores.and_then(|dims| dims.last()?.as_str()?.parse::<usize>().ok());
    let keys = scores.or_else(|| {
        let key = operand(call, around, 1)?;
        usize::try_from(*key.dimensions.get(1)?).ok()
    })?;
    let window = config["sliding_window_length"]
        .as_u64()
        .filter(|&window| window > 0);
    let mask = config["mask_type"].as_str().unwrap_or_default();
    let attention = FusedAttention {
        is_backward: call.custom_call_target.ends_with("Backward"),
        scale: F64::new(1.0),
        causal: mask.ends_with("CAUSAL"),
        window: window.and_then(|window| u32::try_from(window).ok()),
        bias: false,
        dropout: None,
    };
    let dims = query.dimensions.iter().map(|&d| d.max(0) as usize);
    let shapes = [
        ArrayShape::new(DType::BF16, dims.collect::<Vec<usize>>()),
        ArrayShape::new(DType::BF16, [1, keys]),
    ];
    let (flops, _) = attention.flops(&[&shapes[0], &shapes[1]])?;
    Some((flops, query.element_type()))
}

/// The numbers of `name = array<i64: 1, 2>`.
fn numbers(text: &str, name: &str) -> Vec<f64> {
    let begin = format!("{name} = array<i64:");
    let list = text
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once('>'));
    let list = list.map_or("", |(list, _)| list);
    list.split(',')
        .flat_map(|number| number.trim().parse())
        .collect()
}

/// The type in which a kernel of the CPU plugin's multiplies.
fn of_kernel(text: &str) -> PrimitiveType {
    let number = text.split_once("kernel = ").map_or("", |(_, rest)| rest);
    let number = number.split(' ').next().and_then(|n| n.parse::<i64>().ok());
    let mut kernels = CpuKernel::ALL.into_iter();
    match kernels.find(|kernel| Some(kernel.number()) == number) {
        Some(kernel) if kernel.dtype() == DType::BF16 => PrimitiveType::Bf16,
        _ => PrimitiveType::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(id: i64, element: PrimitiveType, dimensions: &[i64]) -> Instruction {
        let shape = Shape {
            element_type: element.into(),
            dimensions: dimensions.into(),
            ..Default::default()
        };
        Instruction {
            opcode: "parameter".into(),
            shape: Some(shape),
            id,
            ..Default::default()
        }
    }

    fn call(target: &str, config: &str, result: Instruction) -> Instruction {
        Instruction {
            opcode: "custom-call".into(),
            custom_call_target: target.into(),
            backend_config: config.as_bytes().into(),
            operand_ids: vec![1, 2],
            ..result
        }
    }

    #[test]
    fn library_calls_have_the_flops_of_their_attributes() {
        let bf16 = PrimitiveType::Bf16;
        let around = |q: &[i64], k: &[i64], dtype| Computation {
            instructions: vec![array(1, dtype, q), array(2, dtype, k)],
            ..Default::default()
        };
        let none = HashMap::new();
        let gemm = r#"{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]},"precision_config":{"operand_precision":["DEFAULT"]}}}"#;
        let result = array(3, PrimitiveType::F32, &[5, 11]);
        let product = call("__cublas$lt$matmul", gemm, result);
        let found = of(
            &product,
            &around(&[5, 7], &[7, 11], PrimitiveType::F32),
            &none,
        );
        let flops = 2.0 * (5 * 7 * 11) as f64;
        let wanted = MatmulWork {
            low: 0.0,
            wide: flops,
            rounds_f32: true,
        };
        assert_eq!(found, wanted);

        // Heads before tokens, as JAX may write it: the scores have the number of keys.
        let fmha = r#"{"cudnn_fmha_backend_config":{"mask_type":"CAUSAL","sliding_window_length":0,"intermediate_tensor_shape":{"dimensions":["2","3","8","16"]}}}"#;
        let forward = call("__cudnn$fmhaSoftmax", fmha, array(3, bf16, &[2, 3, 8, 4]));
        let heads_first = around(&[2, 3, 8, 4], &[2, 3, 16, 4], bf16);
        let causal = 4.0 * (2 * 3 * 8 * 4) as f64 * 8.0;
        assert_eq!(of(&forward, &heads_first, &none).low, causal);
        let backward = call("__cudnn$fmhaSoftmaxBackward", fmha, array(3, bf16, &[1]));
        assert_eq!(of(&backward, &heads_first, &none).low, 2.5 * causal);

        let config = "{kernel = 2 : i64, start = 0 : i64, sizes = array<i64: 1, 1, 5, 11, 7>, a_strides = array<i64: 1>}";
        let kernel = call("xtrain.matmul", config, array(3, bf16, &[5, 11]));
        assert_eq!(of(&kernel, &heads_first, &none).low, flops);
    }
}
