//! Views of what a plugin hands out: strings and arrays behind pointers.

use std::ffi::c_char;

/// Copies a plugin's string, which has no terminator.
///
/// # Safety
/// `data` points to `size` readable bytes, or is null.
pub(super) unsafe fn string(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise is the same.
    String::from_utf8_lossy(unsafe { bytes(data, size) }).into_owned()
}

/// Views a plugin's bytes.
///
/// # Safety
/// `data` points to `size` readable bytes that live as long as the caller uses the result, or is
/// null.
pub(super) unsafe fn bytes<'a>(data: *const c_char, size: usize) -> &'a [u8] {
    if data.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: not null, and readable for `size` bytes by the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), size) }
}

/// As `bytes`, for other elements.
///
/// # Safety
/// `data` points to `count` initialized elements that live as long as the caller uses the result,
/// or is null.
pub(super) unsafe fn array<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if data.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: not null, and readable by the caller's promise.
    unsafe { std::slice::from_raw_parts(data, count) }
}
