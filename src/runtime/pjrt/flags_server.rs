//! A process of this program that reads `XLA_FLAGS` with the XLA of xtrain's library, to find out which of
//! them it takes (`flags_trial`).

use std::ffi::OsStr;
use std::process::ExitCode;
use xtrain_report::errln;

use super::flags_trial::{ARGUMENT, is_of_a_program};
use super::{Client, CompileOptions, Library, Signature};
use crate::error::Result;
use xtrain_graphs::{DType, Shape};

/// Compiling it reads the flags.
const PROGRAM: &str = "module @id { func.func public @main(%a: tensor<1xf32>) -> tensor<1xf32> { return %a : tensor<1xf32> } }";

/// To be called first in a program: tries flags if it was started for that, and lets flags be tried
/// otherwise.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().as_deref() != Some(OsStr::new(ARGUMENT)) {
        is_of_a_program(false);
        return None;
    }
    is_of_a_program(true);
    Some(match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            errln!("{error}");
            ExitCode::FAILURE
        }
    })
}

fn compile() -> Result<()> {
    let plugin = Library::open()?.cpu_plugin()?;
    let client = Client::create(&plugin, &[])?;
    let one = [Shape::new(DType::F32, [1])];
    let signature = Signature::new(&one, &one);
    let options = CompileOptions::default();
    client
        .compile_stablehlo(PROGRAM.as_bytes(), signature, &options)
        .map(drop)
}
