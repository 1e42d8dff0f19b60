//! Floats as Python prints them, because log scrapers for Hugging Face's Trainer read Python's
//! `repr`. Both languages print the shortest digits that give the same number back; only the
//! notation differs.

/// `repr(x)` of a Python float.
pub fn repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    // Rust's exponent form gives the shortest digits: d.ddde<n>.
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("`{:e}` always writes an exponent");
    let exponent: i32 = exponent
        .parse()
        .expect("`{:e}` writes a whole number after the e");
    // Python changes notation below 1e-4 and from 1e16 on.
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') {
            plain
        } else {
            plain + ".0"
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Python's `round(x, digits)`: both languages round the exact binary value, ties to even.
pub fn round(x: f64, digits: usize) -> f64 {
    if !x.is_finite() {
        return x;
    }
    format!("{x:.digits$}")
        .parse()
        .expect("what Rust prints as a float it can read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repr_is_pythons() {
        // Right-hand sides were printed by Python 3.
        for (x, text) in [
            (5e-5, "5e-05"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012345"),
            (9.999e-5, "9.999e-05"),
            (1e-100, "1e-100"),
            (1.5e-7, "1.5e-07"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-2.5, "-2.5"),
            (100.0, "100.0"),
            (3.21, "3.21"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e16, "1e+16"),
            (1e22, "1e+22"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(repr(x), text);
        }
    }

    #[test]
    fn round_is_pythons() {
        for (x, digits, rounded) in [
            (3.21456, 4, 3.2146),
            (2.675, 2, 2.67),
            (0.5, 0, 0.0),
            (1.5, 0, 2.0),
            (0.125, 2, 0.12),
            (-1.00005, 4, -1.0001),
            (1e20, 2, 1e20),
        ] {
            assert_eq!(round(x, digits), rounded, "{x} to {digits}");
        }
        assert!(round(f64::NAN, 2).is_nan());
    }
}
