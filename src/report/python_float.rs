//! Floats as Python prints them, because log scrapers for Hugging Face's Trainer read Python's `repr`.

/// `repr(x)` of a Python float.
pub use xtrain_jinja::python_float as repr;

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
