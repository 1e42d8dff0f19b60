//! What XLA:GPU made of a module, counted on the optimized module: which kernels there are, and how
//! many bytes they move.
//!
//! Only what runs is counted: the entry computation and what it calls; what lies inside a fusion is
//! one kernel. A loop's kernels count once, their bytes as often as they run.

use super::launched::{computations, is_name_only, launched};
use super::memory_traffic::{self, Sizes};
use super::{Computation, Instruction, Precision, PrimitiveType, config};
use crate::error::Result;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Kernels of a compiled module by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HloStats {
    /// Calls of cuDNN's fused attention, forward and backward.
    pub attention_calls: usize,
    /// Matrix products that are calls of cuBLAS.
    pub gemm_calls: usize,
    /// Fusions around a matrix product, written by XLA's Triton emitter.
    pub triton_gemms: usize,
    /// Other fusions of the Triton emitter (softmax and norms, mostly).
    pub triton_fusions: usize,
    /// Loop, reduction, transposition and other fusions.
    pub fusions: usize,
    /// Copies, alone or as all that a fusion does.
    pub copies: usize,
    pub transposes: usize,
    /// Products that are in no call and no fusion.
    pub plain_products: usize,
    /// Products of f32, in whichever kernel, whose operands may be rounded to TF32.
    pub tf32_products: usize,
    /// Products of f32 whose operands may not.
    pub exact_products: usize,
    /// What kernels of products do behind the product: an epilogue of cuBLAS's by its name, or an
    /// operation of a Triton fusion, with how many kernels do it.
    pub epilogues: BTreeMap<String, usize>,
    /// All other custom calls by target.
    pub other_calls: BTreeMap<String, usize>,
    /// Bytes that kernels read and write, each operand and each result counted once.
    pub bytes: f64,
}

/// Counts a serialized HloModuleProto.
pub fn of(module: &[u8]) -> Result<HloStats> {
    let module = super::read(module)?;
    let computations = computations(&module);
    let (mut stats, mut sizes) = (HloStats::default(), Sizes::default());
    for launch in launched(&module)? {
        let instruction = launch.instruction;
        let sizes = sizes.of(launch.around);
        stats.bytes += launch.times * memory_traffic::of(instruction, sizes, &computations);
        stats.count(instruction, launch.around, &computations);
    }
    Ok(stats)
}

/// Whether a product's first operand is f32.
fn multiplies_f32(product: &Instruction, around: &Computation) -> bool {
    let first = product
        .operand_ids
        .first()
        .and_then(|id| around.instructions.iter().find(|i| i.id == *id));
    first
        .and_then(|operand| operand.shape.as_ref())
        .is_some_and(|shape| shape.element_type() == PrimitiveType::F32)
}

impl HloStats {
    fn count(
        &mut self,
        instruction: &Instruction,
        around: &Computation,
        computations: &HashMap<i64, &Computation>,
    ) {
        match instruction.opcode.as_str() {
            "custom-call" => {
                let target = instruction.custom_call_target.as_str();
                if target.starts_with("__cudnn$fmha") {
                    self.attention_calls += 1;
                } else if target.starts_with("__cublas$") {
                    self.gemm_calls += 1;
                    self.count_call(instruction, around);
                } else {
                    *self.other_calls.entry(target.to_string()).or_default() += 1;
                }
            }
            "fusion" => {
                let inner = instruction
                    .called_computation_ids
                    .iter()
                    .filter_map(|id| computations.get(id));
                let inner: Vec<&Computation> = inner.copied().collect();
                let opcodes: Vec<&str> = inner
                    .iter()
                    .flat_map(|c| &c.instructions)
                    .map(|i| i.opcode.as_str())
                    .collect();
                let does_only = |what: &str| {
                    opcodes.iter().all(|o| *o == what || is_name_only(o)) && opcodes.contains(&what)
                };
                let kind = fusion_kind(instruction);
                if kind.contains("gemm") {
                    self.triton_gemms += 1;
                    inner
                        .iter()
                        .for_each(|computation| self.count_fused_product(computation));
                } else if kind.starts_with("__triton") {
                    self.triton_fusions += 1;
                } else if does_only("copy") {
                    self.copies += 1;
                } else if does_only("transpose") {
                    self.transposes += 1;
                } else {
                    self.fusions += 1;
                }
            }
            "copy" | "copy-start" => self.copies += 1,
            "transpose" => self.transposes += 1,
            "dot" => {
                self.plain_products += 1;
                self.count_product(instruction, around);
            }
            _ => {}
        }
    }

    /// A call of cuBLAS says in its attributes how exact it is and what it does besides.
    fn count_call(&mut self, call: &Instruction, around: &Computation) {
        let config = &config(call)["gemm_backend_config"];
        let epilogue = config["epilogue"].as_str().unwrap_or("DEFAULT");
        if epilogue != "DEFAULT" {
            *self.epilogues.entry(epilogue.to_lowercase()).or_default() += 1;
        }
        if multiplies_f32(call, around) {
            let precisions = config["precision_config"]["operand_precision"].as_array();
            self.count_f32(
                precisions.is_some_and(|of| of.iter().any(|precision| precision == "HIGHEST")),
            );
        }
    }

    /// The products in a fusion, and the operations behind them, which need no further kernel.
    fn count_fused_product(&mut self, fusion: &Computation) {
        let Some(position) = fusion.instructions.iter().position(|i| i.opcode == "dot") else {
            return;
        };
        self.count_product(&fusion.instructions[position], fusion);
        let behind = fusion.instructions[position + 1..]
            .iter()
            .map(|i| i.opcode.as_str());
        let behind: BTreeSet<&str> = behind
            .filter(|opcode| !is_name_only(opcode) && *opcode != "broadcast")
            .collect();
        behind
            .into_iter()
            .for_each(|opcode| *self.epilogues.entry(opcode.to_string()).or_default() += 1);
    }

    fn count_product(&mut self, product: &Instruction, around: &Computation) {
        if multiplies_f32(product, around) {
            let precisions = product
                .precision_config
                .as_ref()
                .map(|config| &config.operand_precision[..])
                .unwrap_or_default();
            self.count_f32(precisions.contains(&(Precision::Highest as i32)));
        }
    }

    fn count_f32(&mut self, is_exact: bool) {
        if is_exact {
            self.exact_products += 1
        } else {
            self.tf32_products += 1
        }
    }
}

/// The emitter of a fusion, as in `{"fusion_backend_config":{"kind":"__triton_gemm"}}`; empty if it
/// has none.
pub(super) fn fusion_kind(instruction: &Instruction) -> String {
    config(instruction)["fusion_backend_config"]["kind"]
        .as_str()
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::super::{Module, PrecisionConfig, Shape};
    use super::*;
    use prost::Message;

    /// `f32[1000]`.
    fn instruction(id: i64, opcode: &str, operands: &[i64], calls: &[i64]) -> Instruction {
        let shape = Shape {
            element_type: PrimitiveType::F32.into(),
            dimensions: vec![1000],
            ..Default::default()
        };
        Instruction {
            opcode: opcode.into(),
            shape: Some(shape),
            id,
            operand_ids: operands.into(),
            called_computation_ids: calls.into(),
            ..Default::default()
        }
    }

    #[test]
    fn kernels_count_where_they_run_and_by_kind() {
        let call = |id, target: &str| Instruction {
            custom_call_target: target.into(),
            ..instruction(id, "custom-call", &[1], &[])
        };
        let gemm = r#"{"gemm_backend_config":{"epilogue":"BIAS","precision_config":{"operand_precision":["HIGHEST","HIGHEST"]}}}"#;
        let fusion = |id, inner, kind: &str| Instruction {
            backend_config: format!(r#"{{"fusion_backend_config":{{"kind":"{kind}"}}}}"#)
                .into_bytes(),
            ..instruction(id, "fusion", &[1], &[inner])
        };
        let entry = Computation {
            id: 1,
            instructions: vec![
                instruction(1, "parameter", &[], &[]),
                call(2, "__cudnn$fmhaSoftmaxBackward"),
                Instruction {
                    backend_config: gemm.into(),
                    ..call(3, "__cublas$lt$matmul")
                },
                call(4, "mine"),
                fusion(5, 2, "__triton_gemm"),
                fusion(6, 2, "__triton"),
                fusion(7, 2, ""),
                fusion(8, 3, ""),
                Instruction {
                    backend_config: br#"{"known_trip_count":{"n":"5"}}"#.into(),
                    ..instruction(9, "while", &[1], &[4])
                },
                instruction(10, "bitcast", &[9], &[]),
            ],
            ..Default::default()
        };
        let computation = |id, instructions: &[Instruction]| Computation {
            id,
            instructions: [&[instruction(1, "parameter", &[], &[])], instructions].concat(),
            ..Default::default()
        };
        let exact = Some(PrecisionConfig {
            operand_precision: vec![Precision::Highest.into(); 2],
            ..Default::default()
        });
        let product = |precision_config| Instruction {
            precision_config,
            ..instruction(2, "dot", &[1, 1], &[])
        };
        let inside = computation(
            2,
            &[
                product(exact),
                instruction(3, "broadcast", &[1], &[]),
                instruction(4, "add", &[2, 3], &[]),
            ],
        );
        let copy = computation(3, &[instruction(2, "copy", &[1], &[])]);
        let body = computation(4, &[product(None)]);
        let module = Module {
            computations: vec![inside, copy, body, entry],
            entry_computation_id: 1,
            ..Default::default()
        };
        let stats = of(&module.encode_to_vec()).unwrap();
        // Seven kernels that read one array and write one, and the product in the loop, which reads
        // two, five times.
        let bytes = (7.0 * 2.0 + 5.0 * 3.0) * 4000.0;
        let other_calls = BTreeMap::from([("mine".to_string(), 1)]);
        let expected = HloStats {
            attention_calls: 1,
            gemm_calls: 1,
            triton_gemms: 1,
            triton_fusions: 1,
            fusions: 1,
            copies: 1,
            transposes: 0,
            plain_products: 1,
            tf32_products: 1,
            exact_products: 2,
            epilogues: BTreeMap::from([("add".to_string(), 1), ("bias".to_string(), 1)]),
            other_calls,
            bytes,
        };
        assert_eq!(stats, expected);
    }
}
