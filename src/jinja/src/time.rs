//! The date, as `datetime.now().strftime` writes it.

use crate::error::{Result, refuse};
use std::ffi::CString;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of the longest date.
const LONGEST: usize = 1 << 16;

/// Now, in the time of this machine.
pub(crate) fn now(format: &str) -> Result<String> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    written(format, since.as_secs() as i64, since.subsec_micros())
}

/// A time by a format of C's `strftime`, to which Python adds microseconds; a time without a zone has
/// an empty one.
pub(crate) fn written(format: &str, seconds: i64, microseconds: u32) -> Result<String> {
    let mut plain = String::with_capacity(format.len());
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('f') => plain.push_str(&format!("{microseconds:06}")),
            Some('z' | 'Z') => {}
            Some(kind) => plain.extend(['%', kind]),
            None => plain.push_str("%%"),
        }
    }
    if plain.is_empty() {
        return Ok(plain);
    }
    if plain.len() > LONGEST / 64 {
        return refuse("the date's format is too long");
    }
    // The call returns 0 for an empty date and for one that does not fit: a letter makes it longer.
    let Ok(format) = CString::new(plain + "x") else {
        return refuse("embedded null character");
    };
    // SAFETY: all-zero bytes are a valid `tm`.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    let time = seconds as libc::time_t;
    let mut buffer = vec![0_u8; LONGEST];
    // SAFETY: the time and the parts outlive the call.
    let is_known = !unsafe { libc::localtime_r(&time, &mut parts) }.is_null();
    let length = if is_known {
        // SAFETY: the buffer has as many bytes as the call is given, and the format ends with a zero.
        unsafe {
            libc::strftime(
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                format.as_ptr(),
                &parts,
            )
        }
    } else {
        0
    };
    match length.checked_sub(1) {
        Some(length) => Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
        None => refuse("the date cannot be written"),
    }
}
