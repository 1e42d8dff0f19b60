//! Devices that are not attached: given their description, a plugin compiles for them, and the
//! result can be asked everything but to run.

use super::description::{CompiledMemory, Description, Owner};
use super::ffi::{self, Call, PjrtTopology};
use super::options::{CompileOptions, OptionValue, named_values};
use super::plugin::{Plugin, string};
use super::signature::Signature;
use crate::runtime::error::Result;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Devices by their description. Cloning is cheap and shares it.
#[derive(Clone)]
pub struct Topology {
    inner: Arc<TopologyInner>,
}

pub(super) struct TopologyInner {
    pub plugin: Plugin,
    raw: NonNull<PjrtTopology>,
    platform_name: String,
    platform_version: String,
}

// SAFETY: a topology is constant once made; it may be used and destroyed from any thread.
unsafe impl Send for TopologyInner {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for TopologyInner {}

/// A module compiled for a topology. There is nothing that it could run on.
pub struct CompiledModule {
    description: Description,
}

impl Topology {
    /// Describes devices to a plugin by options of its own (for XLA:GPU `target_config`, a text,
    /// and `topology`, `1x1x8`: partitions, hosts in each, devices on each).
    pub fn create(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Topology> {
        let doing = || format!("describing devices to {}", plugin.path().display());
        let values = named_values(options);
        let mut args = ffi::TopologyCreate {
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        // SAFETY: the options live through the call; the name may be null, as its size is zero.
        unsafe { plugin.inner.call(&mut args) }.map_err(|e| e.during(doing()))?;
        let raw = NonNull::new(args.topology).ok_or_else(|| {
            plugin
                .inner
                .answer(ffi::TopologyCreate::SLOT, "gave no topology")
                .during(doing())
        })?;
        // From here on the handle is owned, so that an error below destroys it.
        let mut inner = TopologyInner {
            plugin: plugin.clone(),
            raw,
            platform_name: String::new(),
            platform_version: String::new(),
        };
        inner.describe().map_err(|e| e.during(doing()))?;
        Ok(Topology {
            inner: Arc::new(inner),
        })
    }

    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
    }

    /// `cuda` for XLA:GPU.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The plugin's words for the devices.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

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

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Topology({}, {})",
            self.platform_name(),
            self.platform_version()
        )
    }
}

impl TopologyInner {
    fn describe(&mut self) -> Result<()> {
        let topology = self.raw.as_ptr();
        let mut name = ffi::TopologyPlatformName {
            topology,
            ..Default::default()
        };
        let mut version = ffi::TopologyPlatformVersion {
            topology,
            ..Default::default()
        };
        // SAFETY: the topology is alive; the texts belong to it and are copied at once.
        unsafe {
            self.plugin.inner.call(&mut name)?;
            self.platform_name = string(name.name, name.name_size);
            self.plugin.inner.call(&mut version)?;
            self.platform_version = string(version.version, version.version_size);
        }
        Ok(())
    }
}

impl Drop for TopologyInner {
    fn drop(&mut self) {
        let mut args = ffi::TopologyDestroy {
            topology: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: what was compiled keeps the topology alive through an `Arc`, so all of it is
        // gone; this is the last use.
        let _ = unsafe { self.plugin.inner.call(&mut args) };
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
