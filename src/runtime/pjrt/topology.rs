//! Devices that are not attached, by their description.

use super::ffi::{self, Call, PjrtTopology};
use super::memory::string;
use super::options::{OptionValue, named_values};
use super::plugin::Plugin;
use crate::runtime::error::Result;
use std::ptr::NonNull;
use std::sync::Arc;

/// Devices by their description. Cloning is cheap and shares it.
#[derive(Clone)]
pub struct Topology {
    pub(super) inner: Arc<TopologyInner>,
}

pub(super) struct TopologyInner {
    pub plugin: Plugin,
    pub raw: NonNull<PjrtTopology>,
    platform_name: String,
    platform_version: String,
}

// SAFETY: a topology is constant once made; it may be used and destroyed from any thread.
unsafe impl Send for TopologyInner {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for TopologyInner {}

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
