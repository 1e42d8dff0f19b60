//! The C boundary, both ways: what the shared library exports, and the C++ functions behind it
//! (cpp/plugin.cc).
//!
//! Convention of the exported functions that return bytes: 0 and the result, or 1 and a UTF-8
//! message, in memory that the caller gives back with `xtrain_xla_free`. A panic becomes a message;
//! nothing unwinds into the caller.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

unsafe extern "C" {
    fn xtrain_cpp_pjrt_api() -> *const c_void;
    fn xtrain_cpp_register_kernels();
    fn xtrain_cpp_has_kernel(kernel: i64) -> c_int;
    fn xtrain_cpp_measure_kernels(gflops: *mut f64, peaks: *mut f64, count: i64);
    fn xtrain_cpp_hlo_text(
        module: *const u8,
        len: usize,
        out: *mut *mut u8,
        out_len: *mut usize,
    ) -> c_int;
    fn xtrain_cpp_stablehlo_text(
        module: *const u8,
        len: usize,
        out: *mut *mut u8,
        out_len: *mut usize,
    ) -> c_int;
    fn xtrain_cpp_profile_begin() -> *mut c_void;
    fn xtrain_cpp_profile_end(
        session: *mut c_void,
        out: *mut *mut u8,
        out_len: *mut usize,
    ) -> c_int;
    fn free(memory: *mut c_void);
}

/// The table of PJRT calls of the CPU plugin. Every PJRT client looks for this name.
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    register_kernels();
    // SAFETY: takes nothing and returns a pointer to a static table.
    unsafe { xtrain_cpp_pjrt_api() }
}

/// Makes the kernels known to XLA under their names; more than once is as good as once.
pub fn register_kernels() {
    // SAFETY: takes and returns nothing.
    unsafe { xtrain_cpp_register_kernels() }
}

/// Whether this processor executes a kernel, by its number (`CpuKernel::number`): 1, or 0 if not.
#[unsafe(no_mangle)]
pub extern "C" fn xtrain_xla_has_kernel(kernel: i64) -> c_int {
    // SAFETY: takes a number, any number.
    unsafe { xtrain_cpp_has_kernel(kernel) }
}

/// Measures the kernels that this processor executes, on the calling thread, in at most 0.3 s. Writes for
/// each by its number the GFLOP/s that it reaches on one core and those of its instructions on registers
/// alone; 0 for the others.
///
/// # Safety
/// Both arrays have `count` writable elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_measure_kernels(
    gflops: *mut f64,
    peaks: *mut f64,
    count: usize,
) {
    // SAFETY: the caller's promise is the same.
    unsafe { xtrain_cpp_measure_kernels(gflops, peaks, count as i64) }
}

/// Version of the functions below; a caller refuses a library whose number it does not know.
#[unsafe(no_mangle)]
pub extern "C" fn xtrain_xla_abi() -> u32 {
    crate::ABI
}

/// What identifies the XLA library, as a C string that lives forever.
#[unsafe(no_mangle)]
pub extern "C" fn xtrain_xla_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("XTRAIN_XLA_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has a zero byte"),
        };
    VERSION.as_ptr()
}

/// Lowers a canonical graph to a serialized `HloModuleProto`.
///
/// # Safety
/// `graph` points to `len` readable bytes; `out` and `out_len` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_lower(
    graph: *const u8,
    len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe { answer(graph, len, out, out_len, crate::lower) }
}

/// The HLO text of a serialized `HloModuleProto`.
///
/// # Safety
/// `module` points to `len` readable bytes; `out` and `out_len` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_hlo_text(
    module: *const u8,
    len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(module, len, out, out_len, |bytes| {
            crate::hlo_text(bytes).map(String::into_bytes)
        })
    }
}

/// The StableHLO text of a serialized `HloModuleProto`.
///
/// # Safety
/// `module` points to `len` readable bytes; `out` and `out_len` are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_stablehlo_text(
    module: *const u8,
    len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise is the same.
    unsafe {
        answer(module, len, out, out_len, |bytes| {
            crate::stablehlo_text(bytes).map(String::into_bytes)
        })
    }
}

/// Starts to record what the CPU client runs; null if something in the process does so already.
#[unsafe(no_mangle)]
pub extern "C" fn xtrain_xla_profile_begin() -> *mut c_void {
    // SAFETY: takes nothing.
    unsafe { xtrain_cpp_profile_begin() }
}

/// Ends a recording: a line for each name of an event (of an HLO instruction, for what it ran),
/// with the picoseconds of all of them, their number and the name, separated by tabs.
///
/// # Safety
/// `session` is of `xtrain_xla_profile_begin`, not null, ended once; `out` and `out_len` are
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_profile_end(
    session: *mut c_void,
    out: *mut *mut u8,
    out_len: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise is the same, and an empty input is readable.
    unsafe {
        answer([].as_ptr(), 0, out, out_len, |_| {
            text(|text, len| xtrain_cpp_profile_end(session, text, len)).map(String::into_bytes)
        })
    }
}

/// Gives back what the functions above returned.
///
/// # Safety
/// `memory` and `len` are an answer of a function above, given back once; or `memory` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xtrain_xla_free(memory: *mut u8, len: usize) {
    if !memory.is_null() {
        // SAFETY: `answer` made it from a boxed slice of this length.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(memory, len)) });
    }
}

/// Runs `work` on the caller's bytes and hands its result or its error over.
///
/// # Safety
/// `input` points to `len` readable bytes, or `len` is 0; `out` and `out_len` are writable.
unsafe fn answer(
    input: *const u8,
    len: usize,
    out: *mut *mut u8,
    out_len: *mut usize,
    work: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> c_int {
    // SAFETY: the caller promises `len` readable bytes; a null pointer is allowed for none.
    let input = if len == 0 {
        &[]
    } else {
        unsafe { slice::from_raw_parts(input, len) }
    };
    let result = catch_unwind(AssertUnwindSafe(|| work(input))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("internal error: {}", text.unwrap_or("a panic")))
    });
    let (status, bytes) = match result {
        Ok(bytes) => (0, bytes),
        Err(message) => (1, message.into_bytes()),
    };
    let bytes = bytes.into_boxed_slice();
    // SAFETY: the caller promises that both are writable.
    unsafe {
        *out_len = bytes.len();
        *out = Box::into_raw(bytes).cast();
    }
    status
}

/// A C++ function from a module's bytes to text.
type Printer = unsafe extern "C" fn(*const u8, usize, *mut *mut u8, *mut usize) -> c_int;

/// The C++ side's HLO printer.
pub(crate) fn cpp_hlo_text(module: &[u8]) -> Result<String, String> {
    print(xtrain_cpp_hlo_text, module)
}

/// The C++ side's way from HLO to StableHLO.
pub(crate) fn cpp_stablehlo_text(module: &[u8]) -> Result<String, String> {
    print(xtrain_cpp_stablehlo_text, module)
}

fn print(printer: Printer, module: &[u8]) -> Result<String, String> {
    // SAFETY: the slice is readable, the two results are writable.
    text(|text, len| unsafe { printer(module.as_ptr(), module.len(), text, len) })
}

/// What a C++ function that sets a text and its length answers.
fn text(answer: impl FnOnce(*mut *mut u8, *mut usize) -> c_int) -> Result<String, String> {
    let (mut text, mut len) = (ptr::null_mut(), 0);
    let status = answer(&raw mut text, &raw mut len);
    if text.is_null() {
        return Err("out of memory".to_string());
    }
    // SAFETY: the function above set `text` to `len` bytes.
    let copy = String::from_utf8_lossy(unsafe { slice::from_raw_parts(text, len) }).into_owned();
    // SAFETY: it came from malloc, and nothing points into it any more.
    unsafe { free(text.cast()) };
    if status == 0 { Ok(copy) } else { Err(copy) }
}
