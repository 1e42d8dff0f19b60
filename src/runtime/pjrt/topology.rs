//! Devices that are not attached, by their description.

use super::bindings::*;
use super::call::Call;
use super::handle::{Handle, Owner};
use super::memory::string;
use super::options::{OptionValue, named_values};
use super::plugin::{Plugin, PluginInner};
use crate::error::Result;
use std::sync::Arc;

/// Devices by their description. Cloning is cheap and shares it.
#[derive(Clone)]
pub struct Topology {
    pub(super) inner: Arc<TopologyInner>,
}

pub(super) struct TopologyInner {
    pub handle: Handle<PJRT_TopologyDescription, Plugin>,
    platform_name: String,
    platform_version: String,
}

impl Owner for TopologyInner {
    fn plugin(&self) -> &Arc<PluginInner> {
        self.handle.owner.plugin()
    }
}

impl Topology {
    /// Describes devices to a plugin by options of its own (for XLA:GPU `target_config`, a text,
    /// and `topology`, `1x1x8`: partitions, hosts in each, devices on each).
    pub fn create(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Topology> {
        let inner = TopologyInner::create(plugin, options)
            .map_err(|e| e.during(format!("describing devices to {}", plugin.path().display())))?;
        Ok(Topology {
            inner: Arc::new(inner),
        })
    }

    pub fn plugin(&self) -> &Plugin {
        &self.inner.handle.owner
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
    fn create(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<TopologyInner> {
        let values = named_values(options);
        let args = PJRT_TopologyDescription_Create_Args {
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        // SAFETY: the options live through the call; the name may be null, as its size is zero. The
        // topology is new and nobody else has it. It is alive in the calls on it; the texts belong
        // to it and are copied at once.
        unsafe {
            let made = plugin.inner.call(args)?;
            let call = PJRT_TopologyDescription_Create_Args::NAME;
            let handle = Handle::new(made.topology, plugin.clone(), call)?;
            let name: PJRT_TopologyDescription_PlatformName_Args = handle.ask()?;
            let version: PJRT_TopologyDescription_PlatformVersion_Args = handle.ask()?;
            Ok(TopologyInner {
                platform_name: string(name.platform_name, name.platform_name_size),
                platform_version: string(version.platform_version, version.platform_version_size),
                handle,
            })
        }
    }
}
