//! The C interface of `libxtrain_xla.so` as a program sees it that opens it late: exactly the
//! promised names, the version numbers, errors as text, memory given back.

use std::ffi::{CStr, c_char, c_int};
use std::process::Command;
use std::{ptr, slice};

use prost::Message;
use xtrain_xla::proto::xla as pb;

// What `dlsym` would find, linked directly.
unsafe extern "C" {
    fn xtrain_xla_abi() -> u32;
    fn xtrain_xla_version() -> *const c_char;
    fn xtrain_xla_lower(
        graph: *const u8,
        len: usize,
        out: *mut *mut u8,
        out_len: *mut usize,
    ) -> c_int;
    fn xtrain_xla_hlo_text(
        module: *const u8,
        len: usize,
        out: *mut *mut u8,
        out_len: *mut usize,
    ) -> c_int;
    fn xtrain_xla_free(memory: *mut u8, len: usize);
}

type Call = unsafe extern "C" fn(*const u8, usize, *mut *mut u8, *mut usize) -> c_int;

fn call(function: Call, input: &[u8]) -> Result<Vec<u8>, String> {
    let (mut out, mut len) = (ptr::null_mut(), 0);
    // SAFETY: the slice is readable, the results are writable locals.
    let status = unsafe { function(input.as_ptr(), input.len(), &raw mut out, &raw mut len) };
    assert!(!out.is_null());
    // SAFETY: the function set `out` to `len` bytes.
    let bytes = unsafe { slice::from_raw_parts(out, len) }.to_vec();
    // SAFETY: given back once, nothing refers to it.
    unsafe { xtrain_xla_free(out, len) };
    if status == 0 {
        Ok(bytes)
    } else {
        Err(String::from_utf8(bytes).expect("messages are UTF-8"))
    }
}

/// The smallest module: one parameter, returned.
fn identity() -> pb::HloModuleProto {
    let shape = pb::ShapeProto {
        element_type: pb::PrimitiveType::F32 as i32,
        dimensions: vec![2, 3],
        is_dynamic_dimension: vec![false, false],
        layout: Some(Box::new(pb::LayoutProto {
            minor_to_major: vec![1, 0],
            ..Default::default()
        })),
        ..Default::default()
    };
    let program = pb::ProgramShapeProto {
        parameters: vec![shape.clone()],
        result: Some(shape.clone()),
        parameter_names: vec!["x".into()],
    };
    let parameter = pb::HloInstructionProto {
        name: "x".into(),
        opcode: "parameter".into(),
        shape: Some(shape),
        id: 1,
        ..Default::default()
    };
    let entry = pb::HloComputationProto {
        name: "main".into(),
        instructions: vec![parameter],
        program_shape: Some(program.clone()),
        id: 2,
        root_id: 1,
        ..Default::default()
    };
    pb::HloModuleProto {
        name: "identity".into(),
        entry_computation_name: "main".into(),
        entry_computation_id: 2,
        computations: vec![entry],
        host_program_shape: Some(program),
        id: 7,
        ..Default::default()
    }
}

#[test]
fn versions() {
    // SAFETY: takes nothing.
    assert_eq!(unsafe { xtrain_xla_abi() }, xtrain_xla::ABI);
    // SAFETY: a C string that lives forever.
    let version = unsafe { CStr::from_ptr(xtrain_xla_version()) };
    assert_eq!(version.to_str(), Ok(xtrain_xla::VERSION));
    assert!(!xtrain_xla::VERSION.is_empty());
}

#[test]
fn generated_protos_make_modules_that_xla_reads() {
    let text = call(xtrain_xla_hlo_text, &identity().encode_to_vec()).expect("the module is valid");
    let text = String::from_utf8(text).expect("HLO text is UTF-8");
    assert!(
        text.contains("HloModule identity") && text.contains("f32[2,3]{1,0} parameter(0)"),
        "{text}"
    );
}

#[test]
fn bad_modules_are_errors() {
    assert!(
        call(xtrain_xla_hlo_text, b"garbage")
            .unwrap_err()
            .contains("no HloModuleProto")
    );
    assert!(
        call(xtrain_xla_hlo_text, b"")
            .unwrap_err()
            .contains("no computation")
    );
    let mut missing_root = identity();
    missing_root.computations[0].root_id = 99;
    assert!(call(xtrain_xla_hlo_text, &missing_root.encode_to_vec()).is_err());
    let mut unknown_opcode = identity();
    unknown_opcode.computations[0].instructions[0].opcode = "no-such-opcode".into();
    assert!(
        call(xtrain_xla_hlo_text, &unknown_opcode.encode_to_vec())
            .unwrap_err()
            .contains("no-such-opcode")
    );
}

#[test]
fn bad_graphs_are_errors() {
    assert!(!call(xtrain_xla_lower, b"no graph").unwrap_err().is_empty());
}

#[test]
fn exports_nothing_else() {
    let library = std::env::current_exe()
        .expect("a running test has a path")
        .with_file_name("libxtrain_xla.so");
    let Ok(output) = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&library)
        .output()
    else {
        xtrain_test_groups::Group::Library.skip("there is no nm");
        return;
    };
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<_> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let promised = [
        "GetPjrtApi",
        "xtrain_xla_abi",
        "xtrain_xla_free",
        "xtrain_xla_has_kernel",
        "xtrain_xla_hlo_text",
        "xtrain_xla_lower",
        "xtrain_xla_measure_kernels",
        "xtrain_xla_profile_begin",
        "xtrain_xla_profile_end",
        "xtrain_xla_stablehlo_text",
        "xtrain_xla_version",
    ];
    assert_eq!(names, promised);
}
