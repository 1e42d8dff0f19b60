// xtrain's CPU plugin: the PJRT C API over XLA's CPU client. This file fills the table of calls; the calls themselves are in
// client.h, buffer.h and executable.h, the allocator in pool.h. All are one translation unit because XLA's headers take most
// of a minute to compile, ours next to nothing.

#include <cstddef>

#include "buffer.h"
#include "client.h"
#include "common.h"
#include "executable.h"
#include "xla/service/hlo.pb.h"

namespace xla {
// Exported by the library. Its header needs MLIR's, which nobody ships.
absl::StatusOr<std::string> ConvertHloToStablehlo(const HloModule& module, bool emit_bytecode);
}  // namespace xla

namespace xtrain {

#define XT_IMPLEMENTED(X)                                                                                              \
  X(PJRT_Error_Destroy) X(PJRT_Error_Message) X(PJRT_Error_GetCode) X(PJRT_Plugin_Initialize) X(PJRT_Plugin_Attributes) \
  X(PJRT_Event_Destroy) X(PJRT_Event_IsReady) X(PJRT_Event_Error) X(PJRT_Event_Await) X(PJRT_Event_OnReady)             \
  X(PJRT_Event_Create) X(PJRT_Event_Set)                                                                                \
  X(PJRT_Client_Create) X(PJRT_Client_Destroy) X(PJRT_Client_PlatformName) X(PJRT_Client_PlatformVersion)               \
  X(PJRT_Client_ProcessIndex) X(PJRT_Client_Devices) X(PJRT_Client_AddressableDevices) X(PJRT_Client_LookupDevice)      \
  X(PJRT_Client_LookupAddressableDevice) X(PJRT_Client_AddressableMemories) X(PJRT_Client_Compile)                      \
  X(PJRT_Client_DefaultDeviceAssignment) X(PJRT_Client_TopologyDescription) X(PJRT_Client_BufferFromHostBuffer)         \
  X(PJRT_Client_CreateUninitializedBuffer) X(PJRT_Client_CreateErrorBuffer) X(PJRT_Client_CreateViewOfDeviceBuffer)     \
  X(PJRT_DeviceDescription_Id) X(PJRT_DeviceDescription_ProcessIndex) X(PJRT_DeviceDescription_Attributes)              \
  X(PJRT_DeviceDescription_Kind) X(PJRT_DeviceDescription_DebugString) X(PJRT_DeviceDescription_ToString)               \
  X(PJRT_Device_GetDescription) X(PJRT_Device_IsAddressable) X(PJRT_Device_LocalHardwareId)                             \
  X(PJRT_Device_AddressableMemories) X(PJRT_Device_DefaultMemory) X(PJRT_Device_MemoryStats)                            \
  X(PJRT_Memory_Id) X(PJRT_Memory_Kind) X(PJRT_Memory_Kind_Id) X(PJRT_Memory_DebugString) X(PJRT_Memory_ToString)       \
  X(PJRT_Memory_AddressableByDevices)                                                                                   \
  X(PJRT_Executable_Destroy) X(PJRT_Executable_Name) X(PJRT_Executable_NumReplicas) X(PJRT_Executable_NumPartitions)    \
  X(PJRT_Executable_NumOutputs) X(PJRT_Executable_SizeOfGeneratedCodeInBytes) X(PJRT_Executable_GetCostAnalysis)        \
  X(PJRT_Executable_OutputMemoryKinds) X(PJRT_Executable_OptimizedProgram) X(PJRT_Executable_Serialize)                 \
  X(PJRT_Executable_DeserializeAndLoad) X(PJRT_Executable_OutputElementTypes) X(PJRT_Executable_OutputDimensions)       \
  X(PJRT_Executable_Fingerprint) X(PJRT_Executable_GetCompiledMemoryStats) X(PJRT_Executable_GetCompileOptions)         \
  X(PJRT_LoadedExecutable_Destroy) X(PJRT_LoadedExecutable_GetExecutable) X(PJRT_LoadedExecutable_AddressableDevices)   \
  X(PJRT_LoadedExecutable_Delete) X(PJRT_LoadedExecutable_IsDeleted) X(PJRT_LoadedExecutable_Execute)                   \
  X(PJRT_LoadedExecutable_GetDeviceAssignment)                                                                          \
  X(PJRT_Buffer_Destroy) X(PJRT_Buffer_ElementType) X(PJRT_Buffer_Dimensions) X(PJRT_Buffer_UnpaddedDimensions)         \
  X(PJRT_Buffer_DynamicDimensionIndices) X(PJRT_Buffer_GetMemoryLayout) X(PJRT_Buffer_OnDeviceSizeInBytes)              \
  X(PJRT_Buffer_Device) X(PJRT_Buffer_Memory) X(PJRT_Buffer_Delete) X(PJRT_Buffer_IsDeleted) X(PJRT_Buffer_CopyToDevice) \
  X(PJRT_Buffer_CopyToMemory) X(PJRT_Buffer_CopyRawToHost) X(PJRT_Buffer_ToHostBuffer) X(PJRT_Buffer_IsOnCpu)           \
  X(PJRT_Buffer_ReadyEvent) X(PJRT_Buffer_UnsafePointer) X(PJRT_Buffer_IncreaseExternalReferenceCount)                  \
  X(PJRT_Buffer_DecreaseExternalReferenceCount) X(PJRT_Buffer_OpaqueDeviceMemoryDataPointer)                            \
  X(PJRT_TopologyDescription_Destroy) X(PJRT_TopologyDescription_PlatformName)                                          \
  X(PJRT_TopologyDescription_PlatformVersion) X(PJRT_TopologyDescription_GetDeviceDescriptions)                         \
  X(PJRT_TopologyDescription_Serialize) X(PJRT_TopologyDescription_Attributes)                                          \
  X(PJRT_ExecuteContext_Create) X(PJRT_ExecuteContext_Destroy)

#define XT_UNIMPLEMENTED(X)                                                                                            \
  X(PJRT_LoadedExecutable_Fingerprint) /* deprecated; PJRT_Executable_Fingerprint has it */                             \
  X(PJRT_Compile) X(PJRT_TopologyDescription_Create) X(PJRT_TopologyDescription_Deserialize)                            \
  X(PJRT_CopyToDeviceStream_Destroy) X(PJRT_CopyToDeviceStream_AddChunk) X(PJRT_CopyToDeviceStream_TotalBytes)          \
  X(PJRT_CopyToDeviceStream_GranuleSize) X(PJRT_CopyToDeviceStream_CurrentBytes)                                        \
  X(PJRT_AsyncHostToDeviceTransferManager_Destroy) X(PJRT_AsyncHostToDeviceTransferManager_TransferData)                \
  X(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer) X(PJRT_AsyncHostToDeviceTransferManager_Device)               \
  X(PJRT_AsyncHostToDeviceTransferManager_BufferCount) X(PJRT_AsyncHostToDeviceTransferManager_BufferSize)              \
  X(PJRT_AsyncHostToDeviceTransferManager_SetBufferError) X(PJRT_AsyncHostToDeviceTransferManager_AddMetadata)          \
  X(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral) X(PJRT_Client_CreateBuffersForAsyncHostToDevice)             \
  X(PJRT_Client_DmaMap) X(PJRT_Client_DmaUnmap) X(PJRT_Client_UpdateGlobalProcessInfo)                                  \
  X(PJRT_Client_CreateAliasBuffer) X(PJRT_Client_FulfillAliasBuffer) X(PJRT_Buffer_CopyRawToHostFuture)                 \
  X(PJRT_Device_PoisonExecution) X(PJRT_Device_CreateAsyncTrackingEvent) X(PJRT_AsyncTrackingEvent_Destroy)             \
  X(PJRT_Buffer_DonateWithControlDependency)

// A caller of one of these gets an error with the call's name, never a jump through a null pointer.
#define XT_DEFINE_STUB(name)                                                                                 \
  static PJRT_Error* name##_(name##_Args*) {                                                                 \
    return MakeError(absl::UnimplementedError(#name " is not implemented by the xtrain CPU plugin"));        \
  }
XT_UNIMPLEMENTED(XT_DEFINE_STUB)
#undef XT_DEFINE_STUB

static const PJRT_Api* MakeApi() {
  static PJRT_Api api = {};
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = PJRT_API_MINOR;
#define XT_FILL(name) api.name = name##_;
  XT_IMPLEMENTED(XT_FILL)
  XT_UNIMPLEMENTED(XT_FILL)
#undef XT_FILL
  return &api;
}

// Both lists together are the whole table: a header with more calls fails to compile here rather than leave a null slot.
#define XT_COUNT(name) +1
static_assert(offsetof(PJRT_Api, PJRT_Error_Destroy) + sizeof(void*) * (0 XT_IMPLEMENTED(XT_COUNT) XT_UNIMPLEMENTED(XT_COUNT)) ==
                  sizeof(PJRT_Api),
              "a call of the PJRT C API is in neither list");
#undef XT_COUNT

}  // namespace xtrain

// What the Rust side links; it exports them under the names that the world expects.

extern "C" const PJRT_Api* xtrain_cpp_pjrt_api() {
  static const PJRT_Api* api = xtrain::MakeApi();
  return api;
}

namespace {

absl::StatusOr<std::unique_ptr<xla::HloModule>> ReadModule(const char* bytes, size_t size) {
  xla::HloModuleProto proto;
  if (size > std::numeric_limits<int>::max() || !proto.ParseFromArray(bytes, static_cast<int>(size))) {
    return absl::InvalidArgumentError("the bytes are no HloModuleProto");
  }
  if (proto.computations().empty() || !proto.has_host_program_shape()) {
    return absl::InvalidArgumentError("the HloModuleProto has no computation or no program shape");
  }
  auto config = xla::HloModule::CreateModuleConfigFromProto(proto, xla::DebugOptions());
  if (!config.ok()) return config.status();
  return xla::HloModule::CreateFromProto(proto, *config);
}

// Returns 0 and the text, or 1 and a message; `out` is malloc'd.
int Answer(const absl::StatusOr<std::string>& result, char** out, size_t* out_size) {
  const absl::string_view text = result.ok() ? absl::string_view(*result) : result.status().message();
  *out = static_cast<char*>(std::malloc(text.size() + 1));
  if (*out == nullptr) return 1;
  std::memcpy(*out, text.data(), text.size());
  *out_size = text.size();
  return result.ok() ? 0 : 1;
}

}  // namespace

// HLO text of a serialized HloModuleProto.
extern "C" int xtrain_cpp_hlo_text(const char* module, size_t size, char** out, size_t* out_size) {
  auto parsed = ReadModule(module, size);
  return Answer(parsed.ok() ? absl::StatusOr<std::string>((*parsed)->ToString()) : parsed.status(), out, out_size);
}

// StableHLO text of a serialized HloModuleProto.
extern "C" int xtrain_cpp_stablehlo_text(const char* module, size_t size, char** out, size_t* out_size) {
  auto parsed = ReadModule(module, size);
  return Answer(parsed.ok() ? xla::ConvertHloToStablehlo(**parsed, /*emit_bytecode=*/false) : parsed.status(), out, out_size);
}
