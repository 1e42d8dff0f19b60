//! Composites: GELU, layer norm, cross entropy, attention.

use crate::support::{Rng, Value, assert_close, evaluate, reference};
use xtrain_graphs::op::{Attention, AttentionDropout, F64, Gelu, KeyMask};
use xtrain_graphs::{DType, Tensor, backward};

#[test]
fn gelu_in_both_forms() {
    let points: Vec<f64> = (-40..=40).map(|i| f64::from(i) / 5.0).collect();
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-13)] {
        let x = Value::new(dtype, &[points.len()], &points);
        let values = x.numbers();
        let got = evaluate(&[x], |_, x| {
            Ok(vec![x[0].gelu(Gelu::Erf)?, x[0].gelu(Gelu::Tanh)?])
        });
        let want = |formula: fn(f64) -> f64| values.iter().map(|&x| formula(x)).collect::<Vec<_>>();
        assert_close(&got[0].numbers(), &want(reference::gelu_erf), tolerance);
        assert_close(&got[1].numbers(), &want(reference::gelu_tanh), tolerance);
    }
}

#[test]
fn layer_norm_rows() {
    let mut rng = Rng(3);
    let (n, width) = (4, 7);
    let (mut x, gamma, beta) = (
        rng.floats(n * width, -5.0, 5.0),
        rng.floats(width, 0.5, 2.0),
        rng.floats(width, -1.0, 1.0),
    );
    // A constant row has no variance: eps alone keeps it finite.
    x[..width].fill(3.0);
    // A large offset: the variance must be taken around the mean.
    x[width..2 * width].iter_mut().for_each(|x| *x += 1000.0);
    let arguments = [
        Value::new(DType::F32, &[2, 2, width], &x),
        Value::new(DType::F32, &[width], &gamma),
        Value::new(DType::F32, &[width], &beta),
    ];
    let [x, gamma, beta] = [0, 1, 2].map(|i: usize| arguments[i].numbers());
    let got = evaluate(&arguments, |_, x| {
        Ok(vec![x[0].layer_norm(&x[1], &x[2], 1e-5)?])
    })
    .remove(0)
    .numbers();
    let want: Vec<f64> = x
        .chunks(width)
        .flat_map(|row| reference::layer_norm(row, &gamma, &beta, 1e-5))
        .collect();
    // XLA takes the mean as sum * (1 / 7), a unit in the last place off: 2.4e-7, magnified by gamma
    // / sqrt(eps) = 632.
    assert_close(&got[..width], &want[..width], 2e-4);
    // x - mean at 1000 keeps 1e-4 of absolute accuracy in f32.
    assert_close(&got[width..2 * width], &want[width..2 * width], 1e-4);
    assert_close(&got[2 * width..], &want[2 * width..], 2e-6);
}

#[test]
fn cross_entropy_ignores_and_survives_extremes() {
    let rows = [
        [0.5, -1.0, 2.0],
        [1e4, -1e4, 0.0],
        [1e4, -1e4, 0.0],
        [-3e38, 3e38, 0.0],
        [1.0, 2.0, 3.0],
        [7.0, 7.0, 7.0],
    ];
    let labels = [2i64, 0, 1, 1, -100, 0];
    let logits = Value::new(DType::F32, &[6, 3], rows.as_flattened());
    let values = logits.numbers();
    let label_values = Value::new(DType::S32, &[6], &labels.map(|l| l as f64));
    let got = evaluate(&[logits, label_values], |_, x| {
        let losses = x[0].cross_entropy(&x[1], -100)?;
        let mut results = backward(&losses.sum_all()?, &[x[0].clone()])?;
        results.push(losses);
        Ok(results)
    });
    let want: Vec<f64> = values
        .chunks(3)
        .zip(labels)
        .map(|(row, label)| reference::cross_entropy(row, label, -100))
        .collect();
    assert_close(&got[1].numbers(), &want, 1e-6);
    let mut slopes = Vec::new();
    for (row, label) in values.chunks(3).zip(labels) {
        let hit = |i: usize| f64::from(u8::from(i as i64 == label));
        slopes.extend(
            reference::softmax(row)
                .iter()
                .enumerate()
                .map(|(i, p)| if label == -100 { 0.0 } else { p - hit(i) }),
        );
    }
    assert_close(&got[0].numbers(), &slopes, 1e-6);
}

/// Compares one attention with the scalar formula, in f32.
fn attention(
    attributes: Attention,
    t: usize,
    s: usize,
    key_mask: Option<&[f64]>,
    keep: Option<&[f64]>,
) {
    let mut rng = Rng(11);
    let (b, h, d) = (2, 2, 3);
    let mut draw = |len: usize| {
        Value::new(
            DType::F32,
            &[b, h, len, d],
            &rng.floats(b * h * len * d, -1.5, 1.5),
        )
    };
    let mut arguments = vec![draw(t), draw(s), draw(s)];
    let [q, k, v] = [0, 1, 2].map(|i: usize| arguments[i].numbers());
    let is_packed = attributes.key_mask == KeyMask::Before;
    let dtype = if is_packed { DType::S32 } else { DType::Pred };
    arguments.extend(key_mask.map(|mask| Value::new(dtype, &[b, s], mask)));
    // Of examples the mask has the first key of each query.
    let shows = |mask: &[f64], entry: usize, ti: usize, si: usize| {
        if is_packed {
            si as f64 >= mask[entry * t + ti]
        } else {
            mask[entry * s + si] != 0.0
        }
    };
    arguments.extend(keep.map(|keep| Value::new(DType::Pred, &[b, h, t, s], keep)));
    let got = evaluate(&arguments, |_, x| {
        let keep = keep.map(|_| x.last().unwrap());
        Ok(vec![x[0].attention(
            &x[1],
            &x[2],
            key_mask.map(|_| &x[3]),
            keep,
            attributes,
        )?])
    });
    let rows = |x: &[f64], head: usize, len: usize| -> Vec<Vec<f64>> {
        x[head * len * d..(head + 1) * len * d]
            .chunks(d)
            .map(<[f64]>::to_vec)
            .collect()
    };
    let mut want = Vec::new();
    for head in 0..b * h {
        let reference = reference::Attention {
            q: &rows(&q, head, t),
            k: &rows(&k, head, s),
            v: &rows(&v, head, s),
            scale: attributes.scale.get(),
            visible: &|ti, si| {
                (!attributes.causal || si <= ti)
                    && attributes
                        .window
                        .is_none_or(|w| within(attributes, w, ti, si))
                    && key_mask.is_none_or(|mask| shows(mask, head / h, ti, si))
            },
            counts_unseen: &|ti, si| match (attributes.window, key_mask) {
                // Two masks, each with the causal one in it: what both block is blocked twice.
                (Some(w), Some(mask)) => {
                    (!attributes.causal || si <= ti)
                        && (within(attributes, w, ti, si) || shows(mask, head / h, ti, si))
                }
                _ => true,
            },
            soft_cap: attributes.soft_cap.map(F64::get),
            dropout: &|ti, si| match (attributes.dropout, keep) {
                (Some(dropout), Some(keep)) => {
                    keep[(head * t + ti) * s + si] / (1.0 - dropout.rate.get())
                }
                _ => 1.0,
            },
        };
        want.extend(reference.output().concat());
    }
    assert_close(&got[0].numbers(), &want, 2e-6);
}

/// Whether key `s` lies in the window of query `t`.
fn within(attributes: Attention, window: u32, t: usize, s: usize) -> bool {
    let window = window as usize;
    s + window > t && (attributes.causal || s < t + window)
}

#[test]
fn attention_with_each_mask() {
    let plain = Attention {
        scale: F64::new(0.6),
        causal: false,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    // Batch entry 1 sees no key at all: uniform, not NaN.
    let mask = [1., 0., 1., 1., 0., 0., 0., 0.];
    let mut rng = Rng(2);
    let keep: Vec<f64> = (0..2 * 2 * 4 * 4)
        .map(|_| f64::from(u8::from(rng.bool(0.7))))
        .collect();
    let dropout = Some(AttentionDropout::by_mask(0.3));
    attention(plain, 3, 5, None, None);
    let capped = Attention {
        soft_cap: Some(F64::new(0.5)),
        window: Some(2),
        ..plain
    };
    attention(capped, 4, 5, None, None);
    attention(
        Attention {
            causal: true,
            ..plain
        },
        4,
        4,
        None,
        None,
    );
    attention(
        Attention {
            causal: true,
            ..plain
        },
        3,
        5,
        None,
        None,
    );
    attention(
        Attention {
            causal: true,
            window: Some(2),
            ..plain
        },
        5,
        5,
        None,
        None,
    );
    attention(
        Attention {
            causal: true,
            window: Some(1),
            ..plain
        },
        4,
        4,
        None,
        None,
    );
    attention(
        Attention {
            window: Some(2),
            ..plain
        },
        5,
        3,
        None,
        None,
    );
    attention(plain, 4, 4, Some(&mask), None);
    attention(
        Attention {
            causal: true,
            ..plain
        },
        4,
        4,
        Some(&mask),
        None,
    );
    attention(Attention { dropout, ..plain }, 4, 4, None, Some(&keep));
    attention(
        Attention {
            causal: true,
            window: Some(3),
            dropout,
            ..plain
        },
        4,
        4,
        Some(&mask),
        Some(&keep),
    );
}

/// Lengths at which windows are computed block by block, the last block padded or not.
#[test]
fn attention_in_blocks_of_a_window() {
    let plain = Attention {
        scale: F64::new(0.6),
        causal: true,
        window: Some(3),
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    // Every third key of a row is hidden, so that no query is without one.
    let mask = |t: usize| -> Vec<f64> {
        (0..2 * t)
            .map(|i| f64::from(u8::from(i % t % 3 != 1)))
            .collect()
    };
    for t in [32, 40, 53] {
        attention(plain, t, t, None, None);
        let window = Some(9);
        attention(Attention { window, ..plain }, t, t, Some(&mask(t)), None);
    }
    let both_sides = Attention {
        causal: false,
        window: Some(5),
        soft_cap: Some(F64::new(0.8)),
        ..plain
    };
    // Two blocks to each side.
    let window = Some(131);
    attention(Attention { window, ..plain }, 500, 500, None, None);
    attention(
        Attention {
            window,
            ..both_sides
        },
        750,
        750,
        None,
        None,
    );
    for t in [48, 53] {
        attention(both_sides, t, t, None, None);
        attention(both_sides, t, t, Some(&mask(t)), None);
    }
}

/// Where the example of each token of a row begins: examples of these lengths, over and over.
fn starts(t: usize, lengths: &[usize]) -> Vec<f64> {
    let mut starts = Vec::new();
    for length in lengths.iter().cycle() {
        if starts.len() >= t {
            break;
        }
        starts.extend(vec![starts.len() as f64; *length]);
    }
    starts.truncate(t);
    starts
}

/// Packed examples see themselves alone, in their windows, whole rows or block by block; the two rows
/// have other examples.
#[test]
fn attention_within_packed_examples() {
    let packed = Attention {
        scale: F64::new(0.6),
        causal: true,
        window: None,
        key_mask: KeyMask::Before,
        dropout: None,
        soft_cap: None,
    };
    let rows = |t: usize| [starts(t, &[3, 1, 7]), starts(t, &[t])].concat();
    for (window, cap, t) in [
        (None, None, 12),
        (Some(4), None, 12),
        (None, Some(0.8), 23),
        (Some(3), Some(0.8), 41),
        (Some(131), None, 600),
    ] {
        let of = Attention {
            window,
            soft_cap: cap.map(F64::new),
            ..packed
        };
        attention(of, t, t, Some(&rows(t)), None);
    }
}

/// Query heads that share a key and value head get what each would of a copy of its own.
#[test]
fn grouped_queries_are_attention_with_repeated_heads() {
    let mut rng = Rng(5);
    let (b, h, kv, t, d) = (2, 6, 2, 4, 3);
    let mut draw = |heads: usize| {
        let numbers = rng.floats(b * heads * t * d, -1.5, 1.5);
        Value::new(DType::F64, &[b, heads, t, d], &numbers)
    };
    let arguments = [draw(h), draw(kv), draw(kv), draw(h)];
    let causal = Attention {
        scale: F64::new(0.6),
        causal: true,
        window: None,
        key_mask: KeyMask::None,
        dropout: None,
        soft_cap: None,
    };
    let run = |repeats: bool| {
        evaluate(&arguments, |_, x| {
            let heads = |x: &Tensor| {
                if repeats {
                    x.broadcast_in(&[b, kv, h / kv, t, d], &[0, 1, 3, 4])?
                        .reshape(&[b, h, t, d])
                } else {
                    Ok(x.clone())
                }
            };
            let y = x[0].attention(&heads(&x[1])?, &heads(&x[2])?, None, None, causal)?;
            let loss = y.mul(&x[3])?.sum_all()?;
            let mut results = vec![y];
            results.extend(backward(&loss, &x[..3])?);
            Ok(results)
        })
    };
    for (grouped, repeated) in run(false).iter().zip(run(true)) {
        assert_eq!(grouped.shape, repeated.shape);
        assert_close(&grouped.numbers(), &repeated.numbers(), 1e-13);
    }
}
