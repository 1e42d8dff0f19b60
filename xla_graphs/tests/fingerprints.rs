//! The canonical form: the same program gives the same bytes and fingerprint in every process, any
//! single change another.

use std::collections::BTreeMap;
use xtrain_graphs::op::{Attention, Comparison, DotDims, F64, Gelu, KeyMask};
use xtrain_graphs::{
    DType, DropoutRng, Error, Fingerprint, Graph, InputRole, Result, Shape, Target, Tensor, Trace,
    backward, passes,
};

/// What the program below can do differently, one thing at a time.
#[derive(Clone)]
struct Knobs {
    graph: &'static str,
    scope: &'static str,
    input_name: &'static str,
    output_name: &'static str,
    role: InputRole,
    rows: usize,
    dtype: DType,
    eps: f64,
    scale: f64,
    causal: bool,
    window: Option<u32>,
    dropout: f64,
    gelu: Gelu,
    ignore: i64,
    constant: f64,
    order: Comparison,
    reduced: Vec<usize>,
    perm: Vec<usize>,
    pad: usize,
    start: usize,
    dot_type: DType,
    swap: bool,
    extra_stream: bool,
}

const PLAIN: Knobs = Knobs {
    graph: "train",
    scope: "h.0",
    input_name: "x",
    output_name: "loss",
    role: InputRole::Feed,
    rows: 2,
    dtype: DType::F32,
    eps: 1e-5,
    scale: 0.5,
    causal: true,
    window: None,
    dropout: 0.1,
    gelu: Gelu::Erf,
    ignore: -100,
    constant: 2.0,
    order: Comparison::Gt,
    reduced: Vec::new(),
    perm: Vec::new(),
    pad: 1,
    start: 0,
    dot_type: DType::F32,
    swap: false,
    extra_stream: false,
};

fn program(k: &Knobs) -> Result<Graph> {
    let trace = Trace::new();
    let x = trace.input(k.input_name, Shape::new(k.dtype, [k.rows, 4]), k.role);
    let labels = trace.input("labels", Shape::new(DType::S32, [k.rows]), InputRole::Feed);
    let random =
        DropoutRng::keyed(trace.input("random", Shape::new(DType::U32, [2]), InputRole::Feed));
    let _scope = trace.scope(k.scope);
    if k.extra_stream {
        random.keep_mask(&[1], 0.5)?;
    }
    let gamma = trace.full(1.0, &Shape::new(k.dtype, [4]))?;
    let h = x.layer_norm(&gamma, &gamma, k.eps)?.gelu(k.gelu)?;
    let heads = h.reshape(&[1, 1, k.rows, 4])?;
    let (dropout, key) = random.of_attention(k.dropout).unzip();
    let attributes = Attention {
        scale: F64::new(k.scale),
        causal: k.causal,
        window: k.window,
        key_mask: KeyMask::None,
        dropout,
        soft_cap: None,
    };
    let h = heads
        .attention(&heads, &heads, None, key.as_ref(), attributes)?
        .reshape(&[k.rows, 4])?;
    let perm = if k.perm.is_empty() {
        vec![1, 0]
    } else {
        k.perm.clone()
    };
    let h = h
        .mul_scalar(k.constant)?
        .transpose(&perm)?
        .transpose(&perm)?;
    let h = h
        .pad(&[0, k.pad], &[0, 2 - k.pad])?
        .slice_dim(1, k.start, k.start + 4)?;
    let h = h.compare_scalar(k.order, 0.25)?.select(&h, &x)?;
    let dims = DotDims {
        lhs_contracting: vec![1],
        rhs_contracting: vec![1],
        ..Default::default()
    };
    let gram = h.dot_general(&x, dims, k.dot_type)?.convert(k.dtype)?;
    let h = if k.swap { x.sub(&h)? } else { h.sub(&x)? };
    let reduced = if k.reduced.is_empty() {
        vec![0, 1]
    } else {
        k.reduced.clone()
    };
    let loss = h
        .cross_entropy(&labels, k.ignore)?
        .sum_all()?
        .add(&gram.sum(&reduced)?.sum_all()?)?;
    let gradients = backward(&loss, std::slice::from_ref(&x))?;
    trace.output(k.output_name, &loss);
    trace.output("gradient", &gradients[0]);
    trace.finish(k.graph)
}

#[test]
fn the_same_program_has_the_same_bytes() {
    let (a, b) = (program(&PLAIN).unwrap(), program(&PLAIN).unwrap());
    assert_eq!(a.to_bytes(), b.to_bytes());
    assert_eq!(a.fingerprint(), b.fingerprint());
    let prepare = |graph: &Graph| passes::lower(graph, Target::CPU).unwrap();
    assert_eq!(prepare(&a).to_bytes(), prepare(&b).to_bytes());
    let decoded = Graph::from_bytes(&a.to_bytes()).unwrap();
    assert_eq!(decoded, a);
    decoded.check().unwrap();
    prepare(&a).check().unwrap();
}

#[test]
fn any_single_change_is_another_fingerprint() {
    type Change = (&'static str, fn(&mut Knobs));
    let changes: Vec<Change> = vec![
        ("graph name", |k| k.graph = "eval"),
        ("scope", |k| k.scope = "h.1"),
        ("input name", |k| k.input_name = "y"),
        ("output name", |k| k.output_name = "total"),
        ("role", |k| k.role = InputRole::State),
        ("shape", |k| k.rows = 3),
        ("dtype", |k| k.dtype = DType::F64),
        ("eps", |k| k.eps = 1e-6),
        ("scale", |k| k.scale = 0.5 + f64::EPSILON),
        ("causal", |k| k.causal = false),
        ("window", |k| k.window = Some(1)),
        ("dropout", |k| k.dropout = 0.2),
        ("gelu", |k| k.gelu = Gelu::Tanh),
        ("ignore", |k| k.ignore = -1),
        ("constant", |k| k.constant = 2.0000001),
        ("negative zero", |k| k.constant = -0.0),
        ("zero", |k| k.constant = 0.0),
        ("comparison", |k| k.order = Comparison::Ge),
        ("reduced dimensions", |k| k.reduced = vec![0]),
        ("permutation", |k| k.perm = vec![0, 1]),
        ("padding", |k| k.pad = 2),
        ("slice", |k| k.start = 1),
        ("dot type", |k| k.dot_type = DType::F64),
        ("operand order", |k| k.swap = true),
        ("random stream", |k| k.extra_stream = true),
    ];
    let mut seen: BTreeMap<Fingerprint, &str> =
        BTreeMap::from([(program(&PLAIN).unwrap().fingerprint(), "no change")]);
    for (name, change) in changes {
        let mut knobs = PLAIN;
        change(&mut knobs);
        let fingerprint = program(&knobs)
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .fingerprint();
        if let Some(other) = seen.insert(fingerprint, name) {
            panic!("`{name}` and `{other}` have one fingerprint");
        }
    }
}

/// Prints what the test below compares; does nothing in an ordinary run.
#[test]
fn child_process_prints_its_fingerprint() {
    if std::env::var_os("XTRAIN_TEST_CHILD").is_some() {
        println!("CHILD {}", program(&PLAIN).unwrap().fingerprint());
    }
}

#[test]
fn another_process_has_the_same_fingerprint() {
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_process_prints_its_fingerprint",
            "--nocapture",
        ])
        .env("XTRAIN_TEST_CHILD", "1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(
        output.contains(&format!("CHILD {}", program(&PLAIN).unwrap().fingerprint())),
        "{output}"
    );
}

#[test]
fn unused_work_is_not_part_of_a_graph_and_unused_inputs_are() {
    let record = |extra: bool| {
        let trace = Trace::new();
        let x = trace.input("x", Shape::new(DType::F32, [2]), InputRole::Feed);
        trace.input("unused", Shape::new(DType::F32, [3]), InputRole::Feed);
        if extra {
            let _scope = trace.scope("unused.part");
            x.exp().unwrap();
        }
        trace.output("y", &x.neg().unwrap());
        trace.finish("g").unwrap()
    };
    assert_eq!(record(true).to_bytes(), record(false).to_bytes());
    assert_eq!(record(false).inputs.len(), 2);
}

/// The message of a refused recording names all of these, and the line of the call.
macro_rules! assert_refused {
    ($result:expr, $op:literal, $operands:literal, $why:literal) => {
        let message = $result.unwrap_err().to_string();
        for part in [
            concat!($op, " in h.3.attn: "),
            concat!("operands ", $operands, " "),
            $why,
            &at(line!(), &message),
        ] {
            assert!(message.contains(part), "`{part}` is missing in: {message}");
        }
    };
}

/// The place that a message should name; a call may be written over a few lines.
fn at(line: u32, message: &str) -> String {
    let lines = (line..line + 4).map(|line| format!("fingerprints.rs:{line}:"));
    lines
        .clone()
        .find(|place| message.contains(place))
        .or(lines.into_iter().next())
        .unwrap_or_default()
}

#[test]
fn shape_errors_name_operation_shapes_model_path_and_line() {
    let trace = Trace::new();
    let input = |dtype, dims: &[usize]| trace.input("x", Shape::new(dtype, dims), InputRole::Feed);
    let (a, b) = (input(DType::F32, &[2, 3]), input(DType::F32, &[4, 5]));
    let (half, ids) = (input(DType::BF16, &[2, 3]), input(DType::S32, &[2]));
    let _outer = trace.scope("h.3");
    let _inner = trace.scope("attn");
    let plain = Attention {
        scale: F64::new(1.0),
        causal: false,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    assert_refused!(
        a.matmul(&b),
        "dot",
        "f32[2,3], f32[4,5]",
        "contracting dimensions differ: 3 and 4"
    );
    assert_refused!(a.add(&half), "add", "f32[2,3], bf16[2,3]", "one shape");
    assert_refused!(a.add(&b), "broadcast", "f32[4,5]", "cannot become");
    assert_refused!(ids.exp(), "exp", "s32[2]", "needs a float type");
    assert_refused!(a.reshape(&[7]), "reshape", "f32[2,3]", "6 elements");
    assert_refused!(
        a.transpose(&[0, 0]),
        "transpose",
        "f32[2,3]",
        "not a permutation"
    );
    assert_refused!(
        a.slice(&[0, 2], &[2, 4]),
        "slice",
        "f32[2,3]",
        "2..4 is outside dimension 1"
    );
    assert_refused!(
        a.take_rows(&b),
        "take_rows",
        "f32[2,3], f32[4,5]",
        "needs an integer type"
    );
    assert_refused!(
        a.layer_norm(&b, &b, 1e-5),
        "layer_norm",
        "f32[2,3], f32[4,5], f32[4,5]",
        "the weight must be f32[3]"
    );
    assert_refused!(
        a.cross_entropy(&a, -100),
        "cross_entropy",
        "f32[2,3], f32[2,3]",
        "the labels must be s32[2]"
    );
    assert_refused!(
        a.attention(&a, &a, None, None, plain),
        "attention",
        "f32[2,3], f32[2,3], f32[2,3]",
        "[B, H, T, D]"
    );
    assert_refused!(
        a.sum(&[2]),
        "reduce_sum",
        "f32[2,3]",
        "dimensions of f32[2,3]"
    );
    assert_refused!(
        Tensor::concat(&[&a, &b], 0),
        "concat",
        "f32[2,3], f32[4,5]",
        "does not fit"
    );
    assert_refused!(a.pad(&[1], &[1]), "pad", "f32[2,3]", "needs 2 low and high");
    assert_refused!(
        a.bitcast(DType::U8),
        "bitcast",
        "f32[2,3]",
        "differ in size"
    );
    assert_refused!(
        a.scatter_add_rows(&ids, &b),
        "scatter_add_rows",
        "f32[2,3], s32[2], f32[4,5]",
        "the updates must be f32[2,3]"
    );
    let bits = a.is_finite().unwrap();
    assert_refused!(bits.sum(&[0]), "reduce_sum", "pred[2,3]", "pred has no sum");
}

#[test]
fn tensors_of_two_traces_do_not_meet() {
    let tensor = || Trace::new().input("x", Shape::new(DType::F32, [2]), InputRole::Feed);
    assert!(matches!(
        tensor().add(&tensor()),
        Err(Error::ForeignTensor { .. })
    ));
}

#[test]
fn state_keeps_its_shape() {
    let trace = Trace::new();
    let w = trace.input("w", Shape::new(DType::F32, [2]), InputRole::State);
    trace.output("w", &w.sum_all().unwrap());
    let message = trace.finish("g").unwrap_err().to_string();
    assert!(
        message.contains("`w`") && message.contains("f32[2]") && message.contains("f32[]"),
        "{message}"
    );
}
