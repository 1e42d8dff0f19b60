//! The proof that `ffi.rs` agrees with the header: numbers that a C compiler printed for `pjrt_c_api.h` 0.90 (x86-64 and every
//! other 64-bit Linux), compared at compile time. A wrong field or a slot out of place does not build.

use super::ffi::*;

macro_rules! same_size {
    ($($ty:ident = $size:literal),* $(,)?) => {
        $(const _: () = assert!(<$ty as CStruct>::SIZE == $size, stringify!($ty));)*
    };
}

macro_rules! same_offset {
    ($($slot:ident = $offset:literal),* $(,)?) => {
        $(const _: () = assert!(Slot::$slot.offset() == $offset, stringify!($slot));)*
    };
}

same_size! {
    NamedValue = 56,
    Program = 48,
    LayoutTiled = 56,
    MemoryLayout = 76,
    ExecuteOptions = 112,
    ErrorDestroy = 24,
    ErrorMessage = 40,
    ErrorGetCode = 28,
    PluginInitialize = 16,
    PluginAttributes = 32,
    EventDestroy = 24,
    EventIsReady = 25,
    EventAwait = 24,
    EventOnReady = 40,
    ClientCreate = 88,
    ClientDestroy = 24,
    ClientPlatformName = 40,
    ClientProcessIndex = 28,
    ClientPlatformVersion = 40,
    ClientDevices = 40,
    ClientCompile = 56,
    ClientBufferFromHostBuffer = 120,
    DescriptionId = 28,
    DescriptionProcessIndex = 28,
    DescriptionKind = 40,
    DeviceGetDescription = 32,
    DeviceIsAddressable = 25,
    DeviceLocalHardwareId = 28,
    DeviceMemoryStats = 185,
    ExecutableDestroy = 24,
    ExecutableNumOutputs = 32,
    ExecutableGetCostAnalysis = 40,
    ExecutableOptimizedProgram = 32,
    ExecutableSerialize = 56,
    ExecutableDeserializeAndLoad = 64,
    ExecutableOutputElementTypes = 40,
    ExecutableOutputDimensions = 48,
    ExecutableFingerprint = 40,
    ExecutableGetCompiledMemoryStats = 120,
    LoadedExecutableDestroy = 24,
    LoadedExecutableGetExecutable = 32,
    LoadedExecutableAddressableDevices = 40,
    LoadedExecutableExecute = 80,
    LoadedExecutableFingerprint = 40,
    BufferDestroy = 24,
    BufferDelete = 24,
    BufferIsDeleted = 25,
    BufferOnDeviceSizeInBytes = 32,
    BufferReadyEvent = 32,
    BufferUnsafePointer = 32,
    BufferCopyToDevice = 40,
    BufferToHostBuffer = 56,
}

same_offset! {
    Error_Destroy = 40,
    Error_Message = 48,
    Error_GetCode = 56,
    Plugin_Initialize = 64,
    Plugin_Attributes = 72,
    Event_Destroy = 80,
    Event_IsReady = 88,
    Event_Await = 104,
    Event_OnReady = 112,
    Client_Create = 120,
    Client_Destroy = 128,
    Client_PlatformName = 136,
    Client_ProcessIndex = 144,
    Client_PlatformVersion = 152,
    Client_Devices = 160,
    Client_Compile = 200,
    Client_BufferFromHostBuffer = 216,
    DeviceDescription_Id = 224,
    DeviceDescription_ProcessIndex = 232,
    DeviceDescription_Kind = 248,
    Device_GetDescription = 272,
    Device_IsAddressable = 280,
    Device_LocalHardwareId = 288,
    Device_MemoryStats = 312,
    Executable_Destroy = 360,
    Executable_NumOutputs = 392,
    Executable_GetCostAnalysis = 408,
    Executable_OptimizedProgram = 424,
    Executable_Serialize = 432,
    Executable_DeserializeAndLoad = 488,
    Executable_OutputElementTypes = 760,
    Executable_OutputDimensions = 768,
    Executable_Fingerprint = 792,
    Executable_GetCompiledMemoryStats = 808,
    LoadedExecutable_Destroy = 440,
    LoadedExecutable_GetExecutable = 448,
    LoadedExecutable_AddressableDevices = 456,
    LoadedExecutable_Execute = 480,
    LoadedExecutable_Fingerprint = 496,
    Buffer_Destroy = 504,
    Buffer_Delete = 576,
    Buffer_IsDeleted = 584,
    Buffer_OnDeviceSizeInBytes = 552,
    Buffer_ReadyEvent = 616,
    Buffer_UnsafePointer = 624,
    Buffer_CopyToDevice = 592,
    Buffer_ToHostBuffer = 600,
    Event_Set = 1056,
}

const _: () = assert!(Slot::Event_Set.offset() + 8 == 1064, "PJRT_Api");
