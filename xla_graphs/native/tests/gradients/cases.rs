//! The table of gradient cases: one entry per operation or way of using it.

use crate::support::{Rng, Value};
use xtrain_graphs::op::{Attention, AttentionDropout, DotDims, F64, Gelu, KeyMask};
use xtrain_graphs::{DType, Result, Tensor};

/// Where a float argument's elements lie: away from the function's kinks and poles by more than the
/// stencil's reach (1/512).
#[derive(Clone, Copy, Debug)]
pub enum Domain {
    /// -2..2
    Any,
    /// 0.5..3
    Positive,
    /// 0.2..2 with either sign.
    Nonzero,
    /// Between whole numbers, 0.1 away from both.
    Fractional,
    /// All elements differ by at least 0.25: extremes stay where they are, rows have a spread.
    Distinct,
    /// Multiples of 1/256: exact in f32.
    Grid,
}

/// An argument of a case; only `Real` ones are differentiated.
pub enum Argument {
    Real(Vec<usize>, Domain),
    /// `s32` in `0..count`; with a small count ids repeat.
    Ids(Vec<usize>, usize),
    /// `s32` in `0..count`, a third of them -100.
    Labels(Vec<usize>, usize),
    /// `pred`, true with this probability.
    Mask(Vec<usize>, f64),
    /// `s32[B, T]`, where the example of each token begins: examples of one token to four.
    Starts([usize; 2]),
}

impl Argument {
    pub fn draw(&self, rng: &mut Rng) -> Value {
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        match self {
            Argument::Real(dims, domain) => {
                Value::new(DType::F64, dims, &domain.draw(count(dims), rng))
            }
            Argument::Ids(dims, limit) => {
                let ids: Vec<f64> = (0..count(dims))
                    .map(|_| rng.int(0, limit - 1) as f64)
                    .collect();
                Value::new(DType::S32, dims, &ids)
            }
            Argument::Labels(dims, limit) => {
                let label = |rng: &mut Rng| {
                    if rng.bool(0.33) {
                        -100.0
                    } else {
                        rng.int(0, limit - 1) as f64
                    }
                };
                Value::new(
                    DType::S32,
                    dims,
                    &(0..count(dims)).map(|_| label(rng)).collect::<Vec<_>>(),
                )
            }
            Argument::Starts([b, t]) => {
                let mut starts: Vec<f64> = Vec::new();
                for i in 0..b * t {
                    let is_start = i % t == 0 || rng.bool(0.4);
                    starts.push(if is_start {
                        (i % t) as f64
                    } else {
                        starts[i - 1]
                    });
                }
                Value::new(DType::S32, &[*b, *t], &starts)
            }
            Argument::Mask(dims, share) => {
                let bits: Vec<f64> = (0..count(dims))
                    .map(|_| f64::from(u8::from(rng.bool(*share))))
                    .collect();
                Value::new(DType::Pred, dims, &bits)
            }
        }
    }

    pub fn describe(&self) -> String {
        match self {
            Argument::Real(dims, domain) => format!("{domain:?}{dims:?}"),
            Argument::Ids(dims, limit) => format!("ids{dims:?}<{limit}"),
            Argument::Labels(dims, limit) => format!("labels{dims:?}<{limit}"),
            Argument::Mask(dims, _) => format!("mask{dims:?}"),
            Argument::Starts(dims) => format!("starts{dims:?}"),
        }
    }
}

impl Domain {
    fn draw(self, n: usize, rng: &mut Rng) -> Vec<f64> {
        match self {
            Domain::Any => rng.floats(n, -2.0, 2.0),
            Domain::Positive => rng.floats(n, 0.5, 3.0),
            Domain::Nonzero => (0..n)
                .map(|_| rng.float(0.2, 2.0) * if rng.bool(0.5) { 1.0 } else { -1.0 })
                .collect(),
            Domain::Fractional => (0..n)
                .map(|_| rng.int(0, 6) as f64 - 3.0 + rng.float(0.1, 0.9))
                .collect(),
            Domain::Distinct => {
                let order = rng.permutation(n);
                order
                    .iter()
                    .map(|&i| (i as f64 - n as f64 / 2.0) * 0.35 + rng.float(0.0, 0.1))
                    .collect()
            }
            Domain::Grid => (0..n)
                .map(|_| rng.float(-512.0, 512.0).round() / 256.0)
                .collect(),
        }
    }
}

type Function = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// One drawing of a case.
pub struct Sample {
    pub arguments: Vec<Argument>,
    pub function: Function,
}

pub type Draw = fn(&mut Rng) -> Sample;

fn sample<const N: usize>(
    arguments: [Argument; N],
    function: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Sample {
    Sample {
        arguments: arguments.into(),
        function: Box::new(function),
    }
}

fn real(dims: &[usize], domain: Domain) -> Argument {
    Argument::Real(dims.to_vec(), domain)
}

/// Dimensions of 1 to 4, fewer the higher the rank, so that a case stays small.
fn dims(rng: &mut Rng, min_rank: usize, max_rank: usize) -> Vec<usize> {
    let rank = rng.int(min_rank, max_rank);
    (0..rank)
        .map(|_| rng.int(1, if rank > 2 { 3 } else { 4 }))
        .collect()
}

/// A case of one argument of rank 0 to 4 with no attributes.
macro_rules! unary {
    ($name:literal, $domain:ident, |$x:ident| $body:expr) => {
        ($name, |rng| {
            let shape = dims(rng, 0, 4);
            sample([real(&shape, Domain::$domain)], |t| {
                let $x = &t[0];
                $body
            })
        })
    };
}

/// A case of two arguments of one shape.
macro_rules! binary {
    ($name:literal, $left:ident, $right:ident, |$a:ident, $b:ident| $body:expr) => {
        ($name, |rng| {
            let shape = dims(rng, 0, 3);
            sample(
                [real(&shape, Domain::$left), real(&shape, Domain::$right)],
                |t| {
                    let ($a, $b) = (&t[0], &t[1]);
                    $body
                },
            )
        })
    };
}

pub fn cases() -> Vec<(&'static str, Draw)> {
    let mut all = elementwise();
    all.extend(shapes());
    all.extend(products());
    all.extend(composites());
    all.extend(attentions());
    all.extend(attentions_in_blocks());
    all
}

fn elementwise() -> Vec<(&'static str, Draw)> {
    vec![
        unary!("neg", Any, |x| x.neg()),
        unary!("exp", Any, |x| x.exp()),
        unary!("log", Positive, |x| x.log()),
        unary!("log1p", Positive, |x| x.log1p()),
        unary!("tanh", Any, |x| x.tanh()),
        unary!("sqrt", Positive, |x| x.sqrt()),
        unary!("rsqrt", Positive, |x| x.rsqrt()),
        unary!("erf", Any, |x| x.erf()),
        unary!("logistic", Any, |x| x.logistic()),
        unary!("sin", Any, |x| x.sin()),
        unary!("cos", Any, |x| x.cos()),
        unary!("abs", Nonzero, |x| x.abs()),
        unary!("sign", Nonzero, |x| x.sign()),
        unary!("floor", Fractional, |x| x.floor()),
        unary!("convert through f32", Grid, |x| x
            .convert(DType::F32)?
            .convert(DType::F64)),
        unary!("barrier", Any, |x| x.barrier()),
        unary!("all-gather of one replica", Any, |x| x
            .reshape(&[x.shape().elements()])?
            .all_gather(&[vec![0]], 0)),
        unary!("reduce-scatter of one replica", Any, |x| x
            .reshape(&[x.shape().elements()])?
            .reduce_scatter(&[vec![0]], 0)),
        unary!("after itself", Any, |x| x.after(&x.mul_scalar(2.0)?)),
        unary!("all-reduce of one replica", Any, |x| x
            .all_reduce(&[vec![0]], 0)),
        unary!("a value used three times", Any, |x| x.mul(x)?.add(x)),
        unary!("scalar operands", Any, |x| x
            .mul_scalar(3.0)?
            .add_scalar(1.0)?
            .max_scalar(-50.0)?
            .min_scalar(50.0)),
        binary!("add", Any, Any, |a, b| a.add(b)),
        binary!("sub", Any, Any, |a, b| a.sub(b)),
        binary!("mul", Any, Any, |a, b| a.mul(b)),
        binary!("div", Any, Positive, |a, b| a.div(b)),
        binary!("div by negative", Any, Nonzero, |a, b| a
            .div(&b.add_scalar(-3.0)?)),
        ("maximum", |rng| extremes(rng, |a, b| a.maximum(b))),
        ("minimum", |rng| extremes(rng, |a, b| a.minimum(b))),
        binary!("pow", Positive, Any, |a, b| a.pow(b)),
        unary!("pow of negative bases", Nonzero, |x| x
            .pow(&x.trace().constant(3.0, DType::F64)?)),
        ("select", |rng| {
            let shape = dims(rng, 0, 3);
            let arguments = [
                Argument::Mask(shape.clone(), 0.5),
                real(&shape, Domain::Any),
                real(&shape, Domain::Any),
            ];
            sample(arguments, |t| t[0].select(&t[1], &t[2]))
        }),
        ("broadcast operands as NumPy", |rng| {
            let shape = dims(rng, 1, 4);
            let from = rng.int(0, shape.len());
            let small: Vec<usize> = shape[from..]
                .iter()
                .map(|&d| if rng.bool(0.5) { 1 } else { d })
                .collect();
            let large: Vec<usize> = shape
                .iter()
                .map(|&d| if rng.bool(0.2) { 1 } else { d })
                .collect();
            sample(
                [real(&small, Domain::Any), real(&large, Domain::Any)],
                |t| t[0].mul(&t[1]),
            )
        }),
    ]
}

/// Two arguments that are never close to equal: halves of one set of distinct numbers.
fn extremes(rng: &mut Rng, function: fn(&Tensor, &Tensor) -> Result<Tensor>) -> Sample {
    let mut shape = dims(rng, 0, 2);
    shape.insert(0, 2);
    sample([real(&shape, Domain::Distinct)], move |t| {
        function(&t[0].slice_dim(0, 0, 1)?, &t[0].slice_dim(0, 1, 2)?)
    })
}

fn shapes() -> Vec<(&'static str, Draw)> {
    vec![
        ("reshape", |rng| {
            let shape = dims(rng, 0, 4);
            let mut target = vec![shape.iter().product::<usize>(); 1];
            target.insert(rng.int(0, 1), 1);
            sample([real(&shape, Domain::Any)], move |t| t[0].reshape(&target))
        }),
        ("broadcast_in", |rng| {
            let shape = dims(rng, 0, 2);
            // Each operand dimension is placed in order, new dimensions before, between and after.
            let (mut target, mut map) = (Vec::new(), Vec::new());
            for &size in &shape {
                target.extend((0..rng.int(0, 1)).map(|_| 3));
                map.push(target.len());
                target.push(if size == 1 { rng.int(1, 3) } else { size });
            }
            target.push(2);
            sample([real(&shape, Domain::Any)], move |t| {
                t[0].broadcast_in(&target, &map)
            })
        }),
        ("transpose", |rng| {
            let shape = dims(rng, 2, 4);
            let mut perm = rng.permutation(shape.len());
            if perm.is_sorted() {
                perm.reverse();
            }
            sample([real(&shape, Domain::Any)], move |t| t[0].transpose(&perm))
        }),
        ("slice", |rng| {
            let shape = dims(rng, 1, 4);
            let starts: Vec<usize> = shape.iter().map(|&d| rng.int(0, d - 1)).collect();
            let limits: Vec<usize> = shape
                .iter()
                .zip(&starts)
                .map(|(&d, &s)| rng.int(s + 1, d))
                .collect();
            sample([real(&shape, Domain::Any)], move |t| {
                t[0].slice(&starts, &limits)
            })
        }),
        ("concat", |rng| {
            let shape = dims(rng, 1, 3);
            let dim = rng.int(0, shape.len() - 1);
            let part = |rng: &mut Rng| {
                let mut part = shape.clone();
                part[dim] = rng.int(1, 3);
                real(&part, Domain::Any)
            };
            sample([part(rng), part(rng), part(rng)], move |t| {
                Tensor::concat(&[&t[0], &t[1], &t[2]], dim)
            })
        }),
        ("pad", |rng| {
            let shape = dims(rng, 1, 3);
            let mut amounts = || (0..shape.len()).map(|_| rng.int(0, 2)).collect::<Vec<_>>();
            let (low, high) = (amounts(), amounts());
            sample([real(&shape, Domain::Any)], move |t| t[0].pad(&low, &high))
        }),
        ("sum", |rng| reduction(rng, |t, dims| t.sum(dims))),
        ("max", |rng| reduction(rng, |t, dims| t.max(dims))),
        ("min", |rng| reduction(rng, |t, dims| t.min(dims))),
        ("mean over the last dimension", |rng| {
            let shape = dims(rng, 1, 3);
            sample([real(&shape, Domain::Any)], |t| t[0].mean_last_keep())
        }),
    ]
}

fn products() -> Vec<(&'static str, Draw)> {
    vec![
        ("matmul", |rng| {
            let mut x = dims(rng, 1, 3);
            let (k, n) = (rng.int(1, 4), rng.int(1, 4));
            *x.last_mut().expect("rank 1 or more") = k;
            sample([real(&x, Domain::Any), real(&[k, n], Domain::Any)], |t| {
                t[0].matmul(&t[1])
            })
        }),
        ("matmul_transposed", |rng| {
            let mut x = dims(rng, 1, 3);
            let (k, n) = (rng.int(1, 4), rng.int(1, 4));
            *x.last_mut().expect("rank 1 or more") = k;
            sample([real(&x, Domain::Any), real(&[n, k], Domain::Any)], |t| {
                t[0].matmul_transposed(&t[1])
            })
        }),
        ("dot_general", dot_general),
        ("dot_general with a wider result", |rng| {
            // On the grid all products and sums are exact in f32.
            let [m, k, n] = [rng.int(1, 3), rng.int(1, 4), rng.int(1, 3)];
            let dims = DotDims {
                lhs_contracting: vec![1],
                rhs_contracting: vec![0],
                ..Default::default()
            };
            sample(
                [real(&[m, k], Domain::Grid), real(&[k, n], Domain::Grid)],
                move |t| {
                    t[0].convert(DType::F32)?.dot_general(
                        &t[1].convert(DType::F32)?,
                        dims.clone(),
                        DType::F64,
                    )
                },
            )
        }),
        ("take_rows", |rng| {
            let table = dims(rng, 1, 3);
            let ids = dims(rng, 0, 2);
            let rows = table[0];
            sample([real(&table, Domain::Any), Argument::Ids(ids, rows)], |t| {
                t[0].take_rows(&t[1])
            })
        }),
        ("scatter_add_rows", |rng| {
            let (v, c, n) = (rng.int(1, 4), rng.int(1, 3), rng.int(1, 5));
            let arguments = [
                real(&[v, c], Domain::Any),
                Argument::Ids(vec![n], v),
                real(&[n, c], Domain::Any),
            ];
            sample(arguments, |t| t[0].scatter_add_rows(&t[1], &t[2]))
        }),
    ]
}

fn reduction(rng: &mut Rng, function: fn(&Tensor, &[usize]) -> Result<Tensor>) -> Sample {
    let shape = dims(rng, 1, 4);
    let mut over: Vec<usize> = (0..shape.len()).filter(|_| rng.bool(0.5)).collect();
    if over.is_empty() {
        over.push(rng.int(0, shape.len() - 1));
    }
    sample([real(&shape, Domain::Distinct)], move |t| {
        function(&t[0], &over)
    })
}

/// Batch, contracting and free dimensions, 0 to 2 of each, anywhere on either side.
fn dot_general(rng: &mut Rng) -> Sample {
    let mut sizes = |n: usize| (0..n).map(|_| rng.int(1, 3)).collect::<Vec<_>>();
    let (batch, contracting) = (sizes(2), sizes(2));
    let (free_a, free_b) = (sizes(2), sizes(2));
    let (b, c, fa, fb) = (rng.int(0, 2), rng.int(0, 2), rng.int(0, 1), rng.int(0, 1));
    // Label each dimension, shuffle, and read off where each went.
    let mut place = |free: &[usize]| {
        let labels: Vec<usize> = (0..b)
            .chain(10..10 + c)
            .chain(20..20 + free.len())
            .collect();
        let order = rng.permutation(labels.len());
        let shuffled: Vec<usize> = order.iter().map(|&i| labels[i]).collect();
        let size = |label: usize| match label {
            0..10 => batch[label],
            10..20 => contracting[label - 10],
            _ => free[label - 20],
        };
        let shape: Vec<usize> = shuffled.iter().map(|&l| size(l)).collect();
        let find = |label: usize| {
            shuffled
                .iter()
                .position(|&l| l == label)
                .expect("every label is placed")
        };
        (
            shape,
            (0..b).map(find).collect::<Vec<_>>(),
            (10..10 + c).map(find).collect::<Vec<_>>(),
        )
    };
    let (shape_a, lhs_batch, lhs_contracting) = place(&free_a[..fa]);
    let (shape_b, rhs_batch, rhs_contracting) = place(&free_b[..fb]);
    let dims = DotDims {
        lhs_contracting,
        rhs_contracting,
        lhs_batch,
        rhs_batch,
    };
    sample(
        [real(&shape_a, Domain::Any), real(&shape_b, Domain::Any)],
        move |t| t[0].dot_general(&t[1], dims.clone(), DType::F64),
    )
}

fn composites() -> Vec<(&'static str, Draw)> {
    vec![
        unary!("gelu erf", Any, |x| x.gelu(Gelu::Erf)),
        unary!("gelu tanh", Any, |x| x.gelu(Gelu::Tanh)),
        ("layer_norm", |rng| {
            let shape = dims(rng, 1, 3);
            let width = [*shape.last().expect("rank 1 or more")];
            let arguments = [
                real(&shape, Domain::Distinct),
                real(&width, Domain::Any),
                real(&width, Domain::Any),
            ];
            sample(arguments, |t| t[0].layer_norm(&t[1], &t[2], 1e-2))
        }),
        ("rms_norm", |rng| {
            let shape = dims(rng, 1, 3);
            let width = [*shape.last().expect("rank 1 or more")];
            let arguments = [real(&shape, Domain::Any), real(&width, Domain::Any)];
            sample(arguments, |t| t[0].rms_norm(&t[1], 1e-2))
        }),
        ("cross_entropy", |rng| {
            let (n, v) = (rng.int(1, 5), rng.int(1, 6));
            let arguments = [real(&[n, v], Domain::Any), Argument::Labels(vec![n], v)];
            sample(arguments, |t| t[0].cross_entropy(&t[1], -100))
        }),
        ("cross_entropy, all labels ignored", |rng| {
            let (n, v) = (rng.int(1, 3), rng.int(1, 4));
            let arguments = [real(&[n, v], Domain::Any), Argument::Ids(vec![n], 1)];
            sample(arguments, |t| t[0].cross_entropy(&t[1], 0))
        }),
    ]
}

fn attentions() -> Vec<(&'static str, Draw)> {
    vec![
        ("attention", |rng| attention(rng, plain(), 1.0)),
        ("attention, scaled", |rng| {
            attention(
                rng,
                Attention {
                    scale: F64::new(0.37),
                    ..plain()
                },
                1.0,
            )
        }),
        ("attention, causal", |rng| {
            attention(
                rng,
                Attention {
                    causal: true,
                    ..plain()
                },
                1.0,
            )
        }),
        ("attention, window", |rng| {
            let window = Some(rng.int(1, 3) as u32);
            attention(
                rng,
                Attention {
                    causal: true,
                    window,
                    ..plain()
                },
                1.0,
            )
        }),
        ("attention, window without causal", |rng| {
            let window = Some(rng.int(1, 3) as u32);
            attention(rng, Attention { window, ..plain() }, 1.0)
        }),
        ("attention, key mask", |rng| {
            attention(
                rng,
                Attention {
                    key_mask: KeyMask::Keys,
                    ..plain()
                },
                0.6,
            )
        }),
        ("attention, no visible key", |rng| {
            attention(
                rng,
                Attention {
                    key_mask: KeyMask::Keys,
                    ..plain()
                },
                0.0,
            )
        }),
        ("attention, dropout", |rng| {
            attention(
                rng,
                Attention {
                    dropout: Some(AttentionDropout::by_mask(0.4)),
                    ..plain()
                },
                1.0,
            )
        }),
        ("attention, soft cap", |rng| {
            attention(
                rng,
                Attention {
                    causal: true,
                    soft_cap: Some(F64::new(0.7)),
                    ..plain()
                },
                1.0,
            )
        }),
    ]
}

/// Attention that is computed block by block, within packed examples, and with all that it can have.
fn attentions_in_blocks() -> Vec<(&'static str, Draw)> {
    vec![
        ("attention, blocks of a window", |rng| {
            let causal = rng.bool(0.5);
            let of = Attention {
                causal,
                window: Some(rng.int(2, 4) as u32),
                key_mask: [KeyMask::None, KeyMask::Keys][rng.int(0, 1)],
                ..plain()
            };
            let length = if causal { 32 } else { 48 } + rng.int(0, 3);
            attention_of(of, 0.8, [1, 1, length, length, 1], 2)
        }),
        ("attention, packed examples", |rng| {
            let of = Attention {
                causal: true,
                window: [None, Some(3)][rng.int(0, 1)],
                key_mask: KeyMask::Before,
                dropout: [None, Some(AttentionDropout::by_mask(0.3))][rng.int(0, 1)],
                soft_cap: [None, Some(F64::new(0.7))][rng.int(0, 1)],
                ..plain()
            };
            attention_of(of, 1.0, [2, 1, 6, 6, 2], 2)
        }),
        ("attention, packed examples in blocks of a window", |rng| {
            let of = Attention {
                causal: true,
                window: Some(rng.int(2, 4) as u32),
                key_mask: KeyMask::Before,
                ..plain()
            };
            let length = 32 + rng.int(0, 3);
            attention_of(of, 1.0, [1, 1, length, length, 1], 2)
        }),
        ("attention, everything", |rng| {
            let window = Some(rng.int(1, 3) as u32);
            let dropout = Some(AttentionDropout::by_mask(0.3));
            attention(
                rng,
                Attention {
                    scale: F64::new(0.5),
                    causal: true,
                    window,
                    key_mask: KeyMask::Keys,
                    dropout,
                    soft_cap: Some(F64::new(1.5)),
                },
                0.7,
            )
        }),
    ]
}

fn plain() -> Attention {
    Attention {
        scale: F64::new(1.0),
        causal: false,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    }
}

/// Attention of small sizes, query and key lengths apart, one or two query heads to a key head;
/// keys are visible with probability `visible`.
fn attention(rng: &mut Rng, attributes: Attention, visible: f64) -> Sample {
    let [b, kv_heads, t, s, d] = [
        rng.int(1, 2),
        rng.int(1, 2),
        rng.int(1, 3),
        rng.int(1, 4),
        rng.int(1, 3),
    ];
    let group = rng.int(1, 2);
    attention_of(attributes, visible, [b, kv_heads, t, s, d], group)
}

/// The same of given sizes and query heads to a key head.
fn attention_of(
    attributes: Attention,
    visible: f64,
    [b, kv_heads, t, s, d]: [usize; 5],
    group: usize,
) -> Sample {
    let h = kv_heads * group;
    let mut arguments = vec![
        real(&[b, h, t, d], Domain::Any),
        real(&[b, kv_heads, s, d], Domain::Any),
        real(&[b, kv_heads, s, d], Domain::Any),
    ];
    match attributes.key_mask {
        KeyMask::None => {}
        KeyMask::Keys => arguments.push(Argument::Mask(vec![b, s], visible)),
        KeyMask::Before => arguments.push(Argument::Starts([b, t])),
    }
    if let Some(dropout) = attributes.dropout {
        arguments.push(Argument::Mask(vec![b, h, t, s], 1.0 - dropout.rate.get()));
    }
    let function = move |x: &[Tensor]| {
        let key_mask = attributes.key_mask.is_some().then(|| &x[3]);
        let keep = attributes.dropout.map(|_| &x[x.len() - 1]);
        x[0].attention(&x[1], &x[2], key_mask, keep, attributes)
    };
    Sample {
        arguments,
        function: Box::new(function),
    }
}
