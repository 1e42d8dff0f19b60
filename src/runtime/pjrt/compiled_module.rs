//! A compiled module and what it says about itself, whether it is loaded on devices or was compiled
//! for some that are not attached.

use super::bindings::*;
use super::call::Call;
use super::handle::{Handle, Owner};
use super::memory::{array, bytes, string};
use super::options::{CompileOptions, OptionValue, read_named};
use super::plugin::implemented;
use super::signature::Signature;
use super::stall_timeout::{self, Watched};
use super::topology::Topology;
use crate::error::{Error, Result};
use prost::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The compiler's account of memory on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompiledMemory {
    pub argument_bytes: i64,
    pub output_bytes: i64,
    /// Part of both arguments and outputs: donated memory.
    pub alias_bytes: i64,
    pub temp_bytes: i64,
    pub generated_code_bytes: i64,
}

impl CompiledMemory {
    /// What the device needs while the module runs. (The plugins' own peak counts arguments only,
    /// on some.)
    pub fn peak(&self) -> i64 {
        self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
    }
}

/// A compiled module. What was compiled for a topology can be asked everything, but there is nothing
/// that it could run on.
pub struct CompiledModule {
    handle: Handle<PJRT_Executable, Arc<dyn Owner>>,
}

impl Topology {
    /// Compiles a serialized HloModuleProto. `signature` must be the module's own, on each device.
    pub fn compile(
        &self,
        module: &[u8],
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<CompiledModule> {
        let compile = || {
            signature.check_module(module)?;
            let options = options.to_bytes()?;
            let args = PJRT_Compile_Args {
                topology: self.inner.handle.raw(),
                program: &program(module, "hlo"),
                compile_options: options.as_ptr().cast(),
                compile_options_size: options.len(),
                ..Default::default()
            };
            // SAFETY: program and options live through the call, and plugins only read the code;
            // the client, null here, is optional. The executable is new and nobody else has it.
            let compiled = unsafe {
                let plugin = self.inner.handle.owner.inner.path();
                let call = || self.inner.handle.call(args);
                let made = stall_timeout::wait(Watched::Compile, plugin, call)?.executable;
                CompiledModule::from_raw(made, self.inner.clone(), PJRT_Compile_Args::NAME)?
            };
            compiled.check_outputs(signature)?;
            Ok(compiled)
        };
        compile().map_err(|e: Error| {
            e.during(format!(
                "compiling a module ({} bytes of hlo) for {}",
                module.len(),
                self.platform_name()
            ))
        })
    }
}

/// A program to compile. It points into both arguments; plugins only read the code, as the header's
/// `const` program says.
pub(super) fn program(code: &[u8], format: &str) -> PJRT_Program {
    PJRT_Program {
        code: code.as_ptr().cast_mut().cast(),
        code_size: code.len(),
        format: format.as_ptr().cast(),
        format_size: format.len(),
        ..Default::default()
    }
}

impl CompiledModule {
    /// Takes over the executable that `call` gave.
    ///
    /// # Safety
    /// `raw` is null or an executable of the owner's plugin that nobody else will destroy.
    pub(super) unsafe fn from_raw(
        raw: *mut PJRT_Executable,
        owner: Arc<dyn Owner>,
        call: &'static str,
    ) -> Result<CompiledModule> {
        // SAFETY: the caller's promise is the same.
        let handle = unsafe { Handle::new(raw, owner, call) }?;
        Ok(CompiledModule { handle })
    }

    fn answer<A: Call>(&self, reason: String) -> Error {
        self.handle.owner.plugin().answer(A::NAME, reason)
    }

    /// Count, types and dimensions of the outputs; the last two only from plugins that tell them.
    pub(super) fn check_outputs(&self, signature: &Signature) -> Result<()> {
        let count = self.handle.ask::<PJRT_Executable_NumOutputs_Args>()?;
        let count = count.num_outputs;
        // The plugin will write this many handles into our memory at each execution.
        if count != signature.outputs.len() {
            return Err(Error::SignatureCount {
                side: "output",
                module: count,
                signature: signature.outputs.len(),
            });
        }
        let answer = self
            .handle
            .ask::<PJRT_Executable_OutputElementTypes_Args>()
            .and_then(|types| {
                let dims = self.handle.ask::<PJRT_Executable_OutputDimensions_Args>()?;
                Ok((types, dims))
            });
        let Some((types, dims)) = implemented(answer)? else {
            return Ok(());
        };
        // SAFETY: the executable is alive and owns both arrays for as long. The lengths are the
        // plugin's own; the dimensions of all outputs lie one after
        // another.
        let (types, dims) = unsafe {
            let ranks = array(dims.dim_sizes, dims.num_outputs);
            let all = array(dims.dims, ranks.iter().sum());
            let mut at = 0;
            let mut split = Vec::with_capacity(ranks.len());
            for &rank in ranks {
                split.push(all[at..at + rank].to_vec());
                at += rank;
            }
            (array(types.output_types, types.num_output_types), split)
        };
        if types.len() != dims.len() {
            return Err(
                self.answer::<PJRT_Executable_OutputDimensions_Args>(format!(
                    "tells {} output types but {} output dimensions",
                    types.len(),
                    dims.len()
                )),
            );
        }
        signature.check_outputs(types, &dims)
    }

    /// The compiled code as bytes, for a client of the same plugin on such a device.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let made = self.handle.ask::<PJRT_Executable_Serialize_Args>();
        let made = made.map_err(|e| e.during("serializing an executable"))?;
        // SAFETY: the bytes live until their backing is deleted, just below, once, and are copied
        // before.
        let copy = unsafe { bytes(made.serialized_bytes, made.serialized_bytes_size) }.to_vec();
        if let Some(deleter) = made.serialized_executable_deleter {
            // SAFETY: the plugin's own deleter on its own object, called once.
            unsafe { deleter(made.serialized_executable) };
        }
        Ok(copy)
    }

    /// The plugin's fingerprint: equal for equal code, options and compiler. Bytes as text; not
    /// every plugin's is readable.
    pub fn fingerprint(&self) -> Result<String> {
        let told = self.handle.ask::<PJRT_Executable_Fingerprint_Args>()?;
        let (text, size) = (
            told.executable_fingerprint,
            told.executable_fingerprint_size,
        );
        // SAFETY: the executable is alive and owns the text, which is copied at once.
        Ok(unsafe { string(text, size) })
    }

    /// The compiler's account of memory on one device.
    pub fn memory_stats(&self) -> Result<CompiledMemory> {
        let stats = self
            .handle
            .ask::<PJRT_Executable_GetCompiledMemoryStats_Args>()?;
        Ok(CompiledMemory {
            argument_bytes: stats.argument_size_in_bytes,
            output_bytes: stats.output_size_in_bytes,
            alias_bytes: stats.alias_size_in_bytes,
            temp_bytes: stats.temp_size_in_bytes,
            generated_code_bytes: stats.generated_code_size_in_bytes,
        })
    }

    /// The compiler's estimate of work (`flops`, `bytes accessed`, ...). The body of a loop is
    /// counted once.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        let told = self.handle.ask::<PJRT_Executable_GetCostAnalysis_Args>()?;
        // SAFETY: the executable is alive and owns the values, which are copied at once.
        let values = unsafe { read_named(told.properties, told.num_properties) };
        let number = |(name, value)| match value {
            OptionValue::Float(v) => Some((name, f64::from(v))),
            OptionValue::Int(v) => Some((name, v as f64)),
            _ => None,
        };
        Ok(values.into_iter().filter_map(number).collect())
    }

    /// The module as it runs, after all passes: a serialized HloModuleProto.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        let mut program = PJRT_Program::default();
        let ask = |program: &mut PJRT_Program| {
            let args = PJRT_Executable_OptimizedProgram_Args {
                executable: self.handle.raw(),
                program,
                ..Default::default()
            };
            // SAFETY: with no memory for the code, the call only tells its size; with memory, the
            // code fits into it, by the plugin's own word.
            unsafe { self.handle.call(args) }.map(drop)
        };
        ask(&mut program)?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        ask(&mut program)?;
        // SAFETY: the format is a constant of the plugin's.
        let format = unsafe { string(program.format, program.format_size) };
        match format.as_str() {
            "hlo" => Ok(code),
            "hlo_with_config" => {
                let wrapped =
                    ModuleWithConfig::decode(code.as_slice()).map_err(|e| Error::ModuleBytes {
                        reason: e.to_string(),
                    })?;
                Ok(wrapped.module)
            }
            other => Err(
                self.answer::<PJRT_Executable_OptimizedProgram_Args>(format!(
                    "its optimized program is in the format \"{other}\", not HLO"
                )),
            ),
        }
    }
}

/// `HloModuleProtoWithConfig`, of which only the module is wanted.
#[derive(Clone, PartialEq, prost::Message)]
struct ModuleWithConfig {
    #[prost(bytes = "vec", tag = "1")]
    module: Vec<u8>,
}
