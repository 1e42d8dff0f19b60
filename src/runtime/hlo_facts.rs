//! What XLA:GPU made of a module, counted on the optimized module: which kernels there are, and how many bytes they move.
//!
//! Only what runs is counted: the entry computation and what it calls, the body of a loop once; what lies inside a fusion is one
//! kernel.

use super::error::{Error, Result};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Kernels of a compiled module by kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HloFacts {
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
    /// All other custom calls by target.
    pub other_calls: BTreeMap<String, usize>,
    /// Bytes that kernels read and write, each operand and each result counted once.
    pub bytes: f64,
}

/// Counts a serialized HloModuleProto.
pub fn of(module: &[u8]) -> Result<HloFacts> {
    let module = proto::Module::decode(module).map_err(|e| Error::ModuleBytes { reason: e.to_string() })?;
    let computations: HashMap<i64, &proto::Computation> = module.computations.iter().map(|c| (c.id, c)).collect();
    let mut facts = HloFacts::default();
    let mut waiting = vec![module.entry_computation_id];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        let Some(computation) = computations.get(&id).filter(|_| seen.insert(id)) else { continue };
        let sizes: HashMap<i64, f64> = computation.instructions.iter().map(|i| (i.id, i.bytes())).collect();
        for instruction in &computation.instructions {
            if matches!(instruction.opcode.as_str(), "while" | "call" | "conditional" | "async-start") {
                waiting.extend(&instruction.called_computation_ids);
            } else if !is_name_only(&instruction.opcode) {
                let operands: f64 = instruction.operand_ids.iter().filter_map(|id| sizes.get(id)).sum();
                facts.bytes += operands + instruction.bytes();
                facts.count(instruction, &computations);
            }
        }
    }
    Ok(facts)
}

/// Instructions that no kernel stands for.
fn is_name_only(opcode: &str) -> bool {
    matches!(
        opcode,
        "parameter"
            | "constant"
            | "tuple"
            | "get-tuple-element"
            | "bitcast"
            | "after-all"
            | "opt-barrier"
            | "partition-id"
            | "replica-id"
    ) || opcode.ends_with("-done")
}

impl HloFacts {
    fn count(&mut self, instruction: &proto::Instruction, computations: &HashMap<i64, &proto::Computation>) {
        match instruction.opcode.as_str() {
            "custom-call" => {
                let target = instruction.custom_call_target.as_str();
                if target.starts_with("__cudnn$fmha") {
                    self.attention_calls += 1;
                } else if target.starts_with("__cublas$") {
                    self.gemm_calls += 1;
                } else {
                    *self.other_calls.entry(target.to_string()).or_default() += 1;
                }
            }
            "fusion" => {
                let inner = instruction.called_computation_ids.iter().filter_map(|id| computations.get(id));
                let opcodes: Vec<&str> = inner.flat_map(|c| &c.instructions).map(|i| i.opcode.as_str()).collect();
                let does_only = |what: &str| opcodes.iter().all(|o| *o == what || is_name_only(o)) && opcodes.contains(&what);
                let kind = instruction.fusion_kind();
                if kind.contains("gemm") {
                    self.triton_gemms += 1;
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
            "dot" => self.plain_products += 1,
            _ => {}
        }
    }
}

/// XLA's messages, cut down to what is read (field numbers: the descriptors in jax's plugin 0.11.2).
mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Module {
        #[prost(message, repeated, tag = "3")]
        pub computations: Vec<Computation>,
        #[prost(int64, tag = "6")]
        pub entry_computation_id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Computation {
        #[prost(message, repeated, tag = "2")]
        pub instructions: Vec<Instruction>,
        #[prost(int64, tag = "5")]
        pub id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Instruction {
        #[prost(string, tag = "2")]
        pub opcode: String,
        #[prost(message, optional, tag = "3")]
        pub shape: Option<Shape>,
        #[prost(string, tag = "28")]
        pub custom_call_target: String,
        #[prost(int64, tag = "35")]
        pub id: i64,
        #[prost(int64, repeated, tag = "36")]
        pub operand_ids: Vec<i64>,
        #[prost(int64, repeated, tag = "38")]
        pub called_computation_ids: Vec<i64>,
        #[prost(bytes = "vec", tag = "43")]
        pub backend_config: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Shape {
        #[prost(int32, tag = "2")]
        pub element_type: i32,
        #[prost(int64, repeated, tag = "3")]
        pub dimensions: Vec<i64>,
        #[prost(message, repeated, tag = "4")]
        pub tuple_shapes: Vec<Shape>,
    }

    impl Instruction {
        /// Bytes of the result.
        pub fn bytes(&self) -> f64 {
            self.shape.as_ref().map_or(0.0, Shape::bytes)
        }

        /// The emitter of a fusion, as in `{"fusion_backend_config":{"kind":"__triton_gemm"}}`; empty if it has none.
        pub fn fusion_kind(&self) -> String {
            let config: Option<serde_json::Value> = serde_json::from_slice(&self.backend_config).ok();
            let kind = config.as_ref().and_then(|config| config["fusion_backend_config"]["kind"].as_str());
            kind.unwrap_or_default().to_string()
        }
    }

    impl Shape {
        fn bytes(&self) -> f64 {
            let elements: f64 = self.dimensions.iter().map(|&d| d as f64).product();
            let inner: f64 = self.tuple_shapes.iter().map(Shape::bytes).sum();
            inner + elements * element_bytes(self.element_type)
        }
    }

    /// By XLA's `PrimitiveType`.
    fn element_bytes(kind: i32) -> f64 {
        match kind {
            // Tuples, tokens, opaque values.
            0 | 13 | 14 | 17 => 0.0,
            3 | 7 | 10 | 16 => 2.0,
            4 | 8 | 11 => 4.0,
            5 | 9 | 12 | 15 => 8.0,
            18 => 16.0,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::proto::{Computation, Instruction, Module, Shape};
    use super::*;

    /// `f32[1000]`.
    fn instruction(id: i64, opcode: &str, operands: &[i64], calls: &[i64]) -> Instruction {
        let shape = Shape { element_type: 11, dimensions: vec![1000], tuple_shapes: Vec::new() };
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
        let call =
            |id, target: &str| Instruction { custom_call_target: target.into(), ..instruction(id, "custom-call", &[1], &[]) };
        let fusion = |id, inner, kind: &str| Instruction {
            backend_config: format!(r#"{{"fusion_backend_config":{{"kind":"{kind}"}}}}"#).into_bytes(),
            ..instruction(id, "fusion", &[1], &[inner])
        };
        let entry = Computation {
            id: 1,
            instructions: vec![
                instruction(1, "parameter", &[], &[]),
                call(2, "__cudnn$fmhaSoftmaxBackward"),
                call(3, "__cublas$lt$matmul"),
                call(4, "mine"),
                fusion(5, 2, "__triton_gemm"),
                fusion(6, 2, "__triton"),
                fusion(7, 2, ""),
                fusion(8, 3, ""),
                instruction(9, "while", &[1], &[4]),
                instruction(10, "bitcast", &[9], &[]),
            ],
        };
        let inside =
            Computation { id: 2, instructions: vec![instruction(1, "parameter", &[], &[]), instruction(2, "dot", &[1, 1], &[])] };
        let copy =
            Computation { id: 3, instructions: vec![instruction(1, "parameter", &[], &[]), instruction(2, "copy", &[1], &[])] };
        let body =
            Computation { id: 4, instructions: vec![instruction(1, "parameter", &[], &[]), instruction(2, "dot", &[1, 1], &[])] };
        let module = Module { computations: vec![inside, copy, body, entry], entry_computation_id: 1 };
        let facts = of(&module.encode_to_vec()).unwrap();
        // Seven kernels that read one array and write one, and the product in the loop, which reads two.
        let bytes = (7.0 * 2.0 + 3.0) * 4000.0;
        let other_calls = BTreeMap::from([("mine".to_string(), 1)]);
        let expected = HloFacts {
            attention_calls: 1,
            gemm_calls: 1,
            triton_gemms: 1,
            triton_fusions: 1,
            fusions: 1,
            copies: 1,
            transposes: 0,
            plain_products: 1,
            other_calls,
            bytes,
        };
        assert_eq!(facts, expected);
    }
}
