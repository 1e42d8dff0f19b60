//! A PJRT plugin that passes every call on to a real one, but for the fault that
//! `XTRAIN_TEST_FAULT` names. `devices.rs` builds it with rustc alone, so it has no dependencies
//! and spells out what it needs of the C interface.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const RTLD_NOW: c_int = 2;
/// Bytes before the first slot, and where in them the two version numbers are.
const HEADER: usize = 40;
const MAJOR: usize = 32;
const MINOR: usize = 36;
/// Places of calls in the table.
const EVENT_AWAIT: usize = 8;
const CLIENT_CREATE: usize = 10;
const CLIENT_COMPILE: usize = 20;
const MEMORY_STATS: usize = 34;
const COST_ANALYSIS: usize = 46;
const OPTIMIZED_PROGRAM: usize = 48;
const SERIALIZE: usize = 49;
const EXECUTE: usize = 55;
const COMPILED_MEMORY: usize = 96;
/// Place of the program among the fields of a compile call, and of its format among the program's,
/// in words.
const PROGRAM: usize = 3;
const FORMAT: usize = 4;

type Call = unsafe extern "C" fn(*mut usize) -> *mut c_void;
static mut REAL: *const u8 = std::ptr::null();

unsafe fn real(slot: usize) -> Call {
    unsafe { REAL.add(HEADER + 8 * slot).cast::<Call>().read() }
}

/// Calls the real function with a struct that is too short for it, and so gets a genuine error.
unsafe fn too_short(slot: usize, args: *mut usize) -> *mut c_void {
    unsafe {
        let size = *args;
        *args = 8;
        let error = real(slot)(args);
        *args = size;
        error
    }
}

unsafe extern "C" fn create_of_another_version(args: *mut usize) -> *mut c_void {
    unsafe { too_short(CLIENT_CREATE, args) }
}

unsafe extern "C" fn failing_execute(args: *mut usize) -> *mut c_void {
    unsafe { too_short(EXECUTE, args) }
}

/// Set by the first execution.
static EXECUTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn noted_execute(args: *mut usize) -> *mut c_void {
    EXECUTED.store(true, Ordering::SeqCst);
    unsafe { real(EXECUTE)(args) }
}

/// An execution that says it started, and left nothing.
unsafe extern "C" fn empty_execute(_: *mut usize) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn hanging_await(args: *mut usize) -> *mut c_void {
    while EXECUTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
    unsafe { real(EVENT_AWAIT)(args) }
}

unsafe extern "C" fn failing_await(args: *mut usize) -> *mut c_void {
    if EXECUTED.load(Ordering::SeqCst) { unsafe { too_short(EVENT_AWAIT, args) } } else { unsafe { real(EVENT_AWAIT)(args) } }
}

unsafe fn is_mlir(args: *const usize) -> bool {
    unsafe {
        let program = args.add(PROGRAM).read() as *const usize;
        let format = program.add(FORMAT).read() as *const u8;
        format.read() == b'm'
    }
}

unsafe extern "C" fn compile_of_hlo_alone(args: *mut usize) -> *mut c_void {
    unsafe { if is_mlir(args) { too_short(CLIENT_COMPILE, args) } else { real(CLIENT_COMPILE)(args) } }
}

unsafe extern "C" fn failing_compile(args: *mut usize) -> *mut c_void {
    // A line for each call, where a test counts them.
    if let Ok(file) = std::env::var("XTRAIN_TEST_COMPILES") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
        file.write_all(b"compile\n").unwrap();
    }
    unsafe { too_short(CLIENT_COMPILE, args) }
}

unsafe extern "C" fn hanging(_: *mut usize) -> *mut c_void {
    loop {
        std::thread::park();
    }
}

unsafe extern "C" fn slow_compile(args: *mut usize) -> *mut c_void {
    std::thread::sleep(std::time::Duration::from_millis(700));
    unsafe { real(CLIENT_COMPILE)(args) }
}

#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    let path = CString::new(std::env::var("XTRAIN_TEST_REAL_PLUGIN").unwrap()).unwrap();
    let fault = std::env::var("XTRAIN_TEST_FAULT").unwrap_or_default();
    if let Ok(file) = std::env::var("XTRAIN_TEST_ENVIRONMENT") {
        let lines: String = std::env::vars().map(|(name, value)| format!("{name}={value}\n")).collect();
        std::fs::write(file, lines).unwrap();
    }
    if fault == "null table" {
        return std::ptr::null();
    }
    unsafe {
        let library = dlopen(path.as_ptr(), RTLD_NOW);
        let symbol = dlsym(library, c"GetPjrtApi".as_ptr());
        let get: extern "C" fn() -> *const u8 = std::mem::transmute(symbol);
        REAL = get();
        let size = REAL.cast::<usize>().read();
        let table: &'static mut [u8] = Box::leak(std::slice::from_raw_parts(REAL, size).to_vec().into_boxed_slice());
        let mut put = |slot: usize, function: usize| {
            table[HEADER + 8 * slot..HEADER + 8 * slot + 8].copy_from_slice(&function.to_le_bytes());
        };
        match fault.as_str() {
            "other struct sizes" => put(CLIENT_CREATE, create_of_another_version as usize),
            "no compile" => put(CLIENT_COMPILE, 0),
            "slow compile" => put(CLIENT_COMPILE, slow_compile as usize),
            "hanging compile" => put(CLIENT_COMPILE, hanging as usize),
            "hanging client" => put(CLIENT_CREATE, hanging as usize),
            "failing compile" => put(CLIENT_COMPILE, failing_compile as usize),
            "no stablehlo" => put(CLIENT_COMPILE, compile_of_hlo_alone as usize),
            "no outputs" => put(EXECUTE, empty_execute as usize),
            "hanging event" => {
                put(EXECUTE, noted_execute as usize);
                put(EVENT_AWAIT, hanging_await as usize);
            }
            "failing event" => {
                put(EXECUTE, noted_execute as usize);
                put(EVENT_AWAIT, failing_await as usize);
            }
            // What some plugin or other lacks, and no run needs.
            "unimplemented" => {
                [MEMORY_STATS, COST_ANALYSIS, OPTIMIZED_PROGRAM, SERIALIZE, COMPILED_MEMORY].map(|slot| put(slot, 0));
            }
            "failing execute" => put(EXECUTE, failing_execute as usize),
            "other major" => table[MAJOR..MAJOR + 4].copy_from_slice(&1i32.to_le_bytes()),
            "old minor" => table[MINOR..MINOR + 4].copy_from_slice(&30i32.to_le_bytes()),
            _ => {}
        }
        table.as_ptr().cast()
    }
}
