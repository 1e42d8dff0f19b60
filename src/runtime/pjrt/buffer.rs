//! Buffers: arrays on a device. Uploads, downloads, and what is left of a buffer that was donated.

use super::client::{Client, ClientInner};
use super::event::Event;
use super::ffi::{self, CStruct, Call, PjrtBuffer};
use super::signature::{buffer_type, dims_i64};
use crate::runtime::error::{Error, Result};
use bytemuck::Pod;
use std::any::TypeId;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use xtrain_graphs::{DType, Shape};

/// What a download waits for, in words.
const RESULT: &str = "a result";

/// An array on a device. It may still be on its way; whatever uses it waits for it.
///
/// A buffer that an executable took as its own (donation) stays behind as an empty handle:
/// [`Buffer::is_deleted`] says so, and using it is an error.
pub struct Buffer {
    raw: NonNull<PjrtBuffer>,
    shape: Shape,
    device: usize,
    client: Arc<ClientInner>,
}

// SAFETY: a PJRT buffer may be used and destroyed from any thread.
unsafe impl Send for Buffer {}
// SAFETY: its calls are thread-safe, donation included: the plugin decides which of two takers
// comes first.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes a buffer over.
    ///
    /// # Safety
    /// `raw` is a buffer of this client, of this shape and on this device, that nobody else will
    /// destroy.
    pub(super) unsafe fn from_raw(
        raw: NonNull<PjrtBuffer>,
        shape: Shape,
        device: usize,
        client: &Arc<ClientInner>,
    ) -> Buffer {
        Buffer {
            raw,
            shape,
            device,
            client: client.clone(),
        }
    }

    pub(super) fn raw(&self) -> *mut PjrtBuffer {
        self.raw.as_ptr()
    }

    pub(super) fn belongs_to(&self, client: &Arc<ClientInner>) -> bool {
        Arc::ptr_eq(&self.client, client)
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
        let mut args = ffi::BufferIsDeleted {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the handle is alive. A plugin without the call reports misuse itself, later.
        unsafe { self.client.call(&mut args) }.is_ok() && args.is_deleted
    }

    /// Frees the device memory now, whatever other handles to this value exist.
    pub fn delete(&self) -> Result<()> {
        // SAFETY: the handle is alive and stays valid as an empty one.
        unsafe {
            self.client.call(&mut ffi::BufferDelete {
                buffer: self.raw(),
                ..Default::default()
            })
        }
    }

    /// Bytes on the device, padding included.
    pub fn device_bytes(&self) -> Result<usize> {
        self.check_alive()?;
        let mut args = ffi::BufferOnDeviceSizeInBytes {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the handle is alive.
        unsafe { self.client.call(&mut args) }?;
        Ok(args.size)
    }

    /// The device address, for telling whether two buffers share memory; never to be read through.
    pub fn address(&self) -> Result<usize> {
        self.check_alive()?;
        let mut args = ffi::BufferUnsafePointer {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the handle is alive.
        unsafe { self.client.call(&mut args) }?;
        Ok(args.address)
    }

    /// An event that comes when the value is there, or could not be computed.
    pub fn ready(&self) -> Result<Event> {
        self.check_alive()?;
        let mut args = ffi::BufferReadyEvent {
            buffer: self.raw(),
            ..Default::default()
        };
        // SAFETY: the handle is alive.
        unsafe { self.client.call(&mut args) }?;
        // SAFETY: the event is new and nobody else has it.
        unsafe { Event::from_raw(args.event, &self.client) }.ok_or_else(|| {
            self.client
                .plugin
                .inner
                .answer(ffi::BufferReadyEvent::SLOT, "gave no event")
        })
    }

    /// Blocks until the value is there; the error of the execution that should have made it comes
    /// out here.
    pub fn wait_ready(&self) -> Result<()> {
        self.ready()?.wait_for(RESULT)
    }

    /// Copies the buffer to another device of the same client.
    pub fn copy_to(&self, device: usize) -> Result<Buffer> {
        self.check_alive()?;
        let dst_device = self.client.device(device)?.raw.as_ptr();
        let mut args = ffi::BufferCopyToDevice {
            buffer: self.raw(),
            dst_device,
            ..Default::default()
        };
        // SAFETY: buffer and device are alive and of the same client.
        unsafe { self.client.call(&mut args) }
            .map_err(|e| e.during(format!("copying {} to device {device}", self.shape)))?;
        let raw = NonNull::new(args.dst_buffer).ok_or_else(|| {
            self.client
                .plugin
                .inner
                .answer(ffi::BufferCopyToDevice::SLOT, "gave no buffer")
        })?;
        // SAFETY: the buffer is new, a copy of this one on that device.
        Ok(unsafe { Buffer::from_raw(raw, self.shape.clone(), device, &self.client) })
    }

    /// The value as dense row-major bytes; waits for it.
    pub fn download(&self) -> Result<Vec<u8>> {
        self.download_to::<u8>()
    }

    /// The value as elements; waits for it. `T` must be the element type's own, or `u8` for plain
    /// bytes.
    pub fn download_to<T: Pod>(&self) -> Result<Vec<T>> {
        self.start(element_count::<T>(&self.shape)?)?.wait()
    }

    /// Starts a copy to the host and returns at once.
    pub fn start_download(&self) -> Result<PendingDownload> {
        self.start(self.shape.bytes())
    }

    /// As [`Buffer::start_download`], to elements.
    pub fn start_download_to<T: Pod>(&self) -> Result<PendingDownload<T>> {
        self.start(element_count::<T>(&self.shape)?)
    }

    fn start<T: Pod>(&self, count: usize) -> Result<PendingDownload<T>> {
        self.check_alive()?;
        let doing = || format!("downloading {} from device {}", self.shape, self.device);
        let mut data = vec![T::zeroed(); count];
        // Asked for by name, because the device may keep another order.
        let order: Vec<i64> = (0..self.shape.rank() as i64).rev().collect();
        let mut layout = ffi::MemoryLayout {
            kind: ffi::LAYOUT_TILED,
            ..Default::default()
        };
        layout.tiled.struct_size = ffi::LayoutTiled::SIZE;
        layout.tiled.minor_to_major = order.as_ptr();
        layout.tiled.minor_to_major_size = order.len();
        let mut args = ffi::BufferToHostBuffer {
            src: self.raw(),
            host_layout: &mut layout,
            dst: data.as_mut_ptr().cast(),
            dst_size: size_of_val(data.as_slice()),
            ..Default::default()
        };
        if data.is_empty() {
            // A null destination would mean "how large?", and an empty array has no other.
            let ready = self.ready()?;
            return Ok(PendingDownload {
                data: Some(data),
                event: ready,
            });
        }
        // SAFETY: `data` has the size of the dense array, and `PendingDownload` keeps it until the
        // event has come.
        unsafe { self.client.call(&mut args) }.map_err(|e| e.during(doing()))?;
        // SAFETY: the event is new and nobody else has it.
        match unsafe { Event::from_raw(args.event, &self.client) } {
            Some(event) => Ok(PendingDownload {
                data: Some(data),
                event,
            }),
            None => {
                // Nothing would ever say when the plugin stops writing, so the memory can never be
                // freed.
                std::mem::forget(data);
                Err(self
                    .client
                    .plugin
                    .inner
                    .answer(ffi::BufferToHostBuffer::SLOT, "gave no event")
                    .during(doing()))
            }
        }
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

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this handle owns the buffer; this is its last use. Executions and copies under
        // way hold the memory themselves.
        let _ = unsafe {
            self.client.call(&mut ffi::BufferDestroy {
                buffer: self.raw(),
                ..Default::default()
            })
        };
    }
}

/// A copy to the host that is under way. Dropping it waits for its end, because the plugin writes
/// into its memory.
pub struct PendingDownload<T: Pod = u8> {
    /// Taken by `wait`; else there until dropped.
    data: Option<Vec<T>>,
    event: Event,
}

impl<T: Pod> PendingDownload<T> {
    pub fn is_ready(&self) -> Result<bool> {
        self.event.is_ready()
    }

    /// Waits for the value, or for the error of the execution that should have made it.
    pub fn wait(mut self) -> Result<Vec<T>> {
        self.event.wait_for(RESULT)?;
        Ok(self
            .data
            .take()
            .expect("only wait takes the data, and it consumes the download"))
    }
}

impl<T: Pod> Drop for PendingDownload<T> {
    fn drop(&mut self) {
        let Some(data) = self.data.take() else { return };
        let finished =
            self.event.wait_for(RESULT).is_ok() || self.event.is_ready().unwrap_or(false);
        if !finished {
            // The plugin might still write; leaking is the only safe choice.
            std::mem::forget(data);
        }
    }
}

/// Host memory that [`Client::upload_owned`] takes.
pub enum HostBytes {
    Owned(Vec<u8>),
    Shared(Arc<[u8]>),
}

impl From<Vec<u8>> for HostBytes {
    fn from(bytes: Vec<u8>) -> Self {
        HostBytes::Owned(bytes)
    }
}

impl From<Arc<[u8]>> for HostBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        HostBytes::Shared(bytes)
    }
}

impl std::ops::Deref for HostBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HostBytes::Owned(bytes) => bytes,
            HostBytes::Shared(bytes) => bytes,
        }
    }
}

impl Client {
    /// Copies a dense row-major array to a device. The bytes are read before this returns.
    pub fn upload(&self, bytes: &[u8], shape: &Shape, device: usize) -> Result<Buffer> {
        upload(&self.inner, bytes, shape, device)
    }

    /// Gives a dense row-major array to a device: transferred in the background, freed when the
    /// device is done with it. A CPU client may go on using the memory as it is, without a copy.
    pub fn upload_owned(
        &self,
        bytes: impl Into<HostBytes>,
        shape: &Shape,
        device: usize,
    ) -> Result<Buffer> {
        upload_owned(&self.inner, bytes.into(), shape, device)
    }
}

fn upload(client: &Arc<ClientInner>, bytes: &[u8], shape: &Shape, device: usize) -> Result<Buffer> {
    // SAFETY: with these semantics the plugin is done with the bytes when the call returns.
    let (buffer, event) = unsafe {
        from_host(
            client,
            bytes,
            shape,
            device,
            ffi::HOST_IMMUTABLE_ONLY_DURING_CALL,
        )
    }?;
    // By contract the event has already come; waiting costs nothing and holds even for a plugin
    // that reads late.
    event.map_or(Ok(()), |event| event.wait_for("an upload"))?;
    Ok(buffer)
}

fn upload_owned(
    client: &Arc<ClientInner>,
    bytes: HostBytes,
    shape: &Shape,
    device: usize,
) -> Result<Buffer> {
    // SAFETY: the heap memory behind `bytes` does not move with it, nobody can write to it, and it
    // is freed only by the callback below, or leaked.
    let (buffer, event) =
        unsafe { from_host(client, &bytes, shape, device, ffi::HOST_IMMUTABLE_ZERO_COPY) }?;
    match event {
        Some(event) => {
            // Leaked unless the callback comes: were it only registered half-way, the plugin might
            // still be reading.
            let bytes = std::mem::ManuallyDrop::new(bytes);
            event.on_ready(move |_| drop(std::mem::ManuallyDrop::into_inner(bytes)))?;
        }
        None => std::mem::forget(bytes),
    }
    Ok(buffer)
}

/// # Safety
/// The bytes must stay in place and unchanged for as long as `semantics` says.
unsafe fn from_host(
    client: &Arc<ClientInner>,
    bytes: &[u8],
    shape: &Shape,
    device: usize,
    semantics: i32,
) -> Result<(Buffer, Option<Event>)> {
    let doing = || format!("uploading {shape} to device {device}");
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
    let dims = dims_i64(shape);
    let mut args = ffi::ClientBufferFromHostBuffer {
        client: client.raw(),
        data: bytes.as_ptr().cast::<c_void>(),
        element_type: buffer_type(shape.dtype),
        dims: dims.as_ptr(),
        num_dims: dims.len(),
        host_buffer_semantics: semantics,
        device: client.device(device)?.raw.as_ptr(),
        ..Default::default()
    };
    // SAFETY: client and device are alive, the bytes are those of a dense array of these
    // dimensions, and the caller sees to how long they stay.
    unsafe { client.call(&mut args) }.map_err(|e| e.during(doing()))?;
    // SAFETY: event and buffer are new and nobody else has them.
    let event = unsafe { Event::from_raw(args.done_with_host_buffer, client) };
    let raw = NonNull::new(args.buffer).ok_or_else(|| {
        client
            .plugin
            .inner
            .answer(ffi::ClientBufferFromHostBuffer::SLOT, "gave no buffer")
            .during(doing())
    })?;
    // SAFETY: as above, with the shape and device that were asked for.
    Ok((
        unsafe { Buffer::from_raw(raw, shape.clone(), device, client) },
        event,
    ))
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
