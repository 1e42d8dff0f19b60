//! What each launch of a compiled module is and does: its class, the bytes that it moves, the FLOPs of
//! its matmuls, and what a reader would want to know before a device runs it: conversions and
//! transposes in front of a matmul, sums along columns, kernels that only move data, collectives and
//! what runs meanwhile.

use super::launched::{Launched, computations, is_name_only, launched};
use super::matmul_work::{self, MatmulWork, operand};
use super::memory_traffic::{self, Sizes};
use super::stats::fusion_kind;
use super::{Computation, Instruction, Shape, array_bytes, op_name, replica_groups};
use crate::error::Result;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Fusions lie in fusions at most this deep.
const DEEPEST: usize = 8;

/// What kind of work a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelClass {
    /// A matmul by a library: cuBLAS, or the CPU plugin's kernels.
    LibraryMatmul,
    /// A fusion around a matmul that XLA's Triton emitter writes.
    TritonMatmul,
    /// Any other matmul.
    OtherMatmul,
    /// A call of fused attention, forward or backward.
    Attention,
    /// Sums and the like, with what is fused to them: norms, losses, gradients of biases and of
    /// embeddings.
    Reduction,
    /// Arithmetic on single elements.
    Elementwise,
    /// Copies, slices, concatenations, transposes, conversions: no arithmetic.
    DataMovement,
    /// An exchange between devices.
    Collective,
    /// Anything else: other libraries' calls.
    Other,
}

impl KernelClass {
    /// In the order of reports.
    pub const ALL: [KernelClass; 9] = [
        KernelClass::LibraryMatmul,
        KernelClass::TritonMatmul,
        KernelClass::OtherMatmul,
        KernelClass::Attention,
        KernelClass::Reduction,
        KernelClass::Elementwise,
        KernelClass::DataMovement,
        KernelClass::Collective,
        KernelClass::Other,
    ];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            KernelClass::LibraryMatmul => "matmul, library",
            KernelClass::TritonMatmul => "matmul, Triton",
            KernelClass::OtherMatmul => "matmul, other",
            KernelClass::Attention => "attention",
            KernelClass::Reduction => "reduction",
            KernelClass::Elementwise => "elementwise",
            KernelClass::DataMovement => "data movement",
            KernelClass::Collective => "collective",
            KernelClass::Other => "other",
        }
    }
}

/// An exchange between devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// As HLO names it: `all-reduce`.
    pub kind: String,
    /// Bytes of the whole values: of what goes into a sum, of what comes out of a gather.
    pub bytes: u64,
    /// Devices of a group; 0 where all of them are one.
    pub devices: usize,
    /// The kernels, by their places in the list, that are launched between its start and the wait
    /// for it.
    pub meanwhile: Range<usize>,
}

/// One launch of a compiled module.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// HLO's name of it.
    pub name: String,
    /// The model's path of what it computes, `train/h.3.mlp/gelu`; empty where the compiler made it up.
    pub op_name: String,
    /// What kind of work it is.
    pub class: KernelClass,
    /// How often it runs in one execution.
    pub times: f64,
    /// Bytes that it reads and writes in one run, each operand and each result once.
    pub bytes: f64,
    /// Of its matmuls, in one run.
    pub work: MatmulWork,
    /// `convert`, `transpose` and `copy` between a matmul's operands and the kernel's, with the bytes
    /// of their results.
    pub operand_work: BTreeMap<&'static str, f64>,
    /// It sums along another dimension than the one that lies contiguous.
    pub sums_columns: bool,
    /// Of data movement: all that it does is convert.
    pub only_converts: bool,
    /// Of data movement: what it writes goes into a library's matmul.
    pub feeds_matmul: bool,
    /// Of a collective.
    pub exchange: Option<Exchange>,
}

/// The kernels of a serialized HloModuleProto, in the order of its schedule.
///
/// # Errors
/// The bytes are no module.
pub fn of(module: &[u8]) -> Result<Vec<Kernel>> {
    let module = super::read(module)?;
    let computations = computations(&module);
    let launches = launched(&module)?;
    let mut sizes = Sizes::default();
    let mut kernels: Vec<Kernel> = launches
        .iter()
        .enumerate()
        .map(|(place, launch)| {
            let sizes = sizes.of(launch.around);
            let bytes = memory_traffic::of(launch.instruction, sizes, &computations);
            describe(place, launch, bytes, &computations)
        })
        .collect();
    mark_feeders(&launches, &mut kernels);
    Ok(kernels)
}

fn describe(
    place: usize,
    launch: &Launched,
    bytes: f64,
    all: &HashMap<i64, &Computation>,
) -> Kernel {
    let Launched {
        instruction,
        around,
        ..
    } = *launch;
    let inside = Inside::of(instruction, around, all);
    let class = class(instruction, &inside);
    let is_move = class == KernelClass::DataMovement;
    let mut operand_work = BTreeMap::new();
    if class == KernelClass::TritonMatmul || class == KernelClass::OtherMatmul {
        inside.before_matmuls(all, &mut operand_work);
    }
    Kernel {
        name: instruction.name.clone(),
        op_name: op_name(instruction),
        class,
        times: launch.times,
        bytes,
        work: matmul_work::of(instruction, around, all),
        operand_work,
        sums_columns: inside.each().any(|(i, around)| sums_columns(i, around)),
        only_converts: is_move && inside.does_only(&["convert", "bitcast-convert"]),
        feeds_matmul: false,
        exchange: (class == KernelClass::Collective).then(|| Exchange {
            kind: instruction.opcode.trim_end_matches("-start").to_string(),
            bytes: exchanged(instruction, around),
            devices: replica_groups(instruction)
                .first()
                .map_or(0, |group| group.replica_ids.len()),
            meanwhile: place + 1..launch.awaited_at.unwrap_or(0).max(place + 1),
        }),
    }
}

/// What a launch computes: a fusion's instructions, those of the fusions in it too, or the one.
struct Inside<'m> {
    instructions: Vec<(&'m Instruction, &'m Computation)>,
}

impl<'m> Inside<'m> {
    fn of(
        instruction: &'m Instruction,
        around: &'m Computation,
        all: &HashMap<i64, &'m Computation>,
    ) -> Self {
        let mut inside = Inside {
            instructions: Vec::new(),
        };
        inside.collect(instruction, around, all, 0);
        inside
    }

    fn collect(
        &mut self,
        instruction: &'m Instruction,
        around: &'m Computation,
        all: &HashMap<i64, &'m Computation>,
        depth: usize,
    ) {
        if instruction.opcode != "fusion" || depth >= DEEPEST {
            self.instructions.push((instruction, around));
            return;
        }
        let called = instruction.called_computation_ids.iter();
        for inner in called.filter_map(|id| all.get(id).copied()) {
            for instruction in &inner.instructions {
                self.collect(instruction, inner, all, depth + 1);
            }
        }
    }

    fn each(&self) -> impl Iterator<Item = (&'m Instruction, &'m Computation)> {
        self.instructions.iter().copied()
    }

    /// The operations, but for names and for arithmetic on single numbers, as that of indices.
    fn opcodes(&self) -> impl Iterator<Item = &'m str> {
        let arrays = self.each().filter(|(i, _)| !is_scalar(i));
        let opcodes = arrays.map(|(instruction, _)| instruction.opcode.as_str());
        opcodes.filter(|opcode| !is_name_only(opcode))
    }

    fn has(&self, opcodes: &[&str]) -> bool {
        self.opcodes().any(|opcode| opcodes.contains(&opcode))
    }

    fn does_only(&self, opcodes: &[&str]) -> bool {
        self.opcodes().all(|opcode| opcodes.contains(&opcode))
    }

    /// Adds what stands between matmuls and what the kernel reads.
    fn before_matmuls(
        &self,
        all: &HashMap<i64, &Computation>,
        found: &mut BTreeMap<&'static str, f64>,
    ) {
        for (dot, around) in self.each().filter(|(i, _)| i.opcode == "dot") {
            let by_id: HashMap<i64, &Instruction> =
                around.instructions.iter().map(|i| (i.id, i)).collect();
            let mut waiting: Vec<i64> = dot.operand_ids.clone();
            let mut seen = Vec::new();
            while let Some(id) = waiting.pop() {
                let Some(instruction) = by_id.get(&id).filter(|_| !seen.contains(&id)) else {
                    continue;
                };
                seen.push(id);
                waiting.extend(&instruction.operand_ids);
                let inner = Inside::of(instruction, around, all);
                for (instruction, _) in inner.each() {
                    let names = ["convert", "transpose", "copy"].into_iter();
                    for name in names.filter(|name| instruction.opcode == *name) {
                        let bytes = memory_traffic::bytes_of(instruction);
                        *found.entry(name).or_default() += bytes;
                    }
                }
            }
        }
    }
}

fn is_scalar(instruction: &Instruction) -> bool {
    let shape = instruction.shape.as_ref();
    shape.is_some_and(|shape| {
        shape.tuple_shapes.is_empty() && shape.dimensions.iter().all(|&d| d == 1)
    })
}

const COLLECTIVES: [&str; 6] = [
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
];
const REDUCTIONS: [&str; 5] = [
    "reduce",
    "reduce-window",
    "scatter",
    "sort",
    "select-and-scatter",
];
const MOVES: [&str; 15] = [
    "copy",
    "copy-start",
    "transpose",
    "slice",
    "pad",
    "concatenate",
    "broadcast",
    "reshape",
    "dynamic-slice",
    "dynamic-update-slice",
    "gather",
    "reverse",
    "iota",
    "convert",
    "bitcast-convert",
];

fn class(instruction: &Instruction, inside: &Inside) -> KernelClass {
    let opcode = instruction.opcode.as_str();
    if opcode == "custom-call" {
        return of_call(&instruction.custom_call_target);
    }
    if COLLECTIVES.contains(&opcode.trim_end_matches("-start")) {
        return KernelClass::Collective;
    }
    let kind = fusion_kind(instruction);
    if opcode == "fusion" && kind.starts_with("__triton") && kind.contains("gemm") {
        KernelClass::TritonMatmul
    } else if inside.has(&["dot", "convolution"]) {
        KernelClass::OtherMatmul
    } else if inside.has(&REDUCTIONS) {
        KernelClass::Reduction
    } else if inside.does_only(&MOVES) {
        KernelClass::DataMovement
    } else if matches!(
        opcode,
        "infeed" | "outfeed" | "send" | "recv" | "conditional"
    ) {
        KernelClass::Other
    } else {
        KernelClass::Elementwise
    }
}

fn of_call(target: &str) -> KernelClass {
    match target {
        "xtrain.attention" => KernelClass::Attention,
        "xtrain.matmul" | "xtrain.gemv" | "__onednn$matmul" => KernelClass::LibraryMatmul,
        "xtrain.one_pass" => KernelClass::Elementwise,
        _ if target.starts_with("__cudnn$fmha") => KernelClass::Attention,
        _ if target.starts_with("__cublas$") => KernelClass::LibraryMatmul,
        // Norms and cross-entropy.
        _ if target.starts_with("xtrain.") => KernelClass::Reduction,
        _ => KernelClass::Other,
    }
}

/// Whether a sum runs along another dimension than the contiguous one of its operand.
fn sums_columns(instruction: &Instruction, around: &Computation) -> bool {
    let Some(shape) = operand(instruction, around, 0).filter(|_| instruction.opcode == "reduce")
    else {
        return false;
    };
    let size = |dim: &i64| shape.dimensions.get(usize::try_from(*dim).ok()?).copied();
    let is_summed = |dim: &i64| instruction.dimensions.contains(dim);
    let contiguous = minor_to_major(shape)
        .into_iter()
        .find(|dim| size(dim) > Some(1));
    let sums_any = instruction.dimensions.iter().any(|dim| size(dim) > Some(1));
    sums_any && contiguous.is_some_and(|dim| !is_summed(&dim))
}

fn minor_to_major(shape: &Shape) -> Vec<i64> {
    match &shape.layout {
        Some(layout) if !layout.minor_to_major.is_empty() => layout.minor_to_major.clone(),
        _ => (0..shape.dimensions.len() as i64).rev().collect(),
    }
}

fn exchanged(instruction: &Instruction, around: &Computation) -> u64 {
    if instruction.opcode.starts_with("all-gather") {
        // A start gives its operands besides.
        let shape = instruction.shape.as_ref();
        let results = shape.map_or(0, |shape| match shape.tuple_shapes.last() {
            Some(last) => tuple_bytes(last),
            None => array_bytes(shape),
        });
        return results;
    }
    let operands = 0..instruction.operand_ids.len();
    let shapes = operands.filter_map(|number| operand(instruction, around, number));
    shapes.map(tuple_bytes).sum()
}

fn tuple_bytes(shape: &Shape) -> u64 {
    array_bytes(shape) + shape.tuple_shapes.iter().map(tuple_bytes).sum::<u64>()
}

/// Marks the kernels that only move what a library's matmul then reads.
fn mark_feeders(launches: &[Launched], kernels: &mut [Kernel]) {
    let places: HashMap<(i64, i64), usize> = launches
        .iter()
        .enumerate()
        .map(|(place, launch)| ((launch.around.id, launch.instruction.id), place))
        .collect();
    let matmuls = (0..kernels.len()).filter(|&it| kernels[it].class == KernelClass::LibraryMatmul);
    for matmul in matmuls.collect::<Vec<usize>>() {
        let around = launches[matmul].around;
        let find = |id: i64| around.instructions.iter().find(|i| i.id == id);
        for &id in &launches[matmul].instruction.operand_ids {
            let mut producer = find(id);
            for _ in 0..DEEPEST {
                let renamed = producer.filter(|it| is_name_only(&it.opcode));
                let Some(first) = renamed.and_then(|it| it.operand_ids.first()) else {
                    break;
                };
                producer = find(*first);
            }
            let place = producer.and_then(|producer| places.get(&(around.id, producer.id)));
            if let Some(kernel) = place.map(|&place| &mut kernels[place]) {
                kernel.feeds_matmul |= kernel.class == KernelClass::DataMovement;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Module, PrimitiveType, ReplicaGroup};
    use super::*;
    use prost::Message;
    use xtrain_proto::xla::{DotDimensionNumbers, LayoutProto};

    fn array(id: i64, opcode: &str, dims: &[i64], operands: &[i64]) -> Instruction {
        let shape = Shape {
            element_type: PrimitiveType::F32.into(),
            dimensions: dims.into(),
            ..Default::default()
        };
        Instruction {
            name: format!("{opcode}.{id}"),
            opcode: opcode.into(),
            shape: Some(shape),
            id,
            operand_ids: operands.into(),
            ..Default::default()
        }
    }

    fn fusion(id: i64, calls: i64, operands: &[i64], kind: &str) -> Instruction {
        let config = format!(r#"{{"fusion_backend_config":{{"kind":"{kind}"}}}}"#);
        Instruction {
            called_computation_ids: vec![calls],
            backend_config: config.into_bytes(),
            ..array(id, "fusion", &[8, 8], operands)
        }
    }

    fn computation(id: i64, instructions: Vec<Instruction>) -> Computation {
        Computation {
            id,
            root_id: instructions.last().unwrap().id,
            instructions,
            ..Default::default()
        }
    }

    fn of_computations(computations: Vec<Computation>) -> Vec<Kernel> {
        let module = Module {
            entry_computation_id: computations.last().unwrap().id,
            computations,
            ..Default::default()
        };
        of(&module.encode_to_vec()).unwrap()
    }

    fn dot(id: i64, operands: &[i64]) -> Instruction {
        let dims = DotDimensionNumbers {
            lhs_contracting_dimensions: vec![1],
            rhs_contracting_dimensions: vec![0],
            ..Default::default()
        };
        Instruction {
            dot_dimension_numbers: Some(dims),
            ..array(id, "dot", &[8, 8], operands)
        }
    }

    fn reduce(id: i64, over: i64, operand: i64) -> Instruction {
        Instruction {
            dimensions: vec![over],
            ..array(id, "reduce", &[8], &[operand])
        }
    }

    /// A matmul whose operand is converted in a fusion of its own inside, a conversion for a library's
    /// matmul, a fusion that slices with an index of its own, sums along rows and along columns.
    #[test]
    fn kernels_have_classes_and_findings() {
        let parameter = |id| array(id, "parameter", &[8, 8], &[]);
        let converting = vec![parameter(1), array(2, "convert", &[8, 8], &[1])];
        let matmul = vec![parameter(1), fusion(2, 1, &[1], ""), dot(3, &[2, 1])];
        let index = array(3, "add", &[], &[2, 2]);
        let slicing = vec![
            parameter(1),
            array(2, "constant", &[], &[]),
            index,
            array(4, "dynamic-slice", &[1, 8], &[1, 3]),
        ];
        let columns = vec![parameter(1), reduce(2, 0, 1)];
        let rows = vec![
            parameter(1),
            reduce(2, 1, 1),
            array(3, "exponential", &[8], &[2]),
        ];
        let lay = LayoutProto {
            minor_to_major: vec![0, 1],
            ..Default::default()
        };
        let mut turned = parameter(1);
        turned.shape.as_mut().unwrap().layout = Some(Box::new(lay));
        let turned = vec![turned, reduce(2, 0, 1)];
        let gemm = Instruction {
            custom_call_target: "__cublas$lt$matmul".into(),
            ..array(17, "custom-call", &[8, 8], &[16, 10])
        };
        let entry = vec![
            parameter(10),
            fusion(11, 2, &[10], "__triton_gemm"),
            fusion(12, 3, &[10], ""),
            fusion(13, 4, &[10], ""),
            fusion(14, 5, &[10], ""),
            fusion(15, 1, &[10], ""),
            array(16, "bitcast", &[8, 8], &[15]),
            gemm,
            array(18, "multiply", &[8, 8], &[10, 10]),
            fusion(19, 6, &[10], ""),
        ];
        let kernels = of_computations(vec![
            computation(1, converting),
            computation(2, matmul),
            computation(3, slicing),
            computation(4, columns),
            computation(5, rows),
            computation(6, turned),
            computation(9, entry),
        ]);
        let classes: Vec<&str> = kernels.iter().map(|kernel| kernel.class.name()).collect();
        let wanted = [
            "matmul, Triton",
            "data movement",
            "reduction",
            "reduction",
            "data movement",
            "matmul, library",
            "elementwise",
            "reduction",
        ];
        assert_eq!(classes, wanted);
        assert_eq!(
            kernels[0].operand_work,
            BTreeMap::from([("convert", 256.0)])
        );
        assert_eq!(kernels[0].work.wide, 1024.0);
        let marked = |is: fn(&Kernel) -> bool| -> Vec<usize> {
            (0..kernels.len()).filter(|&it| is(&kernels[it])).collect()
        };
        assert_eq!(marked(|it| it.sums_columns), [2]);
        assert_eq!(marked(|it| it.only_converts), [4]);
        assert_eq!(marked(|it| it.feeds_matmul), [4]);
        // The row in and out.
        assert_eq!(kernels[1].bytes, 32.0 + 256.0);
    }

    /// A sum that is started before a multiplication and awaited behind it, and one that is not
    /// started apart; a loop's kernels run as often as it does.
    #[test]
    fn what_runs_beside_a_collective_is_known() {
        let group = ReplicaGroup {
            replica_ids: vec![0, 1, 2, 3],
        };
        #[expect(deprecated, reason = "the form that is the easiest to write")]
        let collective = |id, opcode: &str, operand| Instruction {
            replica_groups: vec![group.clone()],
            ..array(id, opcode, &[8, 8], &[operand])
        };
        let looped = Instruction {
            called_computation_ids: vec![1],
            backend_config: br#"{"known_trip_count":{"n":"5"}}"#.into(),
            ..array(6, "while", &[8, 8], &[5])
        };
        let entry = vec![
            array(1, "parameter", &[8, 8], &[]),
            collective(2, "all-reduce-start", 1),
            array(3, "multiply", &[8, 8], &[1, 1]),
            array(4, "all-reduce-done", &[8, 8], &[2]),
            collective(5, "all-gather", 4),
            looped,
        ];
        let body = vec![
            array(1, "parameter", &[8, 8], &[]),
            array(2, "add", &[8, 8], &[1, 1]),
        ];
        let kernels = of_computations(vec![computation(1, body), computation(2, entry)]);
        let exchange = |kind: &str, meanwhile| Exchange {
            kind: kind.into(),
            bytes: 256,
            devices: 4,
            meanwhile,
        };
        assert_eq!(kernels[0].exchange, Some(exchange("all-reduce", 1..2)));
        assert_eq!(kernels[2].exchange, Some(exchange("all-gather", 3..3)));
        assert_eq!((kernels[3].times, kernels.len()), (5.0, 4));
    }

    #[test]
    fn a_module_that_calls_itself_is_refused() {
        let again = Instruction {
            called_computation_ids: vec![1],
            ..array(2, "call", &[8], &[1])
        };
        let entry = computation(1, vec![array(1, "parameter", &[8], &[]), again]);
        let module = Module {
            entry_computation_id: 1,
            computations: vec![entry],
            ..Default::default()
        };
        let error = of(&module.encode_to_vec()).unwrap_err().to_string();
        assert!(error.contains("in circles"), "{error}");
    }
}
