//! PJRT's C interface, written by hand from the header `xla/pjrt/c/pjrt_c_api.h` (API 0.90): plain
//! data, no behaviour.
//!
//! Two things cross the boundary: argument structs, one per call, and the table of calls. Every
//! struct starts with its own size, which is how both sides find out what the other one knows. Only
//! the calls that a trainer makes have a struct here, but the table lists every slot in the
//! header's order, because a slot's position *is* its identity. `layout.rs` holds the proof that
//! sizes and offsets are the header's. To add a call: write its struct in `calls!`, and add its
//! size to `layout.rs`.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The major version of the header that these bindings follow; plugins of another one have another
/// table.
pub const API_MAJOR: c_int = 0;

/// A type that the plugin owns; only ever seen through a pointer.
macro_rules! opaque {
    ($($name:ident),* $(,)?) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(
    Extension,
    PjrtError,
    PjrtEvent,
    PjrtClient,
    PjrtDevice,
    PjrtDescription,
    PjrtMemory
);
opaque!(
    PjrtExecutable,
    PjrtLoadedExecutable,
    PjrtBuffer,
    PjrtExecuteContext,
    PjrtSerialized,
    PjrtTopology
);

/// A struct of the C interface that carries its own size.
pub trait CStruct: Default {
    /// What the header calls `..._STRUCT_SIZE`: up to the end of the last field, without padding.
    /// Some plugins (Neuron's) compare for equality, so `size_of` would not do.
    const SIZE: usize;
}

/// The argument struct of one call; the struct type decides which slot of the table is called.
pub trait Call: CStruct {
    const SLOT: Slot;
}

macro_rules! required_size {
    ($s:ty; $field:ident: $ty:ty $(,)?) => { offset_of!($s, $field) + size_of::<$ty>() };
    ($s:ty; $field:ident: $ty:ty, $($rest:tt)+) => { required_size!($s; $($rest)+) };
}

macro_rules! structs {
    ($($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        pub struct $name {
            pub struct_size: usize,
            pub extension_start: *mut Extension,
            $(pub $field: $ty,)*
        }

        impl CStruct for $name {
            const SIZE: usize = required_size!($name; struct_size: usize, extension_start: *mut Extension, $($field: $ty),*);
        }

        impl Default for $name {
            /// All fields zero or null, the size filled in.
            fn default() -> Self {
                // SAFETY: every field is an integer, a float, a bool, a raw pointer, an optional
                // function pointer, or a struct or union of these; all-zero bytes are a valid value
                // of each.
                let mut value: Self = unsafe { std::mem::zeroed() };
                value.struct_size = <Self as CStruct>::SIZE;
                value
            }
        }
    )*};
}

/// Argument structs together with the slot that takes them.
macro_rules! calls {
    ($($slot:ident => $name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {
        structs! { $($name { $($field: $ty),* })* }
        $(impl Call for $name {
            const SLOT: Slot = Slot::$slot;
        })*
    };
}

macro_rules! slots {
    ($($name:ident),* $(,)?) => {
        /// Every slot of the table, in the header's order.
        #[allow(non_camel_case_types, dead_code)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Slot {
            $($name,)*
        }

        impl Slot {
            /// The call's name in the header.
            pub fn name(self) -> &'static str {
                match self {
                    $(Slot::$name => concat!("PJRT_", stringify!($name)),)*
                }
            }

            /// The slot's offset in the table, in bytes.
            pub const fn offset(self) -> usize {
                size_of::<ApiHeader>() + self as usize * size_of::<*const c_void>()
            }
        }
    };
}

/// What the table starts with; the slots follow without a gap.
#[repr(C)]
pub struct ApiHeader {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub version: ApiVersion,
}

#[repr(C)]
pub struct ApiVersion {
    pub struct_size: usize,
    pub extension_start: *mut Extension,
    pub major: c_int,
    pub minor: c_int,
}

slots! {
    Error_Destroy,
    Error_Message,
    Error_GetCode,
    Plugin_Initialize,
    Plugin_Attributes,
    Event_Destroy,
    Event_IsReady,
    Event_Error,
    Event_Await,
    Event_OnReady,
    Client_Create,
    Client_Destroy,
    Client_PlatformName,
    Client_ProcessIndex,
    Client_PlatformVersion,
    Client_Devices,
    Client_AddressableDevices,
    Client_LookupDevice,
    Client_LookupAddressableDevice,
    Client_AddressableMemories,
    Client_Compile,
    Client_DefaultDeviceAssignment,
    Client_BufferFromHostBuffer,
    DeviceDescription_Id,
    DeviceDescription_ProcessIndex,
    DeviceDescription_Attributes,
    DeviceDescription_Kind,
    DeviceDescription_DebugString,
    DeviceDescription_ToString,
    Device_GetDescription,
    Device_IsAddressable,
    Device_LocalHardwareId,
    Device_AddressableMemories,
    Device_DefaultMemory,
    Device_MemoryStats,
    Memory_Id,
    Memory_Kind,
    Memory_DebugString,
    Memory_ToString,
    Memory_AddressableByDevices,
    Executable_Destroy,
    Executable_Name,
    Executable_NumReplicas,
    Executable_NumPartitions,
    Executable_NumOutputs,
    Executable_SizeOfGeneratedCodeInBytes,
    Executable_GetCostAnalysis,
    Executable_OutputMemoryKinds,
    Executable_OptimizedProgram,
    Executable_Serialize,
    LoadedExecutable_Destroy,
    LoadedExecutable_GetExecutable,
    LoadedExecutable_AddressableDevices,
    LoadedExecutable_Delete,
    LoadedExecutable_IsDeleted,
    LoadedExecutable_Execute,
    Executable_DeserializeAndLoad,
    LoadedExecutable_Fingerprint,
    Buffer_Destroy,
    Buffer_ElementType,
    Buffer_Dimensions,
    Buffer_UnpaddedDimensions,
    Buffer_DynamicDimensionIndices,
    Buffer_GetMemoryLayout,
    Buffer_OnDeviceSizeInBytes,
    Buffer_Device,
    Buffer_Memory,
    Buffer_Delete,
    Buffer_IsDeleted,
    Buffer_CopyToDevice,
    Buffer_ToHostBuffer,
    Buffer_IsOnCpu,
    Buffer_ReadyEvent,
    Buffer_UnsafePointer,
    Buffer_IncreaseExternalReferenceCount,
    Buffer_DecreaseExternalReferenceCount,
    Buffer_OpaqueDeviceMemoryDataPointer,
    CopyToDeviceStream_Destroy,
    CopyToDeviceStream_AddChunk,
    CopyToDeviceStream_TotalBytes,
    CopyToDeviceStream_GranuleSize,
    CopyToDeviceStream_CurrentBytes,
    TopologyDescription_Create,
    TopologyDescription_Destroy,
    TopologyDescription_PlatformName,
    TopologyDescription_PlatformVersion,
    TopologyDescription_GetDeviceDescriptions,
    TopologyDescription_Serialize,
    TopologyDescription_Attributes,
    Compile,
    Executable_OutputElementTypes,
    Executable_OutputDimensions,
    Buffer_CopyToMemory,
    Client_CreateViewOfDeviceBuffer,
    Executable_Fingerprint,
    Client_TopologyDescription,
    Executable_GetCompiledMemoryStats,
    Memory_Kind_Id,
    ExecuteContext_Create,
    ExecuteContext_Destroy,
    Buffer_CopyRawToHost,
    AsyncHostToDeviceTransferManager_Destroy,
    AsyncHostToDeviceTransferManager_TransferData,
    Client_CreateBuffersForAsyncHostToDevice,
    AsyncHostToDeviceTransferManager_RetrieveBuffer,
    AsyncHostToDeviceTransferManager_Device,
    AsyncHostToDeviceTransferManager_BufferCount,
    AsyncHostToDeviceTransferManager_BufferSize,
    AsyncHostToDeviceTransferManager_SetBufferError,
    AsyncHostToDeviceTransferManager_AddMetadata,
    Client_DmaMap,
    Client_DmaUnmap,
    Client_CreateUninitializedBuffer,
    Client_UpdateGlobalProcessInfo,
    TopologyDescription_Deserialize,
    Client_CreateAliasBuffer,
    Client_FulfillAliasBuffer,
    LoadedExecutable_GetDeviceAssignment,
    Client_CreateErrorBuffer,
    AsyncHostToDeviceTransferManager_TransferLiteral,
    Buffer_CopyRawToHostFuture,
    Device_PoisonExecution,
    Device_CreateAsyncTrackingEvent,
    AsyncTrackingEvent_Destroy,
    Executable_GetCompileOptions,
    Buffer_DonateWithControlDependency,
    Event_Create,
    Event_Set,
}

/// A function that takes one argument struct and returns null or an error.
pub type ErrorCall<A> = unsafe extern "C" fn(*mut A) -> *mut PjrtError;
/// The two calls on errors themselves cannot fail.
pub type VoidCall<A> = unsafe extern "C" fn(*mut A);

pub const VALUE_STRING: c_int = 0;
pub const VALUE_INT64: c_int = 1;
pub const VALUE_INT64_LIST: c_int = 2;
pub const VALUE_FLOAT: c_int = 3;
pub const VALUE_BOOL: c_int = 4;

pub const HOST_IMMUTABLE_ONLY_DURING_CALL: c_int = 0;
pub const HOST_IMMUTABLE_ZERO_COPY: c_int = 2;

pub const LAYOUT_TILED: c_int = 0;

#[repr(C)]
#[derive(Clone, Copy)]
pub union ValueUnion {
    pub string_value: *const c_char,
    pub int64_value: i64,
    pub int64_array_value: *const i64,
    pub float_value: f32,
    pub bool_value: bool,
}

/// Makes an error of the plugin's.
pub type CallbackError = unsafe extern "C" fn(c_int, *const c_char, usize) -> *mut PjrtError;
pub type KvGetCallback = unsafe extern "C" fn(*mut KvGet) -> *mut PjrtError;
pub type KvTryGetCallback = unsafe extern "C" fn(*mut KvTryGet) -> *mut PjrtError;
pub type KvPutCallback = unsafe extern "C" fn(*mut KvPut) -> *mut PjrtError;

structs! {
    /// A name with a value of one of five types; `value_size` counts elements (1 for a scalar).
    NamedValue { name: *const c_char, name_size: usize, kind: c_int, value: ValueUnion, value_size: usize }

    /// A plugin asks for a value that may be put later.
    KvGet {
        key: *const c_char, key_size: usize, timeout_in_ms: c_int, callback_error: *const CallbackError, user_arg: *mut c_void,
        value: *mut c_char, value_size: usize, value_deleter_callback: *const c_void,
    }

    /// The same for a value that is there, or not.
    KvTryGet {
        key: *const c_char, key_size: usize, callback_error: *const CallbackError, user_arg: *mut c_void,
        value: *mut c_char, value_size: usize, value_deleter_callback: *const c_void,
    }

    KvPut {
        key: *const c_char, key_size: usize, value: *const c_char, value_size: usize, callback_error: *const CallbackError,
        user_arg: *mut c_void,
    }

    /// Code in, or code out with `code` as the caller's memory.
    Program { code: *mut c_char, code_size: usize, format: *const c_char, format_size: usize }

    LayoutTiled {
        minor_to_major: *const i64, minor_to_major_size: usize,
        tile_dims: *const i64, tile_dim_sizes: *const usize, num_tiles: usize,
    }

    /// The header has a union here; its other member (strides) is smaller and we never use it.
    MemoryLayout { tiled: LayoutTiled, kind: c_int }

    ExecuteOptions {
        send_callbacks: *mut *mut c_void, recv_callbacks: *mut *mut c_void, num_send_ops: usize, num_recv_ops: usize,
        launch_id: c_int,
        non_donatable_input_indices: *const i64, num_non_donatable_input_indices: usize,
        context: *mut PjrtExecuteContext, call_location: *const c_char,
        num_tasks: usize, task_ids: *mut c_int, incarnation_ids: *mut i64,
    }
}

/// Room for whatever newer plugins append to `DeviceMemoryStats` (it grew in 0.113 and may again).
#[repr(C)]
#[derive(Default)]
pub struct MemoryStatsWithTail {
    pub stats: DeviceMemoryStats,
    pub tail: [u64; 16],
}

impl CStruct for MemoryStatsWithTail {
    const SIZE: usize = size_of::<MemoryStatsWithTail>();
}

impl Call for MemoryStatsWithTail {
    const SLOT: Slot = Slot::Device_MemoryStats;
}

calls! {
    Error_Destroy => ErrorDestroy { error: *mut PjrtError }
    Error_Message => ErrorMessage { error: *const PjrtError, message: *const c_char, message_size: usize }
    Error_GetCode => ErrorGetCode { error: *const PjrtError, code: c_int }

    Plugin_Initialize => PluginInitialize {}
    Plugin_Attributes => PluginAttributes { attributes: *const NamedValue, num_attributes: usize }

    Event_Destroy => EventDestroy { event: *mut PjrtEvent }
    Event_IsReady => EventIsReady { event: *mut PjrtEvent, is_ready: bool }
    Event_Await => EventAwait { event: *mut PjrtEvent }
    Event_OnReady => EventOnReady {
        event: *mut PjrtEvent,
        callback: Option<unsafe extern "C" fn(*mut PjrtError, *mut c_void)>,
        user_arg: *mut c_void,
    }

    Client_Create => ClientCreate {
        create_options: *const NamedValue, num_options: usize,
        kv_get_callback: Option<KvGetCallback>, kv_get_user_arg: *mut c_void,
        kv_put_callback: Option<KvPutCallback>, kv_put_user_arg: *mut c_void,
        client: *mut PjrtClient,
        kv_try_get_callback: Option<KvTryGetCallback>, kv_try_get_user_arg: *mut c_void,
    }
    Client_Destroy => ClientDestroy { client: *mut PjrtClient }
    Client_PlatformName => ClientPlatformName { client: *mut PjrtClient, name: *const c_char, name_size: usize }
    Client_ProcessIndex => ClientProcessIndex { client: *mut PjrtClient, process_index: c_int }
    Client_PlatformVersion => ClientPlatformVersion { client: *mut PjrtClient, version: *const c_char, version_size: usize }
    Client_Devices => ClientDevices { client: *mut PjrtClient, devices: *const *mut PjrtDevice, num_devices: usize }
    Client_Compile => ClientCompile {
        client: *mut PjrtClient, program: *const Program,
        compile_options: *const c_char, compile_options_size: usize,
        executable: *mut PjrtLoadedExecutable,
    }
    Client_BufferFromHostBuffer => ClientBufferFromHostBuffer {
        client: *mut PjrtClient, data: *const c_void, element_type: c_int, dims: *const i64, num_dims: usize,
        byte_strides: *const i64, num_byte_strides: usize, host_buffer_semantics: c_int,
        device: *mut PjrtDevice, memory: *mut PjrtMemory, device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut PjrtEvent, buffer: *mut PjrtBuffer,
    }

    DeviceDescription_Id => DescriptionId { description: *mut PjrtDescription, id: c_int }
    DeviceDescription_ProcessIndex => DescriptionProcessIndex { description: *mut PjrtDescription, process_index: c_int }
    DeviceDescription_Kind => DescriptionKind { description: *mut PjrtDescription, kind: *const c_char, kind_size: usize }
    DeviceDescription_Attributes => DescriptionAttributes {
        description: *mut PjrtDescription, num_attributes: usize, attributes: *const NamedValue,
    }
    Device_GetDescription => DeviceGetDescription { device: *mut PjrtDevice, description: *mut PjrtDescription }
    Device_IsAddressable => DeviceIsAddressable { device: *mut PjrtDevice, is_addressable: bool }
    Device_LocalHardwareId => DeviceLocalHardwareId { device: *mut PjrtDevice, local_hardware_id: c_int }
    Device_MemoryStats => DeviceMemoryStats {
        device: *mut PjrtDevice,
        bytes_in_use: i64,
        peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
        num_allocs: i64, num_allocs_is_set: bool,
        largest_alloc_size: i64, largest_alloc_size_is_set: bool,
        bytes_limit: i64, bytes_limit_is_set: bool,
        bytes_reserved: i64, bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool,
        bytes_reservable_limit: i64, bytes_reservable_limit_is_set: bool,
        largest_free_block_bytes: i64, largest_free_block_bytes_is_set: bool,
        pool_bytes: i64, pool_bytes_is_set: bool,
        peak_pool_bytes: i64, peak_pool_bytes_is_set: bool,
    }

    TopologyDescription_Create => TopologyCreate {
        topology_name: *const c_char, topology_name_size: usize, create_options: *const NamedValue, num_options: usize,
        topology: *mut PjrtTopology,
    }
    TopologyDescription_Destroy => TopologyDestroy { topology: *mut PjrtTopology }
    TopologyDescription_PlatformName => TopologyPlatformName {
        topology: *mut PjrtTopology, name: *const c_char, name_size: usize,
    }
    TopologyDescription_PlatformVersion => TopologyPlatformVersion {
        topology: *mut PjrtTopology, version: *const c_char, version_size: usize,
    }
    Compile => Compile {
        topology: *const PjrtTopology, program: *const Program,
        compile_options: *const c_char, compile_options_size: usize,
        client: *mut PjrtClient, executable: *mut PjrtExecutable,
    }

    Executable_Destroy => ExecutableDestroy { executable: *mut PjrtExecutable }
    Executable_NumOutputs => ExecutableNumOutputs { executable: *mut PjrtExecutable, num_outputs: usize }
    Executable_GetCostAnalysis => ExecutableGetCostAnalysis {
        executable: *mut PjrtExecutable, num_properties: usize, properties: *const NamedValue,
    }
    Executable_OptimizedProgram => ExecutableOptimizedProgram { executable: *mut PjrtExecutable, program: *mut Program }
    Executable_Serialize => ExecutableSerialize {
        executable: *const PjrtExecutable, bytes: *const c_char, bytes_size: usize,
        backing: *mut PjrtSerialized, deleter: Option<unsafe extern "C" fn(*mut PjrtSerialized)>,
    }
    Executable_DeserializeAndLoad => ExecutableDeserializeAndLoad {
        client: *mut PjrtClient, serialized: *const c_char, serialized_size: usize,
        loaded_executable: *mut PjrtLoadedExecutable,
        overridden_options: *const c_char, overridden_options_size: usize,
    }
    Executable_OutputElementTypes => ExecutableOutputElementTypes {
        executable: *mut PjrtExecutable, types: *mut c_int, num_types: usize,
    }
    Executable_OutputDimensions => ExecutableOutputDimensions {
        executable: *mut PjrtExecutable, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }
    Executable_Fingerprint => ExecutableFingerprint {
        executable: *mut PjrtExecutable, fingerprint: *const c_char, fingerprint_size: usize,
    }
    Executable_GetCompiledMemoryStats => ExecutableGetCompiledMemoryStats {
        executable: *mut PjrtExecutable,
        generated_code_size: i64, argument_size: i64, output_size: i64, alias_size: i64, temp_size: i64,
        host_generated_code_size: i64, host_argument_size: i64, host_output_size: i64, host_alias_size: i64, host_temp_size: i64,
        peak_memory: i64, total_size: i64,
    }

    LoadedExecutable_Destroy => LoadedExecutableDestroy { executable: *mut PjrtLoadedExecutable }
    LoadedExecutable_GetExecutable => LoadedExecutableGetExecutable {
        loaded_executable: *mut PjrtLoadedExecutable, executable: *mut PjrtExecutable,
    }
    LoadedExecutable_AddressableDevices => LoadedExecutableAddressableDevices {
        executable: *mut PjrtLoadedExecutable, devices: *const *mut PjrtDevice, num_devices: usize,
    }
    LoadedExecutable_Execute => LoadedExecutableExecute {
        executable: *mut PjrtLoadedExecutable, options: *mut ExecuteOptions,
        argument_lists: *const *const *mut PjrtBuffer, num_devices: usize, num_args: usize,
        output_lists: *const *mut *mut PjrtBuffer, device_complete_events: *mut *mut PjrtEvent,
        execute_device: *mut PjrtDevice,
    }
    LoadedExecutable_Fingerprint => LoadedExecutableFingerprint {
        executable: *mut PjrtLoadedExecutable, fingerprint: *const c_char, fingerprint_size: usize,
    }

    Buffer_Destroy => BufferDestroy { buffer: *mut PjrtBuffer }
    Buffer_Delete => BufferDelete { buffer: *mut PjrtBuffer }
    Buffer_IsDeleted => BufferIsDeleted { buffer: *mut PjrtBuffer, is_deleted: bool }
    Buffer_OnDeviceSizeInBytes => BufferOnDeviceSizeInBytes { buffer: *mut PjrtBuffer, size: usize }
    Buffer_ReadyEvent => BufferReadyEvent { buffer: *mut PjrtBuffer, event: *mut PjrtEvent }
    Buffer_UnsafePointer => BufferUnsafePointer { buffer: *mut PjrtBuffer, address: usize }
    Buffer_CopyToDevice => BufferCopyToDevice {
        buffer: *mut PjrtBuffer, dst_device: *mut PjrtDevice, dst_buffer: *mut PjrtBuffer,
    }
    Buffer_ToHostBuffer => BufferToHostBuffer {
        src: *mut PjrtBuffer, host_layout: *mut MemoryLayout, dst: *mut c_void, dst_size: usize, event: *mut PjrtEvent,
    }
}

impl Program {
    /// A program to compile. It points into both arguments; plugins only read the code, as the
    /// header's `const` program says.
    pub fn of(code: &[u8], format: &str) -> Program {
        Program {
            code: code.as_ptr().cast_mut().cast(),
            code_size: code.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
            ..Default::default()
        }
    }
}
