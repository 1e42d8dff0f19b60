//! Buffers: arrays on a device. Uploads, downloads, and what is left of a buffer that was donated.

use super::bindings::*;
use super::call::Call;
use super::client::{Client, ClientInner};
use super::event::Event;
use super::handle::Handle;
use super::handle::Owner;
use super::signature::{buffer_type, dims_i64};
use super::stall_timeout::{self, Watched};
use crate::error::{Error, Result};
use bytemuck::Pod;
use std::any::TypeId;
use std::ffi::c_void;
use std::sync::Arc;
use xtrain_graphs::{DType, Shape};

/// What a download waits for, in words, and an upload.
const RESULT: &str = "a result";
const UPLOAD: &str = "an upload";

/// An array on a device. It may still be on its way; whatever uses it waits for it.
///
/// A buffer that an executable took as its own (donation) stays behind as an empty handle:
/// [`Buffer::is_deleted`] says so, and using it is an error.
pub struct Buffer {
    handle: Handle<PJRT_Buffer, Arc<ClientInner>>,
    shape: Shape,
    device: usize,
}

impl Buffer {
    /// Takes over the buffer that `call` gave.
    ///
    /// # Safety
    /// `raw` is null, or a buffer of this client, of this shape and on this device, that nobody else
    /// will destroy.
    pub(super) unsafe fn from_raw(
        raw: *mut PJRT_Buffer,
        shape: &Shape,
        device: usize,
        client: &Arc<ClientInner>,
        call: &'static str,
    ) -> Result<Buffer> {
        Ok(Buffer {
            // SAFETY: the caller's promise is the same.
            handle: unsafe { Handle::new(raw, client.clone(), call) }?,
            shape: shape.clone(),
            device,
        })
    }

    pub(super) fn raw(&self) -> *mut PJRT_Buffer {
        self.handle.raw()
    }

    pub(super) fn belongs_to(&self, client: &Arc<ClientInner>) -> bool {
        Arc::ptr_eq(&self.handle.owner, client)
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The number of its device among this process's devices.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Whether the memory is gone: deleted, or donated to an execution.
    pub fn is_deleted(&self) -> bool {
        // A plugin without the call reports misuse itself, later.
        let told = self.handle.ask::<PJRT_Buffer_IsDeleted_Args>();
        told.is_ok_and(|told| told.is_deleted)
    }

    /// Frees the device memory now, whatever other handles to this value exist; this one stays valid
    /// as an empty one.
    pub fn delete(&self) -> Result<()> {
        self.handle.ask::<PJRT_Buffer_Delete_Args>().map(drop)
    }

    /// The device address, for telling whether two buffers share memory; never to be read through.
    pub fn address(&self) -> Result<usize> {
        self.check_alive()?;
        let told = self.handle.ask::<PJRT_Buffer_UnsafePointer_Args>()?;
        Ok(told.buffer_pointer)
    }

    /// An event that comes when the value is there, or could not be computed.
    pub fn ready(&self) -> Result<Event> {
        self.check_alive()?;
        let made = self.handle.ask::<PJRT_Buffer_ReadyEvent_Args>()?;
        let call = PJRT_Buffer_ReadyEvent_Args::NAME;
        // SAFETY: the event is new and nobody else has it.
        unsafe { Event::from_raw(made.event, &self.handle.owner, call) }
    }

    /// Blocks until the value is there; the error of the execution that should have made it comes
    /// out here.
    pub fn wait_ready(&self) -> Result<()> {
        self.ready()?.wait_for(RESULT)
    }

    /// Copies the buffer to another device of the same client.
    pub fn copy_to(&self, device: usize) -> Result<Buffer> {
        self.check_alive()?;
        let client = &self.handle.owner;
        let args = PJRT_Buffer_CopyToDevice_Args {
            buffer: self.raw(),
            dst_device: client.device(device)?.raw.as_ptr(),
            ..Default::default()
        };
        // SAFETY: buffer and device are alive and of the same client. The new buffer, a copy of this
        // one on that device, nobody else has.
        unsafe {
            let copy = self
                .handle
                .call(args)
                .map_err(|e| e.during(format!("copying {} to device {device}", self.shape)))?;
            let call = PJRT_Buffer_CopyToDevice_Args::NAME;
            Buffer::from_raw(copy.dst_buffer, &self.shape, device, client, call)
        }
    }

    /// The value as dense row-major bytes; waits for it.
    pub fn download(&self) -> Result<Vec<u8>> {
        self.download_to::<u8>()
    }

    /// The value as elements; waits for it. `T` must be the element type's own, or `u8` for plain
    /// bytes.
    pub fn download_to<T: Pod>(&self) -> Result<Vec<T>> {
        self.start_download_to()?.wait()
    }

    /// Starts a copy to the host and returns at once; elements as for [`Buffer::download_to`].
    pub fn start_download_to<T: Pod>(&self) -> Result<PendingDownload<T>> {
        let mut download = PendingDownload::new(element_count::<T>(&self.shape)?);
        download.add(self, 0)?;
        Ok(download)
    }

    /// Starts to copy the bytes of buffers to the host, one buffer after the other in one block, and
    /// returns at once.
    pub fn start_download_all(buffers: &[&Buffer]) -> Result<PendingDownload> {
        let bytes = buffers.iter().map(|buffer| buffer.shape.bytes());
        let mut download = PendingDownload::new(bytes.clone().sum());
        let mut at = 0;
        for (buffer, bytes) in buffers.iter().zip(bytes) {
            download.add(buffer, at)?;
            at += bytes;
        }
        Ok(download)
    }

    /// Starts to copy the value to `dst`, dense and row-major.
    ///
    /// # Safety
    /// `dst` points to as much memory as the value has bytes, which nobody else uses until the
    /// event has come.
    unsafe fn start_download(&self, dst: *mut c_void) -> Result<Started> {
        self.check_alive()?;
        let doing = || format!("downloading {} from device {}", self.shape, self.device);
        // Asked for by name, because the device may keep another order.
        let order: Vec<i64> = (0..self.shape.rank() as i64).rev().collect();
        let mut layout = PJRT_Buffer_MemoryLayout {
            type_: PJRT_Buffer_MemoryLayout_Type_Tiled,
            ..Default::default()
        };
        layout.__bindgen_anon_1.tiled = PJRT_Buffer_MemoryLayout_Tiled {
            minor_to_major: order.as_ptr(),
            minor_to_major_size: order.len(),
            ..Default::default()
        };
        let args = PJRT_Buffer_ToHostBuffer_Args {
            src: self.raw(),
            host_layout: &mut layout,
            dst,
            dst_size: self.shape.bytes(),
            ..Default::default()
        };
        if self.shape.bytes() == 0 {
            // A null destination would mean "how large?", and an empty array has no other.
            return Ok(Started::Copy(self.ready()?));
        }
        let (client, call) = (&self.handle.owner, PJRT_Buffer_ToHostBuffer_Args::NAME);
        let plugin = client.plugin().path();
        // SAFETY: the caller's promise.
        let start = || unsafe { self.handle.call(args) };
        let started = stall_timeout::wait(Watched::Device(RESULT), plugin, start)
            .map_err(|e| e.during(doing()))?;
        // SAFETY: the event is new and nobody else has it.
        Ok(
            match unsafe { Event::from_raw(started.event, client, call) } {
                Ok(event) => Started::Copy(event),
                Err(error) => Started::Endless(error.during(doing())),
            },
        )
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_deleted() {
            Err(Error::BufferDeleted {
                shape: self.shape.clone(),
            })
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({}, device {})", self.shape, self.device)
    }
}

/// A copy to the host that has begun.
enum Started {
    Copy(Event),
    /// Nothing will ever say when the plugin stops writing.
    Endless(Error),
}

/// A copy to the host that is under way. Dropping it waits for its end, because the plugin writes
/// into its memory.
pub struct PendingDownload<T: Pod = u8> {
    /// Taken by `wait`; else there until dropped.
    data: Option<Vec<T>>,
    /// Of each buffer that is copied.
    events: Vec<Event>,
}

impl<T: Pod> PendingDownload<T> {
    /// Memory for this many elements, to which nothing is copied yet.
    fn new(count: usize) -> Self {
        let mut data = vec![T::zeroed(); count];
        ask_for_huge_pages(&mut data);
        PendingDownload {
            data: Some(data),
            events: Vec::new(),
        }
    }

    /// Starts to copy a buffer to its place, `at` bytes from the start.
    fn add(&mut self, buffer: &Buffer, at: usize) -> Result<()> {
        let data = self.data.as_mut().expect("only wait takes the data");
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let place = &mut bytes[at..at + buffer.shape.bytes()];
        // SAFETY: this keeps the memory until the event has come, and gives nobody the place twice.
        match unsafe { buffer.start_download(place.as_mut_ptr().cast()) }? {
            Started::Copy(event) => {
                self.events.push(event);
                Ok(())
            }
            Started::Endless(error) => {
                // So the memory can never be freed.
                std::mem::forget(self.data.take());
                Err(error)
            }
        }
    }

    /// The memory that it takes.
    pub fn bytes(&self) -> usize {
        self.data.as_deref().map_or(0, size_of_val)
    }

    pub fn is_ready(&self) -> Result<bool> {
        for event in &self.events {
            if !event.is_ready()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for the value, or for the error of the execution that should have made it.
    pub fn wait(mut self) -> Result<Vec<T>> {
        for event in &self.events {
            event.wait_for(RESULT)?;
        }
        Ok(self
            .data
            .take()
            .expect("only wait takes the data, and it consumes the download"))
    }
}

/// Has the system make memory that nothing has been written to yet of huge pages, if it likes to:
/// getting it in small ones takes longer than the copy into it.
fn ask_for_huge_pages<T: Pod>(data: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        const HUGE: usize = 2 << 20;
        let range = data.as_mut_ptr_range();
        let start = (range.start as usize).next_multiple_of(HUGE);
        let whole = (range.end as usize).saturating_sub(start) / HUGE * HUGE;
        if whole > 0 {
            // SAFETY: the range is within the memory, whose content this leaves alone. A refusal
            // changes nothing.
            unsafe { libc::madvise(start as *mut c_void, whole, libc::MADV_HUGEPAGE) };
        }
    }
}

impl<T: Pod> Drop for PendingDownload<T> {
    fn drop(&mut self) {
        let Some(data) = self.data.take() else { return };
        let is_finished =
            |event: &Event| event.wait_for(RESULT).is_ok() || event.is_ready().unwrap_or(false);
        if !self.events.iter().all(is_finished) {
            // The plugin might still write; leaking is the only safe choice.
            std::mem::forget(data);
        }
    }
}

impl Client {
    /// Copies a dense row-major array to a device. The bytes are read before this returns.
    pub fn upload(&self, bytes: &[u8], shape: &Shape, device: usize) -> Result<Buffer> {
        let elements = shape
            .dims
            .iter()
            .try_fold(shape.dtype.size(), |n, &d| n.checked_mul(d));
        if elements != Some(bytes.len()) {
            return Err(Error::ByteCount {
                len: bytes.len(),
                shape: shape.clone(),
            });
        }
        let client = &self.inner;
        let dims = dims_i64(shape);
        let args = PJRT_Client_BufferFromHostBuffer_Args {
            client: client.raw(),
            data: bytes.as_ptr().cast::<c_void>(),
            type_: buffer_type(shape.dtype),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
            device: client.device(device)?.raw.as_ptr(),
            ..Default::default()
        };
        let call = PJRT_Client_BufferFromHostBuffer_Args::NAME;
        // SAFETY: client and device are alive, and the bytes are those of a dense array of these
        // dimensions; with these semantics the plugin is done with them when the call returns. Event
        // and buffer are new and nobody else has them; shape and device are those that were asked
        // for.
        let made = unsafe {
            // Some plugins copy within the call.
            let start = || client.call(args);
            let plugin = client.plugin().path();
            stall_timeout::wait(Watched::Device(UPLOAD), plugin, start).and_then(|made| {
                let event = Event::from_raw(made.done_with_host_buffer, client, call).ok();
                let buffer = Buffer::from_raw(made.buffer, shape, device, client, call)?;
                Ok((buffer, event))
            })
        };
        let (buffer, event) =
            made.map_err(|e| e.during(format!("uploading {shape} to device {device}")))?;
        // By contract the event has already come; waiting costs nothing and holds even for a plugin
        // that reads late.
        event.map_or(Ok(()), |event| event.wait_for(UPLOAD))?;
        Ok(buffer)
    }
}

/// How many `T` hold the array, if `T` is its element type or plain bytes.
fn element_count<T: Pod>(shape: &Shape) -> Result<usize> {
    let wanted = TypeId::of::<T>();
    if wanted == TypeId::of::<u8>() {
        return Ok(shape.bytes());
    }
    let fits = match shape.dtype {
        DType::Pred | DType::U8 => false,
        DType::S8 => wanted == TypeId::of::<i8>(),
        DType::S32 => wanted == TypeId::of::<i32>(),
        DType::S64 => wanted == TypeId::of::<i64>(),
        DType::U32 => wanted == TypeId::of::<u32>(),
        DType::U64 => wanted == TypeId::of::<u64>(),
        DType::F16 => wanted == TypeId::of::<half::f16>(),
        DType::BF16 => wanted == TypeId::of::<half::bf16>(),
        DType::F32 => wanted == TypeId::of::<f32>(),
        DType::F64 => wanted == TypeId::of::<f64>(),
    };
    if fits {
        Ok(shape.elements())
    } else {
        Err(Error::ElementType {
            shape: shape.clone(),
            wanted: std::any::type_name::<T>(),
        })
    }
}
