//! Element-wise operations, constants and conversions, in the types that models use.

use crate::support::reference::erf;
use crate::support::{Value, assert_close, evaluate};
use xtrain_graphs::op::Comparison;
use xtrain_graphs::{DType, Result, Shape, Tensor, backward};

const POINTS: [f64; 9] = [-7.5, -2.0, -1.0, -0.3, 0.0, 0.25, 1.0, 3.5, 6.0];
const POSITIVE: [f64; 6] = [1e-3, 0.25, 1.0, 2.0, 30.0, 1e4];

fn unary(points: &[f64], op: fn(&Tensor) -> Result<Tensor>, formula: fn(f64) -> f64) {
    // XLA's f32 exp, log, tanh and erf are polynomials with a few units in the last place; its f64
    // forms likewise.
    for (dtype, tolerance) in [
        (DType::F32, 1e-6),
        (DType::F64, 1e-13),
        (DType::BF16, 1e-2),
        (DType::F16, 2e-3),
    ] {
        let x = Value::new(dtype, &[points.len()], points);
        let want: Vec<f64> = x.numbers().into_iter().map(formula).collect();
        let got = evaluate(&[x], |_, x| Ok(vec![op(&x[0])?])).remove(0);
        assert_eq!(got.shape.dtype, dtype);
        assert_close(&got.numbers(), &want, tolerance);
    }
}

#[test]
fn unary_functions() {
    unary(&POINTS, |x| x.neg(), |x| -x);
    unary(&POINTS, |x| x.exp(), f64::exp);
    unary(&POINTS, |x| x.tanh(), f64::tanh);
    unary(&POINTS, |x| x.erf(), erf);
    unary(&POINTS, |x| x.logistic(), |x| 1.0 / (1.0 + (-x).exp()));
    unary(&POINTS, |x| x.sin(), f64::sin);
    unary(&POINTS, |x| x.cos(), f64::cos);
    unary(&POINTS, |x| x.abs(), f64::abs);
    unary(
        &POINTS,
        |x| x.sign(),
        |x| if x == 0.0 { 0.0 } else { x.signum() },
    );
    unary(&POINTS, |x| x.floor(), f64::floor);
    unary(&POSITIVE, |x| x.log(), f64::ln);
    unary(&POSITIVE, |x| x.log1p(), f64::ln_1p);
    unary(&POSITIVE, |x| x.sqrt(), f64::sqrt);
    unary(&POSITIVE, |x| x.rsqrt(), |x| 1.0 / x.sqrt());
}

#[test]
fn not_and_is_finite() {
    let bits = Value::new(DType::Pred, &[2], &[0.0, 1.0]);
    let words = Value::new(DType::U32, &[2], &[0.0, 5.0]);
    let floats = Value::new(
        DType::F32,
        &[4],
        &[1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
    );
    let got = evaluate(&[bits, words, floats], |_, x| {
        Ok(vec![x[0].not()?, x[1].not()?, x[2].is_finite()?])
    });
    assert_eq!(got[0].numbers(), [1.0, 0.0]);
    assert_eq!(got[1].numbers(), [4294967295.0, 4294967290.0]);
    assert_eq!(got[2].numbers(), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn binary_functions() {
    let (a, b) = ([-3.0, 0.5, 2.0, 7.0], [2.0, -1.5, 2.0, 4.0]);
    let values = [
        Value::new(DType::F32, &[4], &a),
        Value::new(DType::F32, &[4], &b),
    ];
    let got = evaluate(&values, |_, x| {
        let (a, b) = (&x[0], &x[1]);
        Ok(vec![
            a.add(b)?,
            a.sub(b)?,
            a.mul(b)?,
            a.div(b)?,
            a.maximum(b)?,
            a.minimum(b)?,
            a.abs()?.pow(b)?,
            a.rem(b)?,
        ])
    });
    let formulas: [fn(f64, f64) -> f64; 8] = [
        |a, b| a + b,
        |a, b| a - b,
        |a, b| a * b,
        |a, b| a / b,
        f64::max,
        f64::min,
        |a, b| a.abs().powf(b),
        // The sign of the dividend, as in C.
        |a, b| a % b,
    ];
    for (got, formula) in got.iter().zip(formulas) {
        let want: Vec<f64> = a.iter().zip(b).map(|(&a, b)| formula(a, b)).collect();
        assert_close(&got.numbers(), &want, 1e-6);
    }
}

#[test]
fn bit_operations() {
    let (a, b) = (0xDEAD_BEEFu32, 7u32);
    let values = [
        Value::scalar(DType::U32, f64::from(a)),
        Value::scalar(DType::U32, f64::from(b)),
    ];
    let got = evaluate(&values, |_, x| {
        let (a, b) = (&x[0], &x[1]);
        Ok(vec![
            a.and(b)?,
            a.or(b)?,
            a.xor(b)?,
            a.shift_left(b)?,
            a.shift_right_logical(b)?,
            a.add(a)?,
        ])
    });
    let want = [a & b, a | b, a ^ b, a << b, a >> b, a.wrapping_add(a)];
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.numbers(), [f64::from(want)]);
    }
    // A logical shift fills with zeros for signed types too.
    let signed = [
        Value::scalar(DType::S32, -8.0),
        Value::scalar(DType::S32, 1.0),
    ];
    let got = evaluate(&signed, |_, x| Ok(vec![x[0].shift_right_logical(&x[1])?]));
    assert_eq!(got[0].numbers(), [f64::from(((-8i32) as u32 >> 1) as i32)]);
}

#[test]
fn comparisons_of_floats_integers_and_predicates() {
    let orders = [
        Comparison::Eq,
        Comparison::Ne,
        Comparison::Lt,
        Comparison::Le,
        Comparison::Gt,
        Comparison::Ge,
    ];
    let check = |a: Value, b: Value, want: [[f64; 3]; 6]| {
        let got = evaluate(&[a, b], |_, x| {
            orders
                .iter()
                .map(|&order| x[0].compare(order, &x[1]))
                .collect()
        });
        for (got, want) in got.iter().zip(want) {
            assert_eq!(got.shape.dtype, DType::Pred);
            assert_eq!(got.numbers(), want);
        }
    };
    let ordered = [
        [0., 1., 0.],
        [1., 0., 1.],
        [1., 0., 0.],
        [1., 1., 0.],
        [0., 0., 1.],
        [0., 1., 1.],
    ];
    check(
        Value::new(DType::F32, &[3], &[-1.0, 2.0, 5.0]),
        Value::new(DType::F32, &[3], &[1.0, 2.0, 3.0]),
        ordered,
    );
    check(
        Value::new(DType::S32, &[3], &[-1.0, 2.0, 5.0]),
        Value::new(DType::S32, &[3], &[1.0, 2.0, 3.0]),
        ordered,
    );
    // Unsigned: 4294967295 is not -1.
    check(
        Value::new(DType::U32, &[3], &[1.0, 2.0, 4294967295.0]),
        Value::new(DType::U32, &[3], &[3.0, 2.0, 1.0]),
        ordered,
    );
    check(
        Value::new(DType::Pred, &[3], &[0.0, 1.0, 1.0]),
        Value::new(DType::Pred, &[3], &[1.0, 1.0, 0.0]),
        ordered,
    );
    // Every order but "not equal" is false for a NaN.
    let nan = Value::new(DType::F32, &[3], &[f64::NAN; 3]);
    check(
        nan.clone(),
        nan,
        [[0.; 3], [1.; 3], [0.; 3], [0.; 3], [0.; 3], [0.; 3]],
    );
}

#[test]
fn select_broadcasts_its_predicate() {
    let pred = Value::new(DType::Pred, &[2, 1], &[1.0, 0.0]);
    let (a, b) = (
        Value::new(DType::F32, &[2, 2], &[1., 2., 3., 4.]),
        Value::new(DType::F32, &[2, 2], &[5., 6., 7., 8.]),
    );
    let got = evaluate(&[pred, a, b], |_, x| Ok(vec![x[0].select(&x[1], &x[2])?]));
    assert_eq!(got[0].numbers(), [1., 2., 7., 8.]);
}

#[test]
fn constants_of_every_type() {
    let types = [
        (DType::Pred, 1.0),
        (DType::S8, -128.0),
        (DType::S32, -2147483648.0),
        (DType::S64, -4503599627370497.0),
        (DType::U8, 255.0),
        (DType::U32, 4294967295.0),
        (DType::U64, 9007199254740991.0),
        (DType::F16, -65504.0),
        (DType::BF16, 3.140625),
        (DType::F32, f64::from(f32::MIN)),
        (DType::F64, 0.1),
    ];
    let got = evaluate(&[], |trace, _| {
        types
            .iter()
            .map(|&(dtype, value)| trace.constant(value, dtype))
            .collect()
    });
    for (got, (dtype, value)) in got.iter().zip(types) {
        assert_eq!((got.shape.dtype, got.numbers()), (dtype, vec![value]));
    }
}

#[test]
fn conversions_round_and_truncate() {
    let floats = Value::new(DType::F32, &[4], &[1.9, -1.9, 300.7, 1.0 + 1.0 / 256.0]);
    let types = [
        DType::S32,
        DType::S64,
        DType::BF16,
        DType::F16,
        DType::F64,
        DType::Pred,
    ];
    let got = evaluate(&[floats], |_, x| {
        types.iter().map(|&dtype| x[0].convert(dtype)).collect()
    });
    assert_eq!(got[0].numbers(), [1.0, -1.0, 300.0, 1.0]);
    assert_eq!(got[1].numbers(), [1.0, -1.0, 300.0, 1.0]);
    // To nearest, ties to even: 1 + 2^-8 lies between 1 and 1 + 2^-7.
    assert_eq!(got[2].numbers(), [1.8984375, -1.8984375, 300.0, 1.0]);
    assert_eq!(
        got[3].numbers(),
        [1.900390625, -1.900390625, 300.75, 1.00390625]
    );
    assert_eq!(got[4].numbers()[3], 1.0 + 1.0 / 256.0);
    assert_eq!(got[5].numbers(), [1.0; 4]);
}

#[test]
fn bitcast_keeps_bits() {
    let got = evaluate(&[Value::new(DType::F32, &[2], &[1.0, -0.0])], |_, x| {
        Ok(vec![x[0].bitcast(DType::U32)?])
    });
    assert_eq!(
        got[0].numbers(),
        [f64::from(0x3F80_0000u32), f64::from(0x8000_0000u32)]
    );
}

#[test]
fn full_and_iota() {
    let got = evaluate(&[], |trace, _| {
        Ok(vec![
            trace.full(2.5, &Shape::new(DType::F32, [2, 2]))?,
            trace.iota(DType::S32, &[2, 3], 1)?,
            trace.iota(DType::F32, &[2, 2], 0)?,
        ])
    });
    assert_eq!(got[0].numbers(), [2.5; 4]);
    assert_eq!(got[1].numbers(), [0., 1., 2., 0., 1., 2.]);
    assert_eq!(got[2].numbers(), [0., 0., 1., 1.]);
}

/// torch and JAX agree: nothing goes back at 0.
#[test]
fn the_gradient_of_relu_is_0_at_0_and_below() {
    let x = Value::new(DType::F32, &[5], &[-2.0, -0.0, 0.0, 1e-30, 3.0]);
    let got = evaluate(&[x], |_, x| {
        let y = x[0].relu()?;
        let mut results = vec![y.clone()];
        results.extend(backward(&y.sum_all()?, &x[..1])?);
        Ok(results)
    });
    assert_eq!(got[0].numbers(), [0.0, 0.0, 0.0, f64::from(1e-30f32), 3.0]);
    assert_eq!(got[1].numbers(), [0.0, 0.0, 0.0, 1.0, 1.0]);
}
