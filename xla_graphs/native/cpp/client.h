// Clients, devices, memories, topologies and events: the calls that create a client with options and describe what it has.

#ifndef XTRAIN_CPP_CLIENT_H_
#define XTRAIN_CPP_CLIENT_H_

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "processes.h"
#include "xla/pjrt/plugin/xla_cpu/xla_cpu_pjrt_client.h"

namespace xtrain {

// --- the plugin itself -----------------------------------------------------------------------------------------------

XT_CALL(PJRT_Plugin_Initialize) { return nullptr; }

XT_CALL(PJRT_Plugin_Attributes) {
  // Clients downgrade their StableHLO to the version named here, which is a little older than what the library reads.
  static const int64_t current[] = {1, 13, 0}, minimum[] = {0, 9, 0};
  static const PJRT_NamedValue* attributes = [] {
    auto* list = new PJRT_NamedValue[3]();
    list[0] = NamedValue("xla_version", int64_t{2});
    for (int i = 1; i < 3; ++i) {
      list[i] = NamedValue(i == 1 ? "stablehlo_current_version" : "stablehlo_minimum_version", std::vector<int64_t>{});
      list[i].int64_array_value = i == 1 ? current : minimum;
      list[i].value_size = 3;
    }
    return list;
  }();
  args->attributes = attributes;
  args->num_attributes = 3;
  return nullptr;
}

// --- create options --------------------------------------------------------------------------------------------------

struct CreateOptions {
  std::optional<int64_t> cpu_device_count;
  int64_t pool_limit_bytes = std::numeric_limits<int64_t>::max();
  bool asynchronous = true;
  std::optional<int64_t> max_inflight_computations;
  ProcessOptions processes;
};

inline absl::Status WrongType(absl::string_view name, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat("create option ", name, " must be ", wanted));
}

inline absl::Status ReadOption(const PJRT_NamedValue& option, CreateOptions& into) {
  const absl::string_view name(option.name, option.name_size);
  const bool is_int = option.type == PJRT_NamedValue_kInt64;
  if (name == "cpu_device_count") {
    if (!is_int || option.int64_value < 1 || option.int64_value > 1024) return WrongType(name, "an int64 from 1 to 1024");
    into.cpu_device_count = option.int64_value;
  } else if (name == "pool_limit_bytes") {
    if (!is_int || option.int64_value < 0) return WrongType(name, "an int64 of 0 or more");
    into.pool_limit_bytes = option.int64_value;
  } else if (name == "asynchronous") {
    if (option.type != PJRT_NamedValue_kBool) return WrongType(name, "a bool");
    into.asynchronous = option.bool_value;
  } else if (name == "max_inflight_computations") {
    if (!is_int || option.int64_value < 1 || option.int64_value > 1024) return WrongType(name, "an int64 from 1 to 1024");
    into.max_inflight_computations = option.int64_value;
  } else if (name == "process_id" || name == "node_id") {
    if (!is_int || option.int64_value < 0 || option.int64_value > 65535) return WrongType(name, "an int64 from 0 to 65535");
    into.processes.process_id = static_cast<int>(option.int64_value);
  } else if (name == "num_processes" || name == "num_nodes") {
    if (!is_int || option.int64_value < 1 || option.int64_value > 65536) return WrongType(name, "an int64 from 1 to 65536");
    into.processes.num_processes = static_cast<int>(option.int64_value);
  } else if (name == "collectives_host") {
    if (option.type != PJRT_NamedValue_kString || option.value_size == 0) return WrongType(name, "an address");
    into.processes.host = std::string(option.string_value, option.value_size);
  } else if (name == "connect_timeout_seconds" || name == "collective_timeout_seconds") {
    if (!is_int || option.int64_value < 1 || option.int64_value > 1000000) return WrongType(name, "an int64 from 1 to 1000000");
    (name == "connect_timeout_seconds" ? into.processes.connect_timeout_seconds
                                       : into.processes.collective_timeout_seconds) = option.int64_value;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected create option '", name,
                     "'; the xtrain CPU plugin knows cpu_device_count, pool_limit_bytes, asynchronous, "
                     "max_inflight_computations, process_id (or node_id), num_processes (or num_nodes), collectives_host, connect_timeout_seconds and "
                     "collective_timeout_seconds"));
  }
  return absl::OkStatus();
}

XT_CALL(PJRT_Client_Create) {
  CreateOptions options;
  if (args->num_options > 0) XT_NEED(create_options);
  for (size_t i = 0; i < args->num_options; ++i) {
    PJRT_RETURN_IF_ERROR(ReadOption(args->create_options[i], options));
  }
  auto state = std::make_shared<ClientState>();
  state->pool = std::make_shared<Pool>(options.pool_limit_bytes);
  xla::CpuClientOptions cpu;
  if (options.cpu_device_count) cpu.cpu_device_count = static_cast<int>(*options.cpu_device_count);
  if (options.max_inflight_computations) {
    cpu.max_inflight_computations_per_device = static_cast<int>(*options.max_inflight_computations);
  }
  cpu.asynchronous = options.asynchronous;
  cpu.allocator = [pool = state->pool](size_t size, size_t alignment) { return pool->Allocate(size, alignment); };
  const ProcessOptions& processes = options.processes;
  if (processes.process_id >= processes.num_processes) {
    return Invalid("process_id is ", processes.process_id, " of num_processes ", processes.num_processes);
  }
  if (processes.num_processes > 1) {
    const int local = static_cast<int>(options.cpu_device_count.value_or(1));
    PJRT_ASSIGN_OR_RETURN(cpu.collectives, CollectivesOf(processes, *args));
    auto topology = TopologyOf(processes, local);
    cpu.topology = topology.get();
    cpu.process_id = processes.process_id;
    cpu.cpu_device_count = local * processes.num_processes;
    state->topology = std::move(topology);
  }
  PJRT_ASSIGN_OR_RETURN(std::unique_ptr<xla::PjRtClient> client, xla::GetXlaPjrtCpuClient(std::move(cpu)));
  state->client = pjrt::CreateWrapperClient(std::move(client));
  args->client = state->client;
  Clients::Get().Add(std::move(state));
  return nullptr;
}

// The client goes when the last of its buffers and executables does.
XT_CALL(PJRT_Client_Destroy) {
  if (Clients::Get().Remove(args->client) == nullptr) {
    return Invalid("PJRT_Client_Destroy: args->client is no client of this plugin, or was destroyed before");
  }
  return nullptr;
}

// --- what a client has -----------------------------------------------------------------------------------------------

XT_GETTER(PJRT_Client_PlatformName, client, {
  const absl::string_view name = args->client->client->platform_name();
  args->platform_name = name.data();
  args->platform_name_size = name.size();
})
XT_GETTER(PJRT_Client_PlatformVersion, client, {
  const absl::string_view version = args->client->client->platform_version();
  args->platform_version = version.data();
  args->platform_version_size = version.size();
})
XT_GETTER(PJRT_Client_ProcessIndex, client, args->process_index = args->client->client->process_index())
XT_GETTER(PJRT_Client_Devices, client, {
  args->devices = args->client->devices.data();
  args->num_devices = args->client->devices.size();
})
XT_GETTER(PJRT_Client_AddressableDevices, client, {
  args->addressable_devices = args->client->addressable_devices.data();
  args->num_addressable_devices = args->client->addressable_devices.size();
})
XT_GETTER(PJRT_Client_AddressableMemories, client, {
  args->addressable_memories = args->client->addressable_memories.data();
  args->num_addressable_memories = args->client->addressable_memories.size();
})

XT_CALL(PJRT_Client_LookupDevice) {
  XT_NEED(client);
  PJRT_ASSIGN_OR_RETURN(xla::PjRtDevice * device, args->client->client->LookupDevice(xla::PjRtGlobalDeviceId(args->id)));
  args->device = args->client->c_device_from_cpp_device.at(device);
  return nullptr;
}

XT_CALL(PJRT_Client_LookupAddressableDevice) {
  XT_NEED(client);
  PJRT_ASSIGN_OR_RETURN(
      xla::PjRtDevice * device,
      args->client->client->LookupAddressableDevice(xla::PjRtLocalDeviceId(args->local_hardware_id)));
  args->addressable_device = args->client->c_device_from_cpp_device.at(device);
  return nullptr;
}

XT_CALL(PJRT_Client_DefaultDeviceAssignment) {
  XT_NEED(client);
  XT_NEED(default_assignment);
  const int replicas = args->num_replicas, partitions = args->num_partitions;
  if (replicas < 1 || partitions < 1) return Invalid("replicas and partitions must be at least 1");
  if (args->default_assignment_size < static_cast<size_t>(replicas) * partitions) {
    return Invalid("default_assignment_size is ", args->default_assignment_size, ", expected at least ",
                   static_cast<size_t>(replicas) * partitions);
  }
  PJRT_ASSIGN_OR_RETURN(xla::DeviceAssignment assignment,
                        args->client->client->GetDefaultDeviceAssignment(replicas, partitions));
  int* out = args->default_assignment;
  for (int replica = 0; replica < replicas; ++replica) {
    for (int partition = 0; partition < partitions; ++partition) *out++ = assignment(replica, partition);
  }
  return nullptr;
}

XT_CALL(PJRT_Client_TopologyDescription) {
  XT_NEED(client);
  PJRT_RETURN_IF_ERROR(args->client->topology.status());
  args->topology = args->client->topology->get();
  return nullptr;
}

// --- devices ---------------------------------------------------------------------------------------------------------

XT_GETTER(PJRT_DeviceDescription_Id, device_description, args->id = args->device_description->device_description->id())
XT_GETTER(PJRT_DeviceDescription_ProcessIndex, device_description,
          args->process_index = args->device_description->device_description->process_index())
XT_GETTER(PJRT_DeviceDescription_Attributes, device_description, {
  args->attributes = args->device_description->attributes.data();
  args->num_attributes = args->device_description->attributes.size();
})
XT_GETTER(PJRT_DeviceDescription_Kind, device_description, {
  const absl::string_view kind = args->device_description->device_description->device_kind();
  args->device_kind = kind.data();
  args->device_kind_size = kind.size();
})
XT_GETTER(PJRT_DeviceDescription_DebugString, device_description, {
  const absl::string_view text = args->device_description->device_description->DebugString();
  args->debug_string = text.data();
  args->debug_string_size = text.size();
})
XT_GETTER(PJRT_DeviceDescription_ToString, device_description, {
  const absl::string_view text = args->device_description->device_description->ToString();
  args->to_string = text.data();
  args->to_string_size = text.size();
})

XT_GETTER(PJRT_Device_GetDescription, device, args->device_description = &args->device->description)
XT_GETTER(PJRT_Device_IsAddressable, device, args->is_addressable = args->device->device->IsAddressable())
XT_GETTER(PJRT_Device_LocalHardwareId, device,
          args->local_hardware_id = args->device->device->local_hardware_id().value())
XT_GETTER(PJRT_Device_AddressableMemories, device, {
  args->memories = args->device->addressable_memories.data();
  args->num_memories = args->device->addressable_memories.size();
})

XT_CALL(PJRT_Device_DefaultMemory) {
  XT_NEED(device);
  PJRT_ASSIGN_OR_RETURN(xla::PjRtMemorySpace * memory, args->device->device->default_memory_space());
  args->memory = pjrt::PJRT_Client_FindMemoryWrapper(memory, args->device->client);
  return nullptr;
}

// All devices of a client draw on one pool: each reports the totals of the client, not a share of its own.
XT_CALL(PJRT_Device_MemoryStats) {
  XT_NEED(device);
  std::shared_ptr<ClientState> state = Clients::Get().Find(args->device->client);
  if (state == nullptr) return Invalid("PJRT_Device_MemoryStats: the client was destroyed");
  const Pool::Stats stats = state->pool->stats();
  args->bytes_in_use = stats.in_use;
  args->peak_bytes_in_use = stats.peak_in_use;
  args->peak_bytes_in_use_is_set = true;
  args->num_allocs = stats.allocations;
  args->num_allocs_is_set = true;
  args->largest_alloc_size = stats.largest;
  args->largest_alloc_size_is_set = true;
  args->bytes_limit_is_set = false;
  args->bytes_reserved_is_set = false;
  args->peak_bytes_reserved_is_set = false;
  args->bytes_reservable_limit_is_set = false;
  args->largest_free_block_bytes_is_set = false;
  args->pool_bytes = stats.in_use + stats.idle;
  args->pool_bytes_is_set = true;
  args->peak_pool_bytes = stats.peak_held;
  args->peak_pool_bytes_is_set = true;
  return nullptr;
}

// --- memories --------------------------------------------------------------------------------------------------------

XT_GETTER(PJRT_Memory_Id, memory, args->id = args->memory->memory_space->id())
XT_GETTER(PJRT_Memory_Kind, memory, {
  const absl::string_view kind = args->memory->memory_space->kind();
  args->kind = kind.data();
  args->kind_size = kind.size();
})
XT_GETTER(PJRT_Memory_Kind_Id, memory, args->kind_id = args->memory->memory_space->kind_id())
XT_GETTER(PJRT_Memory_DebugString, memory, {
  const absl::string_view text = args->memory->memory_space->DebugString();
  args->debug_string = text.data();
  args->debug_string_size = text.size();
})
XT_GETTER(PJRT_Memory_ToString, memory, {
  const absl::string_view text = args->memory->memory_space->ToString();
  args->to_string = text.data();
  args->to_string_size = text.size();
})
XT_GETTER(PJRT_Memory_AddressableByDevices, memory, {
  args->devices = args->memory->devices.data();
  args->num_devices = args->memory->devices.size();
})

// --- topologies ------------------------------------------------------------------------------------------------------

XT_CALL(PJRT_TopologyDescription_Destroy) {
  // One that belongs to a client goes with the client.
  if (args->topology != nullptr && args->topology->owned_topology != nullptr) delete args->topology;
  return nullptr;
}
XT_GETTER(PJRT_TopologyDescription_PlatformName, topology, {
  const absl::string_view name = args->topology->topology->platform_name();
  args->platform_name = name.data();
  args->platform_name_size = name.size();
})
XT_GETTER(PJRT_TopologyDescription_PlatformVersion, topology, {
  const absl::string_view version = args->topology->topology->platform_version();
  args->platform_version = version.data();
  args->platform_version_size = version.size();
})
XT_GETTER(PJRT_TopologyDescription_GetDeviceDescriptions, topology, {
  args->descriptions = args->topology->description_pointers.data();
  args->num_descriptions = args->topology->description_pointers.size();
})
XT_GETTER(PJRT_TopologyDescription_Attributes, topology, {
  args->attributes = args->topology->attributes.data();
  args->num_attributes = args->topology->attributes.size();
})
XT_CALL(PJRT_TopologyDescription_Serialize) {
  XT_NEED(topology);
  PJRT_ASSIGN_OR_RETURN(std::string bytes, args->topology->topology->Serialize());
  auto* serialized = new PJRT_SerializedTopology{std::move(bytes)};
  args->serialized_topology = serialized;
  args->serialized_bytes = serialized->serialized.data();
  args->serialized_bytes_size = serialized->serialized.size();
  args->serialized_topology_deleter = [](PJRT_SerializedTopology* topology) { delete topology; };
  return nullptr;
}

// --- events ----------------------------------------------------------------------------------------------------------

XT_CALL(PJRT_Event_Destroy) {
  delete args->event;  // before it fires is fine: the future is shared with who will set it
  return nullptr;
}

// A caller's own event that is not set stays unset when waited for; a destroyed promise sets an error.
XT_GETTER(PJRT_Event_IsReady, event, args->is_ready = args->event->future.IsReady())

XT_CALL(PJRT_Event_Error) {
  XT_NEED(event);
  if (!args->event->future.IsReady()) return Invalid("PJRT_Event_Error: the event is not ready; await it first");
  PJRT_RETURN_IF_ERROR(args->event->future.Await());
  return nullptr;
}

XT_CALL(PJRT_Event_Await) {
  XT_NEED(event);
  PJRT_RETURN_IF_ERROR(args->event->future.Await());
  return nullptr;
}

XT_CALL(PJRT_Event_OnReady) {
  XT_NEED(event);
  XT_NEED(callback);
  args->event->future.OnReady([callback = args->callback, argument = args->user_arg](const absl::Status& status) {
    callback(status.ok() ? nullptr : MakeError(status), argument);  // the callback owns the error
  });
  return nullptr;
}

XT_CALL(PJRT_Event_Create) {
  auto [promise, future] = xla::MakePromise<>();
  args->event = new PJRT_Event{std::move(future), std::move(promise)};
  return nullptr;
}

XT_CALL(PJRT_Event_Set) {
  XT_NEED(event);
  if (!args->event->promise) return Invalid("PJRT_Event_Set: the event was not made by PJRT_Event_Create");
  if (args->event->future.IsReady()) return Invalid("PJRT_Event_Set: the event is set already");
  args->event->promise.Set(absl::Status(static_cast<absl::StatusCode>(args->error_code),
                                        absl::string_view(args->error_message, args->error_message_size)));
  return nullptr;
}

}  // namespace xtrain

#endif  // XTRAIN_CPP_CLIENT_H_
