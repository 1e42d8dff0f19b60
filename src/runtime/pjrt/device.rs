//! A device as its plugin describes it.

use super::bindings::*;
use super::call::{CStruct, Call};
use super::memory::string;
use super::options::{OptionValue, read_named};
use super::plugin::{PluginInner, implemented};
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::Arc;

/// One device of a client, borrowed from it.
pub struct Device {
    pub(super) raw: NonNull<PJRT_Device>,
    plugin: Arc<PluginInner>,
    id: i32,
    process_index: i32,
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

/// Room for whatever newer plugins append to the statistics (they grew in 0.113 and may again).
#[repr(C)]
#[derive(Default)]
struct MemoryStatsWithTail {
    stats: PJRT_Device_MemoryStats_Args,
    tail: [u64; 16],
}

impl CStruct for MemoryStatsWithTail {
    const SIZE: usize = size_of::<MemoryStatsWithTail>();
}

impl Call for MemoryStatsWithTail {
    const NAME: &'static str = PJRT_Device_MemoryStats_Args::NAME;
    const OFFSET: usize = PJRT_Device_MemoryStats_Args::OFFSET;
}

impl Device {
    /// Reads a device's description.
    ///
    /// # Safety
    /// `raw` is a device of a live client of this plugin, and the result does not outlive that
    /// client.
    pub(super) unsafe fn new(raw: *mut PJRT_Device, plugin: &Arc<PluginInner>) -> Result<Device> {
        // SAFETY: the device is alive; so is its description, which belongs to it, as its texts and
        // values do, which are copied at once.
        let (addressable, id, process, kind, attributes) = unsafe {
            let about = plugin
                .ask::<PJRT_Device_GetDescription_Args, _>(raw)?
                .device_description;
            let attributes =
                implemented(plugin.ask::<PJRT_DeviceDescription_Attributes_Args, _>(about))?;
            let kind = plugin.ask::<PJRT_DeviceDescription_Kind_Args, _>(about)?;
            (
                plugin.ask::<PJRT_Device_IsAddressable_Args, _>(raw)?,
                plugin.ask::<PJRT_DeviceDescription_Id_Args, _>(about)?,
                plugin.ask::<PJRT_DeviceDescription_ProcessIndex_Args, _>(about)?,
                string(kind.device_kind, kind.device_kind_size),
                attributes.map_or_else(Vec::new, |told| {
                    read_named(told.attributes, told.num_attributes)
                }),
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| {
            plugin.answer(PJRT_Client_Devices_Args::NAME, "one of the devices is null")
        })?;
        Ok(Device {
            raw,
            plugin: plugin.clone(),
            id: id.id,
            process_index: process.process_index,
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
        // SAFETY: the device is alive, as its client is.
        let asked = unsafe { self.plugin.ask(self.raw.as_ptr()) };
        let stats: PJRT_Device_MemoryStats_Args = match asked {
            Ok(stats) => stats,
            Err(Error::Call {
                code: crate::Code::InvalidArgument,
                ..
            }) => {
                // A newer plugin fills a longer struct and refuses ours; what we know lies at its
                // start.
                let mut longer = MemoryStatsWithTail::default();
                longer.stats.device = self.raw.as_ptr();
                longer.stats.struct_size = MemoryStatsWithTail::SIZE;
                // SAFETY: the device is alive, and the struct is as long as it says.
                unsafe { self.plugin.call(longer) }.ok()?.stats
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
