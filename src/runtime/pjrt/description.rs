//! What a compiled module says about itself, whether it is loaded on devices or was compiled for
//! some that are not attached.

use super::client::ClientInner;
use super::ffi::{self, Call, PjrtExecutable};
use super::memory::{array, bytes, string};
use super::options::{OptionValue, read_named};
use super::plugin::PluginInner;
use super::signature::Signature;
use super::topology::TopologyInner;
use crate::runtime::error::{Error, Result};
use prost::Message;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ptr::NonNull;
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

/// What a description came from, which has to outlive it.
pub(super) enum Owner {
    Client(Arc<ClientInner>),
    Topology(Arc<TopologyInner>),
}

impl Owner {
    fn plugin(&self) -> &PluginInner {
        match self {
            Owner::Client(client) => &client.plugin.inner,
            Owner::Topology(topology) => &topology.plugin.inner,
        }
    }
}

/// Owns the handle that answers questions.
pub(super) struct Description {
    raw: NonNull<PjrtExecutable>,
    owner: Owner,
}

// SAFETY: an executable may be used and destroyed from any thread.
unsafe impl Send for Description {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for Description {}

impl Description {
    /// Takes a handle over; `call` is where it came from, for the error if it is null.
    ///
    /// # Safety
    /// `raw` is null or an executable of the owner's plugin that nobody else will destroy.
    pub unsafe fn from_raw(
        raw: *mut PjrtExecutable,
        owner: Owner,
        call: ffi::Slot,
    ) -> Result<Description> {
        let Some(raw) = NonNull::new(raw) else {
            return Err(owner.plugin().answer(call, "gave no executable"));
        };
        Ok(Description { raw, owner })
    }

    fn raw(&self) -> *mut PjrtExecutable {
        self.raw.as_ptr()
    }

    /// # Safety
    /// As for `PluginInner::call`.
    unsafe fn call<A: Call>(&self, args: &mut A) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.owner.plugin().call(args) }
    }

    /// Count, types and dimensions of the outputs; the last two only from plugins that tell them.
    pub fn check_outputs(&self, signature: &Signature) -> Result<()> {
        let mut count = ffi::ExecutableNumOutputs {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { self.call(&mut count) }?;
        // The plugin will write this many handles into our memory at each execution.
        if count.num_outputs != signature.outputs.len() {
            return Err(Error::SignatureCount {
                side: "output",
                module: count.num_outputs,
                signature: signature.outputs.len(),
            });
        }
        let mut types = ffi::ExecutableOutputElementTypes {
            executable: self.raw(),
            ..Default::default()
        };
        let mut dims = ffi::ExecutableOutputDimensions {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive and owns both arrays for as long.
        let answer = unsafe { self.call(&mut types).and_then(|()| self.call(&mut dims)) };
        match answer {
            Ok(()) => {}
            Err(e) if e.is_unimplemented() => return Ok(()),
            Err(e) => return Err(e),
        }
        // SAFETY: the lengths are the plugin's own; the dimensions of all outputs lie one after
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
            (array::<c_int>(types.types, types.num_types), split)
        };
        if types.len() != dims.len() {
            let reason = format!(
                "tells {} output types but {} output dimensions",
                types.len(),
                dims.len()
            );
            return Err(self
                .owner
                .plugin()
                .answer(ffi::ExecutableOutputDimensions::SLOT, reason));
        }
        signature.check_outputs(types, &dims)
    }

    /// The compiled code as bytes.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        let mut args = ffi::ExecutableSerialize {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive.
        unsafe { self.call(&mut args) }.map_err(|e| e.during("serializing an executable"))?;
        // SAFETY: the bytes live until their backing is deleted, just below, once, and are copied
        // before.
        let copy = unsafe { bytes(args.bytes, args.bytes_size) }.to_vec();
        if let Some(deleter) = args.deleter {
            // SAFETY: the plugin's own deleter on its own object, called once.
            unsafe { deleter(args.backing) };
        }
        Ok(copy)
    }

    /// The plugin's fingerprint: equal for equal code, options and compiler. Bytes as text; not
    /// every plugin's is readable.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = ffi::ExecutableFingerprint {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive and owns the text, which is copied at once.
        unsafe {
            self.call(&mut args)?;
            Ok(string(args.fingerprint, args.fingerprint_size))
        }
    }

    /// The compiler's account of memory on one device.
    pub fn memory_stats(&self) -> Result<CompiledMemory> {
        let mut args = ffi::ExecutableGetCompiledMemoryStats {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive; all outputs are numbers.
        unsafe { self.call(&mut args) }?;
        Ok(CompiledMemory {
            argument_bytes: args.argument_size,
            output_bytes: args.output_size,
            alias_bytes: args.alias_size,
            temp_bytes: args.temp_size,
            generated_code_bytes: args.generated_code_size,
        })
    }

    /// The compiler's estimate of work (`flops`, `bytes accessed`, ...). The body of a loop is
    /// counted once.
    pub fn cost_analysis(&self) -> Result<BTreeMap<String, f64>> {
        let mut args = ffi::ExecutableGetCostAnalysis {
            executable: self.raw(),
            ..Default::default()
        };
        // SAFETY: the executable is alive and owns the values, which are copied at once.
        let values = unsafe {
            self.call(&mut args)?;
            read_named(args.properties, args.num_properties)
        };
        let number = |(name, value)| match value {
            OptionValue::Float(v) => Some((name, f64::from(v))),
            OptionValue::Int(v) => Some((name, v as f64)),
            _ => None,
        };
        Ok(values.into_iter().filter_map(number).collect())
    }

    /// The module as it runs, after all passes: a serialized HloModuleProto.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        let mut program = ffi::Program::default();
        let mut args = ffi::ExecutableOptimizedProgram {
            executable: self.raw(),
            program: &mut program,
            ..Default::default()
        };
        // SAFETY: with no memory for the code, the call only tells its size.
        unsafe { self.call(&mut args) }?;
        let mut code = vec![0u8; program.code_size];
        program.code = code.as_mut_ptr().cast();
        // SAFETY: the code fits into the memory given, by the plugin's own word.
        unsafe { self.call(&mut args) }?;
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
            other => {
                let reason = format!("its optimized program is in the format \"{other}\", not HLO");
                Err(self
                    .owner
                    .plugin()
                    .answer(ffi::ExecutableOptimizedProgram::SLOT, reason))
            }
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: this handle owns the executable's description; this is its last use.
        let _ = unsafe {
            self.call(&mut ffi::ExecutableDestroy {
                executable: self.raw(),
                ..Default::default()
            })
        };
    }
}

/// `HloModuleProtoWithConfig`, of which only the module is wanted.
#[derive(Clone, PartialEq, prost::Message)]
struct ModuleWithConfig {
    #[prost(bytes = "vec", tag = "1")]
    module: Vec<u8>,
}
