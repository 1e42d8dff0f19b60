//! Operations that move elements, reductions, products and row look-ups.

use crate::support::{Rng, Value, assert_close, evaluate};
use xtrain_graphs::op::DotDims;
use xtrain_graphs::{DType, Tensor};

fn counting(dims: &[usize]) -> Value {
    let n: usize = dims.iter().product();
    Value::new(
        DType::F32,
        dims,
        &(0..n).map(|i| i as f64).collect::<Vec<_>>(),
    )
}

#[test]
fn reshape_transpose_slice_concat_pad_broadcast() {
    let got = evaluate(&[counting(&[2, 3])], |_, x| {
        let x = &x[0];
        Ok(vec![
            x.reshape(&[3, 2])?,
            x.transpose(&[1, 0])?,
            x.slice(&[1, 0], &[2, 2])?,
            x.slice(&[0, 0], &[2, 3])?,
            Tensor::concat(&[x, x], 1)?,
            x.pad(&[1, 0], &[0, 1])?,
            x.broadcast_in(&[2, 2, 3], &[0, 2])?,
            x.barrier()?,
        ])
    });
    assert_eq!(got[0].numbers(), [0., 1., 2., 3., 4., 5.]);
    assert_eq!(got[1].numbers(), [0., 3., 1., 4., 2., 5.]);
    assert_eq!(got[2].numbers(), [3., 4.]);
    assert_eq!(got[3].numbers(), [0., 1., 2., 3., 4., 5.]);
    assert_eq!(
        got[4].numbers(),
        [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]
    );
    assert_eq!(
        got[5].numbers(),
        [0., 0., 0., 0., 0., 1., 2., 0., 3., 4., 5., 0.]
    );
    assert_eq!(
        got[6].numbers(),
        [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.]
    );
    assert_eq!(got[7].numbers(), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn transpose_of_four_dimensions() {
    // [B, T, H, D] -> [B, H, T, D], attention's move.
    let (b, t, h, d) = (2, 3, 2, 2);
    let got = evaluate(&[counting(&[b, t, h, d])], |_, x| {
        Ok(vec![x[0].transpose(&[0, 2, 1, 3])?])
    })
    .remove(0);
    let mut want = Vec::new();
    for (bi, hi) in (0..b).flat_map(|bi| (0..h).map(move |hi| (bi, hi))) {
        for (ti, di) in (0..t).flat_map(|ti| (0..d).map(move |di| (ti, di))) {
            want.push((((bi * t + ti) * h + hi) * d + di) as f64);
        }
    }
    assert_eq!(got.numbers(), want);
}

#[test]
fn padding_of_each_kind_is_zero() {
    let arguments = [
        Value::new(DType::S32, &[1], &[7.0]),
        Value::new(DType::Pred, &[1], &[1.0]),
    ];
    let got = evaluate(&arguments, |_, x| {
        Ok(vec![x[0].pad(&[1], &[1])?, x[1].pad(&[1], &[1])?])
    });
    assert_eq!(got[0].numbers(), [0., 7., 0.]);
    assert_eq!(got[1].numbers(), [0., 1., 0.]);
}

#[test]
fn reductions() {
    let x = Value::new(DType::F32, &[2, 3], &[1., -2., 3., -4., 5., -6.]);
    let got = evaluate(&[x], |_, x| {
        let x = &x[0];
        let whole = x.convert(DType::S32)?;
        Ok(vec![
            x.sum(&[1])?,
            x.max(&[0])?,
            x.min(&[0, 1])?,
            x.mean_last_keep()?,
            whole.sum(&[0])?,
            whole.max(&[1])?,
        ])
    });
    assert_eq!(got[0].numbers(), [2., -5.]);
    assert_eq!(got[1].numbers(), [1., 5., 3.]);
    assert_eq!(got[2].numbers(), [-6.]);
    assert_close(&got[3].numbers(), &[2. / 3., -5. / 3.], 1e-6);
    assert_eq!(got[3].shape.dims, [2, 1]);
    assert_eq!(got[4].numbers(), [-3., 3., -3.]);
    assert_eq!(got[5].numbers(), [3., 5.]);
    let bits = Value::new(DType::Pred, &[2, 2], &[1., 0., 1., 1.]);
    let got = evaluate(&[bits], |_, x| Ok(vec![x[0].max(&[0])?, x[0].min(&[0])?]));
    assert_eq!(
        (got[0].numbers(), got[1].numbers()),
        (vec![1., 1.], vec![1., 0.])
    );
}

#[test]
fn reductions_of_every_float_type_start_from_the_right_extreme() {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let low = Value::new(dtype, &[2], &[f64::NEG_INFINITY; 2]);
        let got = evaluate(&[low], |_, x| {
            Ok(vec![
                x[0].max(&[0])?,
                x[0].neg()?.min(&[0])?,
                x[0].sum(&[0])?,
            ])
        });
        assert_eq!(got[0].numbers(), [f64::NEG_INFINITY], "{dtype}");
        assert_eq!(got[1].numbers(), [f64::INFINITY], "{dtype}");
        assert_eq!(got[2].numbers(), [f64::NEG_INFINITY], "{dtype}");
    }
}

#[test]
fn products() {
    let mut rng = Rng(5);
    let (m, k, n) = (3, 4, 2);
    let (a, b) = (rng.floats(m * k, -1.0, 1.0), rng.floats(k * n, -1.0, 1.0));
    let arguments = [
        Value::new(DType::F32, &[m, k], &a),
        Value::new(DType::F32, &[k, n], &b),
    ];
    let got = evaluate(&arguments, |_, x| {
        let transposed = x[1].transpose(&[1, 0])?;
        // lhs contracts dimension 0, as in a weight's gradient.
        let dims = DotDims {
            lhs_contracting: vec![0],
            rhs_contracting: vec![0],
            ..Default::default()
        };
        let first = x[0]
            .transpose(&[1, 0])?
            .dot_general(&x[1], dims, DType::F32)?;
        Ok(vec![
            x[0].matmul(&x[1])?,
            x[0].matmul_transposed(&transposed)?,
            first,
        ])
    });
    let mut want = vec![0.0; m * n];
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        want[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
    }
    for got in got {
        assert_close(&got.numbers(), &want, 1e-6);
    }
}

#[test]
fn a_bf16_product_is_accumulated_in_the_type_asked_for() {
    // 1 + 256 ulps that bf16 would lose one by one.
    let n = 257;
    let arguments = [
        Value::new(DType::BF16, &[1, n], &vec![1.0; n]),
        Value::new(DType::BF16, &[n, 1], &vec![1.0; n]),
    ];
    let dims = DotDims {
        lhs_contracting: vec![1],
        rhs_contracting: vec![0],
        ..Default::default()
    };
    let got = evaluate(&arguments, |_, x| {
        Ok(vec![x[0].dot_general(&x[1], dims, DType::F32)?])
    })
    .remove(0);
    assert_eq!((got.shape.dtype, got.numbers()), (DType::F32, vec![257.0]));
}

#[test]
fn rows_are_taken_and_added() {
    let table = counting(&[4, 2]);
    let ids = Value::new(DType::S32, &[2, 2], &[3., 0., 0., 2.]);
    let got = evaluate(&[table.clone(), ids], |_, x| {
        Ok(vec![x[0].take_rows(&x[1])?])
    })
    .remove(0);
    assert_eq!(got.shape.dims, [2, 2, 2]);
    assert_eq!(got.numbers(), [6., 7., 0., 1., 0., 1., 4., 5.]);
    let ids = Value::new(DType::S32, &[3], &[1., 3., 1.]);
    let updates = Value::new(DType::F32, &[3, 2], &[10., 20., 30., 40., 50., 60.]);
    let got = evaluate(&[table, ids, updates], |_, x| {
        Ok(vec![x[0].scatter_add_rows(&x[1], &x[2])?])
    })
    .remove(0);
    assert_eq!(got.numbers(), [0., 1., 62., 83., 4., 5., 36., 47.]);
}

#[test]
fn ids_outside_the_table_are_clamped_when_read_and_ignored_when_added() {
    let ids = Value::new(DType::S32, &[2], &[-5., 9.]);
    let updates = Value::new(DType::F32, &[2, 2], &[1.; 4]);
    let got = evaluate(&[counting(&[3, 2]), ids, updates], |_, x| {
        Ok(vec![
            x[0].take_rows(&x[1])?,
            x[0].scatter_add_rows(&x[1], &x[2])?,
        ])
    });
    assert_eq!(got[0].numbers(), [0., 1., 4., 5.]);
    assert_eq!(got[1].numbers(), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn a_table_of_numbers_and_a_scalar_id() {
    let table = Value::new(DType::F32, &[3], &[5., 6., 7.]);
    let got = evaluate(&[table, Value::scalar(DType::S64, 2.0)], |_, x| {
        Ok(vec![x[0].take_rows(&x[1])?])
    })
    .remove(0);
    assert_eq!((got.shape.dims.len(), got.numbers()), (0, vec![7.]));
}
