//! A PJRT plugin that passes every call on to a real one, but for the fault that
//! `XTRAIN_TEST_FAULT` names. `neuron.rs` and `bin/soak misbehave` build it with rustc alone, so it has
//! no dependencies and spells out what it needs of the C interface.
//!
//! Some faults come with the call of number `XTRAIN_TEST_FAULT_AT` of their kind, counted from 1, some
//! take `XTRAIN_TEST_FAULT_SECONDS`, and all are those of the rank `XTRAIN_TEST_FAULT_RANK` alone if that is set.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

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
const ERROR_DESTROY: usize = 0;
const ERROR_MESSAGE: usize = 1;
const ERROR_CODE: usize = 2;
const EVENT_AWAIT: usize = 8;
const CLIENT_CREATE: usize = 10;
const CLIENT_COMPILE: usize = 20;
const UPLOAD: usize = 22;
const MEMORY_STATS: usize = 34;
const COST_ANALYSIS: usize = 46;
const OPTIMIZED_PROGRAM: usize = 48;
const SERIALIZE: usize = 49;
const EXECUTE: usize = 55;
const DOWNLOAD: usize = 70;
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

/// An error that the real plugin does not know.
struct OwnError {
    code: u32,
    message: CString,
}

/// The addresses of those that are alive.
static ERRORS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
const RESOURCE_EXHAUSTED: u32 = 8;
const INTERNAL: u32 = 13;

fn error(code: u32, message: &str) -> *mut c_void {
    let error = Box::new(OwnError { code, message: CString::new(message).unwrap() });
    let raw = Box::into_raw(error);
    ERRORS.lock().unwrap().push(raw as usize);
    raw.cast()
}

/// The error of a call about one, if it is of this plugin's own.
unsafe fn own(args: *const usize) -> Option<*mut OwnError> {
    let raw = unsafe { args.add(2).read() };
    ERRORS.lock().unwrap().contains(&raw).then_some(raw as *mut OwnError)
}

unsafe extern "C" fn error_destroy(args: *mut usize) -> *mut c_void {
    unsafe {
        let Some(error) = own(args) else { return real(ERROR_DESTROY)(args) };
        ERRORS.lock().unwrap().retain(|known| *known != error as usize);
        drop(Box::from_raw(error));
        std::ptr::null_mut()
    }
}

unsafe extern "C" fn error_message(args: *mut usize) -> *mut c_void {
    unsafe {
        let Some(error) = own(args) else { return real(ERROR_MESSAGE)(args) };
        let message = &(*error).message;
        args.add(3).write(message.as_ptr() as usize);
        args.add(4).write(message.as_bytes().len());
        std::ptr::null_mut()
    }
}

unsafe extern "C" fn error_code(args: *mut usize) -> *mut c_void {
    unsafe {
        let Some(error) = own(args) else { return real(ERROR_CODE)(args) };
        args.add(3).cast::<u32>().write((*error).code);
        std::ptr::null_mut()
    }
}

fn number(variable: &str) -> Option<f64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Whether a call is the one of the fault's number, or a later one.
fn is_due(calls: &AtomicUsize) -> bool {
    let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
    call as f64 >= number("XTRAIN_TEST_FAULT_AT").unwrap_or(1.0)
}

fn pause() {
    std::thread::sleep(Duration::from_secs_f64(number("XTRAIN_TEST_FAULT_SECONDS").unwrap_or(0.7)));
}

static EXECUTIONS: AtomicUsize = AtomicUsize::new(0);
static UPLOADS: AtomicUsize = AtomicUsize::new(0);
static DOWNLOADS: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicBool = AtomicBool::new(false);

/// From then on every call fails.
unsafe extern "C" fn lost_execute(args: *mut usize) -> *mut c_void {
    if is_due(&EXECUTIONS) {
        LOST.store(true, Ordering::SeqCst);
    }
    unsafe { on_a_lost_device(EXECUTE, args) }
}

unsafe fn on_a_lost_device(slot: usize, args: *mut usize) -> *mut c_void {
    match LOST.load(Ordering::SeqCst) {
        true => error(INTERNAL, "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
        false => unsafe { real(slot)(args) },
    }
}

unsafe extern "C" fn lost_upload(args: *mut usize) -> *mut c_void {
    unsafe { on_a_lost_device(UPLOAD, args) }
}

unsafe extern "C" fn lost_download(args: *mut usize) -> *mut c_void {
    unsafe { on_a_lost_device(DOWNLOAD, args) }
}

unsafe extern "C" fn lost_await(args: *mut usize) -> *mut c_void {
    unsafe { on_a_lost_device(EVENT_AWAIT, args) }
}

/// One execution finds no memory.
unsafe extern "C" fn starving_execute(args: *mut usize) -> *mut c_void {
    if is_due(&EXECUTIONS) {
        return error(RESOURCE_EXHAUSTED, "Out of memory while trying to allocate 17179869184 bytes.");
    }
    unsafe { real(EXECUTE)(args) }
}

unsafe extern "C" fn stalled_upload(args: *mut usize) -> *mut c_void {
    unsafe { if is_due(&UPLOADS) { hanging(args) } else { real(UPLOAD)(args) } }
}

unsafe extern "C" fn stalled_download(args: *mut usize) -> *mut c_void {
    unsafe { if is_due(&DOWNLOADS) { hanging(args) } else { real(DOWNLOAD)(args) } }
}

unsafe extern "C" fn stalled_execute(args: *mut usize) -> *mut c_void {
    unsafe { if is_due(&EXECUTIONS) { hanging(args) } else { real(EXECUTE)(args) } }
}

/// What runs from then on is never done.
unsafe extern "C" fn endless_execute(args: *mut usize) -> *mut c_void {
    if is_due(&EXECUTIONS) {
        EXECUTED.store(true, Ordering::SeqCst);
    }
    unsafe { real(EXECUTE)(args) }
}

unsafe extern "C" fn slow_execute(args: *mut usize) -> *mut c_void {
    pause();
    unsafe { real(EXECUTE)(args) }
}

static NANS: [f32; 64] = [f32::NAN; 64];
const F32: u32 = 11;

/// Numbers that are uploaded, a vector's or one, arrive as none: parameters, a step's learning rate.
unsafe extern "C" fn corrupting_upload(args: *mut usize) -> *mut c_void {
    unsafe {
        let (data, kind, rank) = (args.add(3), args.add(4).cast::<u32>().read(), args.add(6).read());
        let dims = if rank == 0 { &[][..] } else { std::slice::from_raw_parts(args.add(5).read() as *const i64, 1) };
        let is_small = rank < 2 && dims.iter().product::<i64>() <= NANS.len() as i64;
        if kind == F32 && is_small && is_due(&UPLOADS) {
            data.write(&raw const NANS as usize);
        }
        real(UPLOAD)(args)
    }
}

unsafe extern "C" fn slow_compile(args: *mut usize) -> *mut c_void {
    pause();
    unsafe { real(CLIENT_COMPILE)(args) }
}

#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    let path = CString::new(std::env::var("XTRAIN_TEST_REAL_PLUGIN").unwrap()).unwrap();
    let rank = std::env::var("RANK").unwrap_or_else(|_| "0".into());
    let is_elsewhere = std::env::var("XTRAIN_TEST_FAULT_RANK").is_ok_and(|of| of != rank);
    let fault = if is_elsewhere { String::new() } else { std::env::var("XTRAIN_TEST_FAULT").unwrap_or_default() };
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
        put(ERROR_DESTROY, error_destroy as usize);
        put(ERROR_MESSAGE, error_message as usize);
        put(ERROR_CODE, error_code as usize);
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
            "lost device" => {
                put(EXECUTE, lost_execute as usize);
                put(UPLOAD, lost_upload as usize);
                put(DOWNLOAD, lost_download as usize);
                put(EVENT_AWAIT, lost_await as usize);
            }
            "failing allocation" => put(EXECUTE, starving_execute as usize),
            "stalled upload" => put(UPLOAD, stalled_upload as usize),
            "stalled download" => put(DOWNLOAD, stalled_download as usize),
            "stalled execution" => put(EXECUTE, stalled_execute as usize),
            "endless event" => {
                put(EXECUTE, endless_execute as usize);
                put(EVENT_AWAIT, hanging_await as usize);
            }
            "slow executions" => put(EXECUTE, slow_execute as usize),
            "nan" => put(UPLOAD, corrupting_upload as usize),
            "failing execute" => put(EXECUTE, failing_execute as usize),
            "other major" => table[MAJOR..MAJOR + 4].copy_from_slice(&1i32.to_le_bytes()),
            "old minor" => table[MINOR..MINOR + 4].copy_from_slice(&30i32.to_le_bytes()),
            _ => {}
        }
        table.as_ptr().cast()
    }
}
