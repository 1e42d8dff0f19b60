//! What the numeric tests share: host values, lowering and running a graph on xla-rs's own CPU
//! client (so that neither the plugin nor the runtime of `xtrain` takes part), and a small seeded
//! generator.
#![allow(dead_code)] // Each test binary uses its own part.

pub mod model;
pub mod reference;

use std::sync::OnceLock;
use std::time::Instant;
use xtrain_graphs::{DType, Graph, InputRole, Shape, Target, Tensor, Trace, passes};

/// A dense host array.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub shape: Shape,
    pub bytes: Vec<u8>,
}

impl Value {
    /// Numbers in the element type of `shape`, rounded as XLA's convert would.
    pub fn new(dtype: DType, dims: &[usize], numbers: &[f64]) -> Value {
        let shape = Shape::new(dtype, dims);
        assert_eq!(shape.elements(), numbers.len(), "{shape}");
        let bytes = numbers.iter().flat_map(|&x| encode(dtype, x)).collect();
        Value { shape, bytes }
    }

    pub fn scalar(dtype: DType, x: f64) -> Value {
        Value::new(dtype, &[], &[x])
    }

    pub fn numbers(&self) -> Vec<f64> {
        self.bytes
            .chunks(self.shape.dtype.size())
            .map(|b| decode(self.shape.dtype, b))
            .collect()
    }

    /// Replaces one element.
    pub fn set(&mut self, index: usize, x: f64) {
        let size = self.shape.dtype.size();
        self.bytes[index * size..(index + 1) * size].copy_from_slice(&encode(self.shape.dtype, x));
    }
}

fn encode(dtype: DType, x: f64) -> Vec<u8> {
    match dtype {
        DType::Pred => vec![u8::from(x != 0.0)],
        DType::S8 => (x as i8).to_le_bytes().to_vec(),
        DType::S32 => (x as i32).to_le_bytes().to_vec(),
        DType::S64 => (x as i64).to_le_bytes().to_vec(),
        DType::U8 => (x as u8).to_le_bytes().to_vec(),
        DType::U32 => (x as u32).to_le_bytes().to_vec(),
        DType::U64 => (x as u64).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(x).to_le_bytes().to_vec(),
        DType::F32 => (x as f32).to_le_bytes().to_vec(),
        DType::F64 => x.to_le_bytes().to_vec(),
    }
}

fn decode(dtype: DType, b: &[u8]) -> f64 {
    macro_rules! read {
        ($ty:ty) => {
            <$ty>::from_le_bytes(b.try_into().unwrap())
        };
    }
    match dtype {
        DType::Pred => f64::from(b[0]),
        DType::S8 => f64::from(read!(i8)),
        DType::S32 => f64::from(read!(i32)),
        DType::S64 => read!(i64) as f64,
        DType::U8 => f64::from(read!(u8)),
        DType::U32 => f64::from(read!(u32)),
        DType::U64 => read!(u64) as f64,
        DType::F16 => half::f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
        DType::F32 => f64::from(read!(f32)),
        DType::F64 => read!(f64),
    }
}

pub fn client() -> &'static xla::PjRtClient {
    static CLIENT: OnceLock<xla::PjRtClient> = OnceLock::new();
    CLIENT.get_or_init(|| xla::PjRtClient::cpu().expect("the CPU client needs nothing"))
}

/// A graph ready to run.
pub struct Program {
    executable: xla::PjRtLoadedExecutable,
    inputs: Vec<Shape>,
    outputs: Vec<Shape>,
}

/// Expands, lowers and compiles.
pub fn compile(graph: &Graph) -> Program {
    compile_for(graph, Target::CPU)
}

/// The same for a target of this machine's.
pub fn compile_for(graph: &Graph, target: Target) -> Program {
    let prepared = passes::lower(graph, target).unwrap();
    let module = xtrain_xla::lower(&prepared.to_bytes()).unwrap_or_else(|e| panic!("{e}"));
    Program {
        executable: client()
            .compile(&computation(&module))
            .unwrap_or_else(|e| panic!("{}: {e}", graph.name)),
        inputs: graph.inputs.iter().map(|i| i.shape.clone()).collect(),
        outputs: (0..graph.outputs.len())
            .map(|i| graph.output_shape(i).clone())
            .collect(),
    }
}

/// A module's bytes for xla-rs, whose parser takes whichever of snapshot, HloProto or module fits
/// first: only a snapshot (two nested length-delimited fields with number 1) is unambiguous.
pub fn computation(module: &[u8]) -> xla::XlaComputation {
    let wrap = |bytes: Vec<u8>| {
        let mut wrapped = vec![0x0A];
        let mut length = bytes.len();
        while length >= 0x80 {
            wrapped.push(length as u8 | 0x80);
            length >>= 7;
        }
        wrapped.push(length as u8);
        wrapped.extend(bytes);
        wrapped
    };
    let proto = xla::HloModuleProto::parse_proto(&wrap(wrap(module.to_vec())), true).unwrap();
    xla::XlaComputation::from_proto(&proto)
}

impl Program {
    pub fn run(&self, arguments: &[Value]) -> Vec<Value> {
        let buffers = self.upload(arguments);
        let results = self
            .executable
            .execute_b(&buffers)
            .unwrap_or_else(|e| panic!("{e}"));
        let read = |(buffer, shape): (&xla::PjRtBuffer, &Shape)| {
            let literal = buffer.to_literal_sync().unwrap();
            let mut bytes = vec![0; shape.bytes()];
            literal.copy_untyped_to(&mut bytes).unwrap();
            Value {
                shape: shape.clone(),
                bytes,
            }
        };
        assert_eq!(results[0].len(), self.outputs.len(), "results");
        results[0].iter().zip(&self.outputs).map(read).collect()
    }

    fn upload(&self, arguments: &[Value]) -> Vec<xla::PjRtBuffer> {
        let shapes: Vec<_> = arguments.iter().map(|a| a.shape.clone()).collect();
        assert_eq!(shapes, self.inputs, "argument shapes");
        arguments
            .iter()
            .map(|a| {
                client()
                    .buffer_from_host_raw_bytes(
                        element(a.shape.dtype),
                        &a.bytes,
                        &a.shape.dims,
                        None,
                    )
                    .unwrap()
            })
            .collect()
    }

    /// Seconds that the program takes, without transfers: the least of `runs`.
    pub fn seconds(&self, arguments: &[Value], runs: usize) -> f64 {
        let buffers = self.upload(arguments);
        let (mut with_copy, mut copy) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..runs {
            let start = Instant::now();
            let results = self.executable.execute_b(&buffers).unwrap();
            // Nothing waits for a result but its copy, whose time the second copy gives.
            results[0][0].to_literal_sync().unwrap();
            with_copy = with_copy.min(start.elapsed().as_secs_f64());
            let again = Instant::now();
            results[0][0].to_literal_sync().unwrap();
            copy = copy.min(again.elapsed().as_secs_f64());
        }
        (with_copy - copy).max(1e-6)
    }
}

fn element(dtype: DType) -> xla::ElementType {
    match dtype {
        DType::Pred => xla::ElementType::Pred,
        DType::S8 => xla::ElementType::S8,
        DType::S32 => xla::ElementType::S32,
        DType::S64 => xla::ElementType::S64,
        DType::U8 => xla::ElementType::U8,
        DType::U32 => xla::ElementType::U32,
        DType::U64 => xla::ElementType::U64,
        DType::F16 => xla::ElementType::F16,
        DType::BF16 => xla::ElementType::Bf16,
        DType::F32 => xla::ElementType::F32,
        DType::F64 => xla::ElementType::F64,
    }
}

/// Traces `program` over feeds shaped like `arguments`; its results are the outputs.
pub fn trace(
    arguments: &[Value],
    program: impl FnOnce(&Trace, &[Tensor]) -> xtrain_graphs::Result<Vec<Tensor>>,
) -> xtrain_graphs::Result<Graph> {
    let trace = Trace::new();
    let inputs: Vec<Tensor> = arguments
        .iter()
        .enumerate()
        .map(|(i, a)| trace.input(format!("in{i}"), a.shape.clone(), InputRole::Feed))
        .collect();
    for (i, output) in program(&trace, &inputs)?.iter().enumerate() {
        trace.output(format!("out{i}"), output);
    }
    trace.finish("test")
}

/// Traces, compiles and runs.
pub fn evaluate(
    arguments: &[Value],
    program: impl FnOnce(&Trace, &[Tensor]) -> xtrain_graphs::Result<Vec<Tensor>>,
) -> Vec<Value> {
    let graph = trace(arguments, program).unwrap_or_else(|e| panic!("{e}"));
    compile(&graph).run(arguments)
}

/// Compares element by element: |got - want| <= tolerance * max(1, |want|); infinities and NaN must
/// match.
#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "number of elements");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let equal =
            g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * w.abs().max(1.0);
        assert!(
            equal,
            "element {i}: got {g:e}, want {w:e}, difference {:e}, tolerance {tolerance:e}",
            (g - w).abs()
        );
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for test data, and the same everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `low..high`.
    pub fn float(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Uniform in `low..=high`.
    pub fn int(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    pub fn bool(&mut self, share: f64) -> bool {
        self.float(0.0, 1.0) < share
    }

    pub fn floats(&mut self, n: usize, low: f64, high: f64) -> Vec<f64> {
        (0..n).map(|_| self.float(low, high)).collect()
    }

    /// A permutation of `0..n`.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.int(0, i));
        }
        order
    }
}
