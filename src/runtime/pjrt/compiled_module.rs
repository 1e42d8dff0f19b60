//! Compiling for devices that are not attached: the result can be asked everything but to run.

use super::description::{CompiledMemory, Description, Owner};
use super::ffi::{self, Call};
use super::options::CompileOptions;
use super::signature::Signature;
use super::topology::Topology;
use crate::runtime::error::Result;
use std::ptr::null_mut;

/// A module compiled for a topology. There is nothing that it could run on.
pub struct CompiledModule {
    description: Description,
}

impl Topology {
    /// Compiles a serialized HloModuleProto. `signature` must be the module's own, on each device.
    pub fn compile(
        &self,
        module: &[u8],
        signature: &Signature,
        options: &CompileOptions,
    ) -> Result<CompiledModule> {
        let doing = || {
            format!(
                "compiling a module ({} bytes of hlo) for {}",
                module.len(),
                self.platform_name()
            )
        };
        signature
            .check_module(module)
            .map_err(|e| e.during(doing()))?;
        let options = options.to_bytes().map_err(|e| e.during(doing()))?;
        let program = ffi::Program::of(module, "hlo");
        let mut args = ffi::Compile {
            topology: self.inner.raw.as_ptr(),
            program: &program,
            compile_options: options.as_ptr().cast(),
            compile_options_size: options.len(),
            client: null_mut(),
            ..Default::default()
        };
        // SAFETY: program and options live through the call, and plugins only read the code; the
        // client is optional.
        unsafe { self.inner.plugin.inner.call(&mut args) }.map_err(|e| e.during(doing()))?;
        // SAFETY: the executable is new and nobody else has it.
        let description = unsafe {
            Description::from_raw(
                args.executable,
                Owner::Topology(self.inner.clone()),
                ffi::Compile::SLOT,
            )
        };
        let description = description.map_err(|e| e.during(doing()))?;
        description
            .check_outputs(signature)
            .map_err(|e| e.during(doing()))?;
        Ok(CompiledModule { description })
    }
}

impl CompiledModule {
    /// The compiled code as bytes, for a client of the same plugin on such a device.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        self.description.serialize()
    }

    /// The plugin's fingerprint: equal for equal code, options and compiler.
    pub fn fingerprint(&self) -> Result<String> {
        self.description.fingerprint()
    }

    /// The compiler's account of memory on one device.
    pub fn memory_stats(&self) -> Result<CompiledMemory> {
        self.description.memory_stats()
    }

    /// The module after all passes: a serialized HloModuleProto.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        self.description.optimized_hlo()
    }
}
