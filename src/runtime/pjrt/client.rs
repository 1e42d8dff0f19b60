//! A client: one plugin at work on the devices of this process. How it uploads is in `buffer`, how
//! it compiles and loads in `executable`.

use super::device::Device;
use super::ffi::{self, Call, PjrtClient, PjrtDevice};
use super::kv::{self, Callbacks, KeyValueStore};
use super::memory::{array, string};
use super::options::{OptionValue, named_values};
use super::plugin::Plugin;
use crate::runtime::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// A client. Cloning is cheap and shares it; buffers, executables and events keep it alive.
#[derive(Clone)]
pub struct Client {
    pub(super) inner: Arc<ClientInner>,
}

pub(super) struct ClientInner {
    pub plugin: Plugin,
    raw: NonNull<PjrtClient>,
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

// SAFETY: a PJRT client may be used and destroyed from any thread (but its own; see
// `Event::on_ready`).
unsafe impl Send for ClientInner {}
// SAFETY: its calls are thread-safe.
unsafe impl Sync for ClientInner {}

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
        let doing = || format!("creating a client of {}", plugin.path().display());
        let values = named_values(options);
        let mut args = ffi::ClientCreate {
            create_options: values.as_ptr(),
            num_options: values.len(),
            ..Default::default()
        };
        let callbacks = store.map(Callbacks::new);
        if let Some(callbacks) = &callbacks {
            let argument = callbacks.argument();
            (args.kv_get_callback, args.kv_get_user_arg) =
                (Some(kv::get as ffi::KvGetCallback), argument);
            (args.kv_put_callback, args.kv_put_user_arg) =
                (Some(kv::put as ffi::KvPutCallback), argument);
            (args.kv_try_get_callback, args.kv_try_get_user_arg) =
                (Some(kv::try_get as ffi::KvTryGetCallback), argument);
        }
        // SAFETY: the options live through the call, the callbacks as long as the client.
        unsafe { plugin.inner.call(&mut args) }.map_err(|e| e.during(doing()))?;
        let raw = NonNull::new(args.client).ok_or_else(|| {
            plugin
                .inner
                .answer(ffi::ClientCreate::SLOT, "gave no client")
                .during(doing())
        })?;
        // From here on the handle is owned, so that an error below destroys it.
        let mut inner = ClientInner {
            plugin: plugin.clone(),
            raw,
            devices: Vec::new(),
            addressable: Vec::new(),
            platform_name: String::new(),
            platform_version: String::new(),
            process_index: 0,
            launches: AtomicI32::new(0),
            _callbacks: callbacks,
        };
        inner.describe().map_err(|e| e.during(doing()))?;
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    pub fn plugin(&self) -> &Plugin {
        &self.inner.plugin
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
    /// Reads names and devices once; they do not change.
    fn describe(&mut self) -> Result<()> {
        let plugin = self.plugin.inner.clone();
        let client = self.raw();
        let mut name = ffi::ClientPlatformName {
            client,
            ..Default::default()
        };
        let mut version = ffi::ClientPlatformVersion {
            client,
            ..Default::default()
        };
        let mut process = ffi::ClientProcessIndex {
            client,
            ..Default::default()
        };
        let mut devices = ffi::ClientDevices {
            client,
            ..Default::default()
        };
        // SAFETY: the client is alive; texts and arrays belong to it and are copied at once.
        let devices = unsafe {
            plugin.call(&mut name)?;
            self.platform_name = string(name.name, name.name_size);
            plugin.call(&mut version)?;
            self.platform_version = string(version.version, version.version_size);
            plugin.call(&mut process)?;
            plugin.call(&mut devices)?;
            array(devices.devices, devices.num_devices)
        };
        self.process_index = process.process_index;
        for &device in devices {
            // SAFETY: a device of this client, kept only inside it.
            self.devices.push(unsafe { Device::new(device, &plugin) }?);
        }
        self.addressable = (0..self.devices.len())
            .filter(|&i| self.devices[i].addressable())
            .collect();
        Ok(())
    }

    pub fn raw(&self) -> *mut PjrtClient {
        self.raw.as_ptr()
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
    pub unsafe fn call<A: Call>(&self, args: &mut A) -> Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.plugin.inner.call(args) }
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
    pub fn device_number(&self, raw: *mut PjrtDevice) -> Option<usize> {
        self.addressable
            .iter()
            .position(|&i| self.devices[i].raw.as_ptr() == raw)
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        // SAFETY: everything made from this client keeps it alive through an `Arc`, so all of it is
        // gone; this is the last use.
        let _ = unsafe {
            self.call(&mut ffi::ClientDestroy {
                client: self.raw(),
                ..Default::default()
            })
        };
    }
}
