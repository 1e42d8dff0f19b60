//! A device as its plugin describes it.

use super::ffi::{self, CStruct, PjrtDevice};
use super::memory::string;
use super::options::{OptionValue, read_named};
use super::plugin::PluginInner;
use crate::runtime::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// One device of a client, borrowed from it.
pub struct Device {
    pub(super) raw: NonNull<PjrtDevice>,
    plugin: Arc<PluginInner>,
    id: i32,
    process_index: i32,
    local_hardware_id: i32,
    kind: String,
    attributes: Vec<(String, OptionValue)>,
    addressable: bool,
}

// SAFETY: devices belong to the client, live as long as it does (callers only ever borrow them from
// it), and their calls are thread-safe.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a device's allocator says. Only the first number is always known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub bytes_in_use: i64,
    pub peak_bytes_in_use: Option<i64>,
    /// The most that may be allocated.
    pub bytes_limit: Option<i64>,
    /// Held by the allocator, in use or not.
    pub pool_bytes: Option<i64>,
    pub peak_pool_bytes: Option<i64>,
    pub num_allocs: Option<i64>,
    pub largest_alloc_size: Option<i64>,
}

impl Device {
    /// Reads a device's description.
    ///
    /// # Safety
    /// `raw` is a device of a live client of this plugin, and the result does not outlive that
    /// client.
    pub(super) unsafe fn new(raw: *mut PjrtDevice, plugin: &Arc<PluginInner>) -> Result<Device> {
        let mut description = ffi::DeviceGetDescription {
            device: raw,
            ..Default::default()
        };
        let mut addressable = ffi::DeviceIsAddressable {
            device: raw,
            ..Default::default()
        };
        // SAFETY: the device is alive; so is its description, which belongs to it.
        unsafe {
            plugin.call(&mut description)?;
            plugin.call(&mut addressable)?;
        }
        let description = description.description;
        let mut id = ffi::DescriptionId {
            description,
            ..Default::default()
        };
        let mut process = ffi::DescriptionProcessIndex {
            description,
            ..Default::default()
        };
        let mut kind = ffi::DescriptionKind {
            description,
            ..Default::default()
        };
        // SAFETY: as above; the kind's text belongs to the description and is copied at once.
        let kind = unsafe {
            plugin.call(&mut id)?;
            plugin.call(&mut process)?;
            plugin.call(&mut kind)?;
            string(kind.kind, kind.kind_size)
        };
        let mut attributes = ffi::DescriptionAttributes {
            description,
            ..Default::default()
        };
        // SAFETY: as above; the values belong to the description and are copied at once.
        let attributes = match unsafe { plugin.call(&mut attributes) } {
            Ok(()) => unsafe { read_named(attributes.attributes, attributes.num_attributes) },
            Err(e) if e.is_unimplemented() => Vec::new(),
            Err(e) => return Err(e),
        };
        let mut local = ffi::DeviceLocalHardwareId {
            device: raw,
            ..Default::default()
        };
        // SAFETY: the device is alive. Plugins may not know this id, then it is -1 by the header's
        // own convention.
        let local_hardware_id = match unsafe { plugin.call(&mut local) } {
            Ok(()) => local.local_hardware_id,
            Err(e) if e.is_unimplemented() || !addressable.is_addressable => -1,
            Err(e) => return Err(e),
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            plugin.answer(ffi::Slot::Client_Devices, "one of the devices is null")
        })?;
        Ok(Device {
            raw,
            plugin: plugin.clone(),
            id: id.id,
            process_index: process.process_index,
            local_hardware_id,
            kind,
            attributes,
            addressable: addressable.is_addressable,
        })
    }

    /// The id that device assignments use, unique over all processes.
    pub fn id(&self) -> i32 {
        self.id
    }

    pub fn process_index(&self) -> i32 {
        self.process_index
    }

    /// The hardware's own number in this process, -1 if it has none.
    pub fn local_hardware_id(&self) -> i32 {
        self.local_hardware_id
    }

    /// What kind of device it is, in the vendor's words.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// What the vendor tells of it under a name (XLA:GPU: `compute_capability`, `core_count`, ...).
    pub fn attribute(&self, name: &str) -> Option<&OptionValue> {
        self.attributes
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value)
    }

    /// Whether this process can use it (in a run of several processes each sees all devices).
    pub fn addressable(&self) -> bool {
        self.addressable
    }

    /// The allocator's numbers, if this device has them.
    pub fn memory(&self) -> Option<DeviceMemory> {
        let mut args = ffi::DeviceMemoryStats {
            device: self.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: the device is alive, as its client is.
        let result = unsafe { self.plugin.call(&mut args) };
        let stats = match result {
            Ok(()) => args,
            Err(Error::Call {
                code: crate::runtime::Code::InvalidArgument,
                ..
            }) => {
                // A newer plugin fills a longer struct and refuses ours; what we know lies at its
                // start.
                let mut longer = ffi::MemoryStatsWithTail::default();
                longer.stats.device = self.raw.as_ptr();
                longer.stats.struct_size = ffi::MemoryStatsWithTail::SIZE;
                // SAFETY: the device is alive, and the struct is as long as it says.
                unsafe { self.plugin.call(&mut longer) }.ok()?;
                longer.stats
            }
            Err(_) => return None,
        };
        let set = |value: i64, is_set: bool| is_set.then_some(value);
        Some(DeviceMemory {
            bytes_in_use: stats.bytes_in_use,
            peak_bytes_in_use: set(stats.peak_bytes_in_use, stats.peak_bytes_in_use_is_set),
            bytes_limit: set(stats.bytes_limit, stats.bytes_limit_is_set),
            pool_bytes: set(stats.pool_bytes, stats.pool_bytes_is_set),
            peak_pool_bytes: set(stats.peak_pool_bytes, stats.peak_pool_bytes_is_set),
            num_allocs: set(stats.num_allocs, stats.num_allocs_is_set),
            largest_alloc_size: set(stats.largest_alloc_size, stats.largest_alloc_size_is_set),
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.id, self.kind)
    }
}
