//! A client: one plugin at work on the devices of this process. How it uploads is in `buffer`, how
//! it compiles and loads in `executable`.

use super::bindings::*;
use super::call::Call;
use super::device::Device;
use super::handle::{Handle, Owner};
use super::kv::{self, Callbacks, KeyValueStore};
use super::memory::{array, string};
use super::options::{OptionValue, named_values};
use super::plugin::{Plugin, PluginInner};
use super::stall_timeout::{self, Watched};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A client. Cloning is cheap and shares it; buffers, executables and events keep it alive.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<ClientInner>,
}

pub(super) struct ClientInner {
    // Declared, and so dropped, before what its threads may call.
    handle: Handle<PJRT_Client, Plugin>,
    devices: Vec<Device>,
    /// Positions in `devices` of those that this process can use.
    addressable: Vec<usize>,
    platform_name: String,
    platform_version: String,
    process_index: i32,
    /// Executions on several devices so far.
    launches: AtomicI32,
    /// What the plugin may call as long as the client lives.
    _callbacks: Option<Box<Callbacks>>,
}

impl Owner for ClientInner {
    fn plugin(&self) -> &Arc<PluginInner> {
        self.handle.owner.plugin()
    }
}

impl Client {
    /// Creates a client. Plugins refuse options that they do not know, by name.
    pub fn create(plugin: &Plugin, options: &[(String, OptionValue)]) -> Result<Client> {
        Self::create_among(plugin, options, None)
    }

    /// The same for one of several processes, which find each other through `store`. How many there
    /// are and which one this is, is given by the plugin's own options.
    pub fn create_among(
        plugin: &Plugin,
        options: &[(String, OptionValue)],
        store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<Client> {
        let inner = ClientInner::create(plugin, options, store)
            .map_err(|e| e.during(format!("creating a client of {}", plugin.path().display())))?;
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    pub fn plugin(&self) -> &Plugin {
        &self.inner.handle.owner
    }

    /// `cpu`, `cuda`, `neuron`.
    pub fn platform_name(&self) -> &str {
        &self.inner.platform_name
    }

    /// The vendor's version text; part of what decides whether a cached executable fits.
    pub fn platform_version(&self) -> &str {
        &self.inner.platform_version
    }

    pub fn process_index(&self) -> i32 {
        self.inner.process_index
    }

    /// The processes that the run's devices belong to, at least 1.
    pub fn processes(&self) -> usize {
        let mut known: Vec<i32> = self
            .inner
            .devices
            .iter()
            .map(Device::process_index)
            .collect();
        known.sort_unstable();
        known.dedup();
        known.len().max(1)
    }

    /// All devices of the run, those of other processes included.
    pub fn devices(&self) -> &[Device] {
        &self.inner.devices
    }

    /// The devices of this process. Everywhere else in this module "device n" is the n-th of these.
    pub fn addressable_devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.inner
            .addressable
            .iter()
            .map(|&i| &self.inner.devices[i])
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Client({}, {} devices)",
            self.platform_name(),
            self.devices().len()
        )
    }
}

impl ClientInner {
    /// Makes a client and reads its names and devices once; they do not change.
    fn create(
        plugin: &Plugin,
        options: &[(String, OptionValue)],
        store: Option<Arc<dyn KeyValueStore>>,
    ) -> Result<ClientInner> {
        let values = named_values(options);
        let mut args = PJRT_Client_Create_Args {
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        let callbacks = store.map(Callbacks::new);
        if let Some(callbacks) = &callbacks {
            let argument = callbacks.argument();
            args.kv_get_callback = Some(kv::get);
            args.kv_put_callback = Some(kv::put);
            args.kv_try_get_callback = Some(kv::try_get);
            args.kv_get_user_arg = argument;
            args.kv_put_user_arg = argument;
            args.kv_try_get_user_arg = argument;
        }
        // SAFETY: the options live through the call, the callbacks as long as the client, which is
        // new and which nobody else has. It is alive in the calls on it; texts and arrays belong to
        // it and are copied at once. Its devices are kept only inside it.
        unsafe {
            let made = stall_timeout::wait(Watched::Client, plugin.inner.path(), || {
                plugin.inner.call(args)
            })?;
            let handle = Handle::new(made.client, plugin.clone(), PJRT_Client_Create_Args::NAME)?;
            let name: PJRT_Client_PlatformName_Args = handle.ask()?;
            let version: PJRT_Client_PlatformVersion_Args = handle.ask()?;
            let process: PJRT_Client_ProcessIndex_Args = handle.ask()?;
            let devices: PJRT_Client_Devices_Args = handle.ask()?;
            let devices = array(devices.devices, devices.num_devices)
                .iter()
                .map(|device| Device::new(*device, &plugin.inner))
                .collect::<Result<Vec<_>>>()?;
            Ok(ClientInner {
                handle,
                addressable: (0..devices.len())
                    .filter(|&i| devices[i].addressable())
                    .collect(),
                devices,
                platform_name: string(name.platform_name, name.platform_name_size),
                platform_version: string(version.platform_version, version.platform_version_size),
                process_index: process.process_index,
                launches: AtomicI32::new(0),
                _callbacks: callbacks,
            })
        }
    }

    pub fn raw(&self) -> *mut PJRT_Client {
        self.handle.raw()
    }

    pub fn platform_name(&self) -> &str {
        &self.platform_name
    }

    /// A number for the next execution on several devices. Collectives of one execution find each
    /// other by it, so that a device which is ahead does not meet one that is still in the
    /// execution before. Processes of a run that execute the same things in the same order count
    /// alike.
    pub fn next_launch(&self) -> i32 {
        self.launches
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1)
    }

    /// Makes a call through the client's plugin.
    ///
    /// # Safety
    /// As for `PluginInner::call`.
    pub unsafe fn call<A: Call>(&self, args: A) -> Result<A> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.handle.call(args) }
    }

    /// Whether all devices are this process's.
    pub fn is_alone(&self) -> bool {
        self.addressable.len() == self.devices.len()
    }

    /// The n-th device of this process.
    pub fn device(&self, n: usize) -> Result<&Device> {
        let position = self.addressable.get(n).ok_or_else(|| Error::NoSuchDevice {
            device: n,
            available: self.addressable.len(),
            platform: self.platform_name.clone(),
        })?;
        Ok(&self.devices[*position])
    }

    /// The number of a device among those of this process.
    pub fn device_number(&self, raw: *mut PJRT_Device) -> Option<usize> {
        self.addressable
            .iter()
            .position(|&i| self.devices[i].raw.as_ptr() == raw)
    }
}
