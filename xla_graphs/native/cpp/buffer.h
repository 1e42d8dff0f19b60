// Buffers: copies from and to host memory, between devices and memories, views, readiness, deletion. Whatever a caller
// passes (negative dims, unknown types, foreign devices, deleted buffers) ends in an error here or in the library.

#ifndef XTRAIN_CPP_BUFFER_H_
#define XTRAIN_CPP_BUFFER_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common.h"
#include "xla/layout_util.h"
#include "xla/literal.h"
#include "xla/shape_util.h"

namespace xtrain {

// XLA's type for each PJRT_Buffer_Type, in the order of that enum.
constexpr xla::PrimitiveType kTypes[] = {
    xla::PRIMITIVE_TYPE_INVALID, xla::PRED, xla::S8, xla::S16, xla::S32, xla::S64, xla::U8, xla::U16, xla::U32, xla::U64,
    xla::F16, xla::F32, xla::F64, xla::BF16, xla::C64, xla::C128, xla::F8E5M2, xla::F8E4M3FN, xla::F8E4M3B11FNUZ,
    xla::F8E5M2FNUZ, xla::F8E4M3FNUZ, xla::S4, xla::U4, xla::TOKEN, xla::S2, xla::U2, xla::F8E4M3, xla::F8E3M4,
    xla::F8E8M0FNU, xla::F4E2M1FN};
constexpr int kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]);

inline PJRT_Buffer_Type ToCType(xla::PrimitiveType type) {
  for (int i = 0; i < kTypeCount; ++i) {
    if (kTypes[i] == type) return static_cast<PJRT_Buffer_Type>(i);
  }
  return PJRT_Buffer_Type_INVALID;
}

// Only plain dense layouts: a permutation of the dimensions, no tiles, no strides.
inline absl::StatusOr<std::optional<xla::Layout>> ReadLayout(const PJRT_Buffer_MemoryLayout* layout, size_t rank) {
  if (layout == nullptr) return std::nullopt;
  if (layout->type != PJRT_Buffer_MemoryLayout_Type_Tiled || layout->tiled.num_tiles != 0) {
    return absl::UnimplementedError("only untiled minor_to_major layouts are supported");
  }
  if (layout->tiled.minor_to_major_size != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layout names ", layout->tiled.minor_to_major_size, " dimensions of ", rank));
  }
  std::vector<bool> seen(rank);
  for (size_t i = 0; i < rank; ++i) {
    const int64_t dim = layout->tiled.minor_to_major[i];
    if (dim < 0 || dim >= static_cast<int64_t>(rank) || seen[dim]) {
      return absl::InvalidArgumentError("the layout's minor_to_major is no permutation of the dimensions");
    }
    seen[dim] = true;
  }
  return xla::LayoutUtil::MakeLayout(absl::MakeSpan(layout->tiled.minor_to_major, rank));
}

inline absl::StatusOr<xla::Shape> ReadShape(PJRT_Buffer_Type type, const int64_t* dims, size_t rank,
                                            const PJRT_Buffer_MemoryLayout* layout) {
  if (type <= 0 || type >= kTypeCount || kTypes[type] == xla::TOKEN) {
    return absl::InvalidArgumentError(absl::StrCat("unknown element type ", static_cast<int>(type)));
  }
  if (rank > 0 && dims == nullptr) return absl::InvalidArgumentError("dims is null");
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return absl::InvalidArgumentError(absl::StrCat("dimension ", i, " is ", dims[i]));
  }
  absl::StatusOr<xla::Shape> shape = xla::ShapeUtil::MakeValidatedShape(kTypes[type], absl::MakeSpan(dims, rank));
  if (!shape.ok()) return shape.status();
  absl::StatusOr<std::optional<xla::Layout>> read = ReadLayout(layout, rank);
  if (!read.ok()) return read.status();
  *shape->mutable_layout() = read->has_value() ? **read : xla::LayoutUtil::GetDefaultLayoutForShape(*shape);
  return shape;
}

// The memory that args name, directly or as the default of a device; of this client and no other.
inline absl::StatusOr<xla::PjRtMemorySpace*> ReadPlace(PJRT_Client* client, PJRT_Device* device, PJRT_Memory* memory) {
  if (memory != nullptr) {
    if (memory->client != client) return absl::InvalidArgumentError("the memory belongs to another client");
    return memory->memory_space;
  }
  if (device == nullptr) return absl::InvalidArgumentError("neither a device nor a memory is named");
  if (device->client != client) return absl::InvalidArgumentError("the device belongs to another client");
  return device->device->default_memory_space();
}

inline absl::StatusOr<xla::PjRtClient::HostBufferSemantics> ReadSemantics(PJRT_HostBufferSemantics semantics) {
  using Semantics = xla::PjRtClient::HostBufferSemantics;
  switch (semantics) {
    case PJRT_HostBufferSemantics_kImmutableOnlyDuringCall:
      return Semantics::kImmutableOnlyDuringCall;
    case PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes:
      return Semantics::kImmutableUntilTransferCompletes;
    case PJRT_HostBufferSemantics_kImmutableZeroCopy:
      return Semantics::kImmutableZeroCopy;
    case PJRT_HostBufferSemantics_kMutableZeroCopy:
      return Semantics::kMutableZeroCopy;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown host buffer semantics ", static_cast<int>(semantics)));
}

// Refuses a buffer that is gone, with one message for every call.
#define XT_NEED_LIVE(field)                                                           \
  XT_NEED(field);                                                                     \
  if (args->field->buffer->IsDeleted()) {                                             \
    return Invalid(__func__, ": the buffer has been deleted or donated");             \
  }

// --- making buffers --------------------------------------------------------------------------------------------------

XT_CALL(PJRT_Client_BufferFromHostBuffer) {
  XT_FIND_CLIENT(state);
  PJRT_ASSIGN_OR_RETURN(xla::Shape shape, ReadShape(args->type, args->dims, args->num_dims, args->device_layout));
  PJRT_ASSIGN_OR_RETURN(xla::PjRtMemorySpace * place, ReadPlace(args->client, args->device, args->memory));
  PJRT_ASSIGN_OR_RETURN(auto semantics, ReadSemantics(args->host_buffer_semantics));
  if (args->data == nullptr && xla::ShapeUtil::ElementsIn(shape) > 0) return Invalid("data is null");
  std::optional<absl::Span<const int64_t>> strides;
  if (args->num_byte_strides > 0 || args->byte_strides != nullptr) {
    if (args->num_byte_strides != args->num_dims) {
      return Invalid(args->num_byte_strides, " byte_strides for ", args->num_dims, " dimensions");
    }
    strides = absl::MakeSpan(args->byte_strides, args->num_byte_strides);
  }
  const Pool::Storing storing;
  // The event fires when the caller may change or free its memory.
  auto [promise, future] = xla::MakePromise<>();
  PJRT_ASSIGN_OR_RETURN(
      std::unique_ptr<xla::PjRtBuffer> buffer,
      state->client->client->BufferFromHostBuffer(
          args->data, shape.element_type(), shape.dimensions(), strides, semantics,
          [promise = std::move(promise)]() mutable { promise.Set(); }, place,
          args->device_layout == nullptr ? nullptr : &shape.layout()));
  args->done_with_host_buffer = WrapFuture(std::move(future));
  args->buffer = WrapBuffer(std::move(buffer), std::move(state));
  return nullptr;
}

XT_CALL(PJRT_Client_CreateUninitializedBuffer) {
  XT_FIND_CLIENT(state);
  PJRT_ASSIGN_OR_RETURN(xla::Shape shape, ReadShape(args->shape_element_type, args->shape_dims, args->shape_num_dims,
                                                    args->shape_layout));
  PJRT_ASSIGN_OR_RETURN(xla::PjRtMemorySpace * place, ReadPlace(args->client, args->device, args->memory));
  const Pool::Storing storing;
  PJRT_ASSIGN_OR_RETURN(auto buffer, state->client->client->CreateUninitializedBuffer(shape, place));
  args->buffer = WrapBuffer(std::move(buffer), std::move(state));
  return nullptr;
}

XT_CALL(PJRT_Client_CreateErrorBuffer) {
  XT_FIND_CLIENT(state);
  PJRT_ASSIGN_OR_RETURN(xla::Shape shape, ReadShape(args->shape_element_type, args->shape_dims, args->shape_num_dims,
                                                    args->shape_layout));
  PJRT_ASSIGN_OR_RETURN(xla::PjRtMemorySpace * place, ReadPlace(args->client, nullptr, args->memory));
  absl::Status status(static_cast<absl::StatusCode>(args->error_code),
                      absl::string_view(args->error_message, args->error_message_size));
  if (status.ok()) return Invalid("an error buffer needs an error code");
  PJRT_ASSIGN_OR_RETURN(auto buffer, state->client->client->CreateErrorBuffer(std::move(status), shape, place));
  args->buffer = WrapBuffer(std::move(buffer), std::move(state));
  return nullptr;
}

XT_CALL(PJRT_Client_CreateViewOfDeviceBuffer) {
  XT_FIND_CLIENT(state);
  PJRT_ASSIGN_OR_RETURN(xla::Shape shape, ReadShape(args->element_type, args->dims, args->num_dims, args->layout));
  PJRT_ASSIGN_OR_RETURN(xla::PjRtMemorySpace * place, ReadPlace(args->client, args->device, args->memory));
  if (args->device_buffer_ptr == nullptr && xla::ShapeUtil::ElementsIn(shape) > 0) return Invalid("device_buffer_ptr is null");
  std::function<void()> on_delete;
  if (args->on_delete_callback != nullptr) {
    on_delete = [callback = args->on_delete_callback, data = args->device_buffer_ptr,
                 argument = args->on_delete_callback_arg] { callback(data, argument); };
  }
  PJRT_ASSIGN_OR_RETURN(auto buffer, state->client->client->CreateViewOfDeviceBuffer(args->device_buffer_ptr, shape, place,
                                                                                     std::move(on_delete)));
  args->buffer = WrapBuffer(std::move(buffer), std::move(state));
  return nullptr;
}

XT_CALL(PJRT_Buffer_Destroy) {
  if (args->buffer == nullptr) return nullptr;
  auto* buffer = static_cast<Buffer*>(args->buffer);
  std::shared_ptr<ClientState> keep = std::move(buffer->keep);  // the client must outlive what the line below frees
  delete buffer;
  return nullptr;
}

XT_GETTER(PJRT_Buffer_Delete, buffer, args->buffer->buffer->Delete())
XT_GETTER(PJRT_Buffer_IsDeleted, buffer, args->is_deleted = args->buffer->buffer->IsDeleted())

// --- what a buffer is ------------------------------------------------------------------------------------------------

XT_GETTER(PJRT_Buffer_ElementType, buffer, args->type = ToCType(args->buffer->buffer->element_type()))
XT_GETTER(PJRT_Buffer_Dimensions, buffer, {
  args->dims = args->buffer->buffer->dimensions().data();
  args->num_dims = args->buffer->buffer->dimensions().size();
})

XT_CALL(PJRT_Buffer_UnpaddedDimensions) {
  XT_NEED(buffer);
  absl::MutexLock lock(&args->buffer->mu);
  std::optional<std::vector<int64_t>>& cached = args->buffer->unpadded_dims;
  if (!cached) {
    PJRT_ASSIGN_OR_RETURN(cached, args->buffer->buffer->logical_dimensions());
  }
  args->unpadded_dims = cached->data();
  args->num_dims = cached->size();
  return nullptr;
}

XT_CALL(PJRT_Buffer_DynamicDimensionIndices) {
  XT_NEED(buffer);
  absl::MutexLock lock(&args->buffer->mu);
  std::optional<std::vector<size_t>>& cached = args->buffer->dynamic_dim_indices;
  if (!cached) {
    cached.emplace();
    absl::Span<const bool> dynamic = args->buffer->buffer->is_dynamic_dimension();
    for (size_t i = 0; i < dynamic.size(); ++i) {
      if (dynamic[i]) cached->push_back(i);
    }
  }
  args->dynamic_dim_indices = cached->data();
  args->num_dynamic_dims = cached->size();
  return nullptr;
}

XT_CALL(PJRT_Buffer_GetMemoryLayout) {
  XT_NEED(buffer);
  absl::MutexLock lock(&args->buffer->mu);
  auto& cached = args->buffer->layout_data;
  if (!cached) {
    PJRT_ASSIGN_OR_RETURN(cached, pjrt::ConvertToBufferMemoryLayoutData(args->buffer->buffer->layout()->xla_layout()));
  }
  args->layout = cached->c_layout;
  return nullptr;
}

XT_CALL(PJRT_Buffer_OnDeviceSizeInBytes) {
  XT_NEED(buffer);
  PJRT_ASSIGN_OR_RETURN(args->on_device_size_in_bytes, args->buffer->buffer->GetOnDeviceSizeInBytes());
  return nullptr;
}

XT_GETTER(PJRT_Buffer_Device, buffer,
          args->device = args->buffer->client->c_device_from_cpp_device.at(args->buffer->buffer->device()))
XT_GETTER(PJRT_Buffer_Memory, buffer,
          args->memory = pjrt::PJRT_Client_FindMemoryWrapper(args->buffer->buffer->memory_space(), args->buffer->client))
XT_GETTER(PJRT_Buffer_IsOnCpu, buffer, args->is_on_cpu = args->buffer->buffer->IsOnCpu())

// --- copies ----------------------------------------------------------------------------------------------------------

XT_CALL(PJRT_Buffer_ToHostBuffer) {
  XT_NEED_LIVE(src);
  xla::PjRtBuffer* buffer = args->src->buffer.get();
  const xla::Shape& device_shape = buffer->on_device_shape();
  if (!device_shape.IsArray()) return Invalid("only array buffers can be copied to the host");
  PJRT_ASSIGN_OR_RETURN(auto layout, ReadLayout(args->host_layout, device_shape.dimensions().size()));
  PJRT_ASSIGN_OR_RETURN(std::vector<int64_t> dims, buffer->logical_dimensions());
  xla::Shape shape = xla::ShapeUtil::MakeShape(device_shape.element_type(), dims);
  *shape.mutable_layout() = layout ? *layout : xla::LayoutUtil::MakeDescendingLayout(dims.size());
  const size_t size = xla::ShapeUtil::ByteSizeOf(shape);
  if (args->dst == nullptr) {  // a question for the size
    args->dst_size = size;
    return nullptr;
  }
  if (args->dst_size < size) return Invalid("dst_size is ", args->dst_size, ", expected at least ", size);
  auto literal = std::make_shared<xla::MutableBorrowingLiteral>(static_cast<const char*>(args->dst), shape);
  xla::Future<> done = buffer->ToLiteral(literal.get());
  done.OnReady([literal](const absl::Status&) {});  // the literal lives until the copy is done
  args->event = WrapFuture(std::move(done));
  return nullptr;
}

XT_CALL(PJRT_Buffer_CopyRawToHost) {
  XT_NEED_LIVE(buffer);
  PJRT_ASSIGN_OR_RETURN(const size_t size, args->buffer->buffer->GetOnDeviceSizeInBytes());
  if (args->offset < 0 || args->transfer_size < 0 || static_cast<size_t>(args->offset) > size ||
      static_cast<size_t>(args->transfer_size) > size - static_cast<size_t>(args->offset)) {
    return Invalid("bytes ", args->offset, " to ", args->offset, " + ", args->transfer_size, " of a buffer of ", size);
  }
  if (args->transfer_size > 0) XT_NEED(dst);
  args->event = WrapFuture(args->buffer->buffer->CopyRawToHost(args->dst, args->offset, args->transfer_size));
  return nullptr;
}

inline PJRT_Error* CopyTo(PJRT_Buffer* from, xla::PjRtMemorySpace* place, PJRT_Buffer** out) {
  const Pool::Storing storing;
  PJRT_ASSIGN_OR_RETURN(auto copy, from->buffer->CopyToMemorySpace(place));
  *out = WrapBuffer(std::move(copy), static_cast<Buffer*>(from)->keep);
  return nullptr;
}

XT_CALL(PJRT_Buffer_CopyToDevice) {
  XT_NEED_LIVE(buffer);
  XT_NEED(dst_device);
  PJRT_ASSIGN_OR_RETURN(auto place, ReadPlace(args->buffer->client, args->dst_device, nullptr));
  return CopyTo(args->buffer, place, &args->dst_buffer);
}

XT_CALL(PJRT_Buffer_CopyToMemory) {
  XT_NEED_LIVE(buffer);
  XT_NEED(dst_memory);
  PJRT_ASSIGN_OR_RETURN(auto place, ReadPlace(args->buffer->client, nullptr, args->dst_memory));
  return CopyTo(args->buffer, place, &args->dst_buffer);
}

XT_CALL(PJRT_Buffer_ReadyEvent) {
  XT_NEED_LIVE(buffer);
  args->event = WrapFuture(args->buffer->buffer->GetReadyFuture());
  return nullptr;
}

// --- addresses -------------------------------------------------------------------------------------------------------

XT_CALL(PJRT_Buffer_UnsafePointer) {
  XT_NEED_LIVE(buffer);
  PJRT_ASSIGN_OR_RETURN(args->buffer_pointer, args->buffer->client->client->UnsafeBufferPointer(args->buffer->buffer.get()));
  return nullptr;
}

XT_CALL(PJRT_Buffer_IncreaseExternalReferenceCount) {
  XT_NEED_LIVE(buffer);
  PJRT_ASSIGN_OR_RETURN(auto reference, args->buffer->buffer->AcquireExternalReference());
  absl::MutexLock lock(&args->buffer->mu);
  args->buffer->external_references.push_back(std::move(reference));
  return nullptr;
}

XT_CALL(PJRT_Buffer_DecreaseExternalReferenceCount) {
  XT_NEED(buffer);
  absl::MutexLock lock(&args->buffer->mu);
  if (args->buffer->external_references.empty()) return Invalid("the buffer has no external reference");
  args->buffer->external_references.pop_back();
  return nullptr;
}

XT_CALL(PJRT_Buffer_OpaqueDeviceMemoryDataPointer) {
  XT_NEED(buffer);
  absl::MutexLock lock(&args->buffer->mu);
  if (!args->buffer->external_references.empty()) {
    args->device_memory_ptr = args->buffer->external_references.back()->OpaqueDeviceMemoryDataPointer();
    return nullptr;
  }
  PJRT_ASSIGN_OR_RETURN(auto reference, args->buffer->buffer->AcquireExternalReference());
  args->device_memory_ptr = reference->OpaqueDeviceMemoryDataPointer();
  return nullptr;
}

}  // namespace xtrain

#endif  // XTRAIN_CPP_BUFFER_H_
