//! Numbers with units, short enough for a table: bytes, counts, durations.

use std::time::Duration;

/// `512 B`, `1.5 KiB`, `475.2 MiB`.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let (value, unit) = scaled(n as f64, 1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB"]);
    format!("{value:.1} {unit}")
}

/// A value of at least `base` in the largest unit of which it has one, each `base` times the one
/// before it.
fn scaled<const N: usize>(value: f64, base: f64, units: [&'static str; N]) -> (f64, &'static str) {
    let (mut value, mut unit) = (value / base, 0);
    // What would print as `base`.0 belongs to the next unit.
    while value.abs() >= base - 0.05 && unit + 1 < N {
        value /= base;
        unit += 1;
    }
    (value, units[unit])
}

/// `950`, `12.4k`, `124.4M`, `6.1B`.
pub fn count(n: f64) -> String {
    if n.abs() < 999.5 {
        return if n.fract() == 0.0 {
            format!("{n:.0}")
        } else {
            format!("{n:.1}")
        };
    }
    let (value, unit) = scaled(n, 1e3, ["k", "M", "B", "T"]);
    format!("{value:.1}{unit}")
}

/// Floating-point operations: `950 FLOP`, `42.1 GFLOP`.
pub fn flop(n: f64) -> String {
    if n.abs() < 999.5 {
        return format!("{} FLOP", count(n));
    }
    let (value, unit) = scaled(n, 1e3, ["k", "M", "G", "T", "P", "E"]);
    format!("{value:.1} {unit}FLOP")
}

/// Thousands with commas: `124,439,808`.
pub fn exact(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `0.8 ms`, `3.2 s`, `4m 05s`, `1h 02m`, `3d 04h`.
pub fn duration(d: Duration) -> String {
    let seconds = d.as_secs_f64();
    if seconds < 0.9995 {
        return format!("{:.1} ms", seconds * 1e3);
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        ..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        3600..86400 => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d {:02}h", whole / 86400, whole % 86400 / 3600),
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_binary() {
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1048575, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn counts_are_decimal() {
        for (n, text) in [
            (0.0, "0"),
            (950.0, "950"),
            (12.34, "12.3"),
            (999.9, "1.0k"),
            (12_400.0, "12.4k"),
            (124_439_808.0, "124.4M"),
            (6.05e9, "6.0B"),
        ] {
            assert_eq!(count(n), text);
        }
        for (n, text) in [
            (950.0, "950 FLOP"),
            (42.1e9, "42.1 GFLOP"),
            (2.65e13, "26.5 TFLOP"),
        ] {
            assert_eq!(flop(n), text);
        }
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (124_439_808, "124,439,808"),
        ] {
            assert_eq!(exact(n), text);
        }
    }

    #[test]
    fn durations_take_two_units_at_most() {
        for (seconds, text) in [
            (0.0008, "0.8 ms"),
            (3.21, "3.2 s"),
            (59.96, "1m 00s"),
            (245.0, "4m 05s"),
            (3725.0, "1h 02m"),
            (273600.0, "3d 04h"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
