// Executables: compiling, describing, running, serializing and loading. The library compares the byte sizes of arguments
// only, so types, dims and layouts are checked here against the compiled signature; the library's serialized form is not
// checked at all, so it travels in an envelope with a checksum and the machine that it was compiled for.

#ifndef XTRAIN_CPP_EXECUTABLE_H_
#define XTRAIN_CPP_EXECUTABLE_H_

#include <atomic>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/globals.h"
#include "buffer.h"
#include "common.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/pjrt/pjrt_executable.h"
#include "xla/pjrt/proto/compile_options.pb.h"
#include "xla/service/hlo.pb.h"

namespace xla {
// Exported by the library. Its header needs MLIR's, which nobody ships.
absl::Status ParseMlirModuleStringAndConvertToXlaComputation(absl::string_view mlir, XlaComputation& computation,
                                                             bool use_tuple_args, bool return_tuple);
}  // namespace xla

namespace xtrain {

struct Loaded : PJRT_LoadedExecutable {
  Loaded(std::shared_ptr<xla::PjRtLoadedExecutable> executable, std::shared_ptr<ClientState> state)
      : PJRT_LoadedExecutable(std::move(executable), state->client), keep(std::move(state)) {}

  std::shared_ptr<ClientState> keep;
  std::vector<xla::Shape> parameters;  // what each argument must be
  std::vector<xla::Shape> results;
  std::atomic<bool> deleted = false;  // the library's own Delete does nothing on this platform
};

struct Executable : PJRT_Executable {
  explicit Executable(const Loaded& from)
      : PJRT_Executable(from.executable->GetExecutable()), keep(from.keep), loaded(from.executable), results(from.results) {}

  // In this order: the client goes last.
  std::shared_ptr<ClientState> keep;
  std::shared_ptr<xla::PjRtLoadedExecutable> loaded;
  std::vector<xla::Shape> results;
  std::string optimized;  // serialized on the first question, under `mutex`
};

inline Executable* Full(PJRT_Executable* executable) { return static_cast<Executable*>(executable); }

// One shape per buffer: a tuple stands for its elements.
inline std::vector<xla::Shape> Flatten(const xla::Shape& shape) {
  if (!shape.IsTuple()) return {shape};
  return std::vector<xla::Shape>(shape.tuple_shapes().begin(), shape.tuple_shapes().end());
}

inline absl::StatusOr<PJRT_LoadedExecutable*> WrapLoaded(std::unique_ptr<xla::PjRtLoadedExecutable> executable,
                                                         std::shared_ptr<ClientState> state) {
  auto loaded = std::make_unique<Loaded>(std::move(executable), std::move(state));
  auto modules = loaded->executable->GetHloModules();
  if (!modules.ok()) return modules.status();
  if (modules->size() != 1) return absl::InternalError(absl::StrCat("an executable of ", modules->size(), " modules"));
  const xla::ComputationLayout& entry = (*modules)[0]->entry_computation_layout();
  for (int i = 0; i < entry.parameter_count(); ++i) {
    for (xla::Shape& shape : Flatten(entry.parameter_shape(i))) loaded->parameters.push_back(std::move(shape));
  }
  loaded->results = Flatten(entry.result_shape());
  return loaded.release();
}

// --- compiling -------------------------------------------------------------------------------------------------------

inline absl::StatusOr<xla::CompileOptions> ReadCompileOptions(const char* bytes, size_t size) {
  xla::CompileOptionsProto proto;
  if (size > 0 && !proto.ParseFromArray(bytes, static_cast<int>(size))) {
    return absl::InvalidArgumentError("compile_options is no CompileOptionsProto");
  }
  auto* build = proto.mutable_executable_build_options();
  // Left out means one; the library would divide by zero.
  if (build->num_replicas() == 0) build->set_num_replicas(1);
  if (build->num_partitions() == 0) build->set_num_partitions(1);
  if (build->num_replicas() < 0 || build->num_partitions() < 0) {
    return absl::InvalidArgumentError("num_replicas and num_partitions must be at least 1");
  }
  absl::StatusOr<xla::CompileOptions> options = xla::CompileOptions::FromProto(proto);
  if (!options.ok()) return options;
  // It makes one of all all-reduces that have one operand, whatever their size: gradients that are larger than a bucket would all be there
  // twice, before and after their sum.
  options->executable_build_options.mutable_debug_options()->add_xla_disable_hlo_passes("cpu-all-reduce-combiner");
  return options;
}

inline absl::StatusOr<xla::XlaComputation> ReadProgram(const PJRT_Program& program, const xla::CompileOptions& options) {
  const absl::string_view format(program.format, program.format_size), code(program.code, program.code_size);
  if (code.size() > std::numeric_limits<int>::max()) return absl::InvalidArgumentError("the program is over 2 GB");
  if (format == "mlir") {
    xla::XlaComputation computation;
    absl::Status status = xla::ParseMlirModuleStringAndConvertToXlaComputation(
        code, computation, options.parameter_is_tupled_arguments, /*return_tuple=*/false);
    if (!status.ok()) return status;
    return computation;
  }
  xla::HloModuleProto module;
  bool parsed = false;
  if (format == "hlo") {
    parsed = module.ParseFromArray(code.data(), static_cast<int>(code.size()));
  } else if (format == "hlo_with_config") {
    xla::HloModuleProtoWithConfig with_config;
    parsed = with_config.ParseFromArray(code.data(), static_cast<int>(code.size()));
    module = std::move(*with_config.mutable_hlo_module());
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown program format '", format, "'; known are hlo, hlo_with_config and mlir"));
  }
  if (!parsed) return absl::InvalidArgumentError("the program is no HloModuleProto");
  if (module.computations().empty() || !module.has_host_program_shape()) {
    return absl::InvalidArgumentError("the HloModuleProto has no computation or no program shape");
  }
  return xla::XlaComputation(std::move(module));
}

XT_CALL(PJRT_Client_Compile) {
  XT_FIND_CLIENT(state);
  XT_NEED(program);
  if (PJRT_Error* error = CheckSize("PJRT_Program", args->program, PJRT_Program_STRUCT_SIZE)) return error;
  if (args->program->code == nullptr || args->program->format == nullptr) return Invalid("the program is null");
  if (args->compile_options_size > 0) XT_NEED(compile_options);
  PJRT_ASSIGN_OR_RETURN(xla::CompileOptions options, ReadCompileOptions(args->compile_options, args->compile_options_size));
  PJRT_ASSIGN_OR_RETURN(xla::XlaComputation computation, ReadProgram(*args->program, options));
  PJRT_ASSIGN_OR_RETURN(auto executable, state->client->client->CompileAndLoad(computation, std::move(options)));
  PJRT_ASSIGN_OR_RETURN(args->executable, WrapLoaded(std::move(executable), std::move(state)));
  return nullptr;
}

// --- running ---------------------------------------------------------------------------------------------------------

inline bool Matches(const xla::Shape& want, const xla::Shape& have) {
  if (!want.IsArray()) return have.element_type() == want.element_type();  // a token
  return have.element_type() == want.element_type() && have.dimensions() == want.dimensions() &&
         (want.dimensions().size() < 2 || !want.has_layout() || !have.has_layout() ||
          want.layout().minor_to_major() == have.layout().minor_to_major());
}

inline absl::Status CheckArgument(const Loaded& loaded, size_t index, const PJRT_Buffer* argument) {
  if (argument == nullptr) return absl::InvalidArgumentError(absl::StrCat("argument ", index, " is null"));
  if (argument->client != loaded.client) {
    return absl::InvalidArgumentError(absl::StrCat("argument ", index, " belongs to another client"));
  }
  if (argument->buffer->IsDeleted()) {
    return absl::InvalidArgumentError(absl::StrCat("argument ", index, ": the buffer has been deleted or donated"));
  }
  const xla::Shape &want = loaded.parameters[index], &have = argument->buffer->on_device_shape();
  if (Matches(want, have)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("argument ", index, " is ", have.ToString(/*print_layout=*/true),
                                                 ", but the executable was compiled for ",
                                                 want.ToString(/*print_layout=*/true)));
}

inline absl::Status ReadExecuteOptions(const PJRT_ExecuteOptions& from, size_t num_args, xla::ExecuteOptions& into) {
  if (from.num_send_ops > 0 || from.num_recv_ops > 0) {
    return absl::UnimplementedError("send and receive callbacks are not implemented by the xtrain CPU plugin");
  }
  into.launch_id = from.launch_id;
  into.context = from.context == nullptr ? nullptr : from.context->execute_context.get();
  if (from.call_location != nullptr) into.call_location = from.call_location;
  for (size_t i = 0; i < from.num_non_donatable_input_indices; ++i) {
    const int64_t index = from.non_donatable_input_indices[i];
    if (index < 0 || index >= static_cast<int64_t>(num_args)) {
      return absl::InvalidArgumentError(absl::StrCat("non_donatable_input_indices has ", index, " for ", num_args, " arguments"));
    }
    into.non_donatable_input_indices.insert(static_cast<int>(index));
  }
  return absl::OkStatus();
}

XT_CALL(PJRT_LoadedExecutable_Execute) {
  XT_NEED(executable);
  XT_NEED(options);
  if (PJRT_Error* error = CheckSize("PJRT_ExecuteOptions", args->options, PJRT_ExecuteOptions_STRUCT_SIZE)) return error;
  auto& loaded = *static_cast<Loaded*>(args->executable);
  if (loaded.deleted) return Invalid("the executable has been deleted");
  const bool one_device = args->execute_device != nullptr;
  const size_t devices = one_device ? 1 : loaded.addressable_devices.size();
  // The caller's arrays have num_devices entries: with a wrong number they would be overrun.
  if (args->num_devices != devices) {
    return Invalid("num_devices is ", args->num_devices, ", but the executable runs on ", devices);
  }
  if (args->num_args != loaded.parameters.size()) {
    return Invalid(args->num_args, " arguments for an executable of ", loaded.parameters.size(), " parameters");
  }
  XT_NEED(output_lists);
  if (args->num_args > 0) XT_NEED(argument_lists);
  xla::ExecuteOptions options;
  PJRT_RETURN_IF_ERROR(ReadExecuteOptions(*args->options, args->num_args, options));

  // Every argument of every device is checked before any device starts: one that does not start would leave the others
  // waiting in a collective.
  std::vector<std::vector<xla::PjRtBuffer*>> arguments(devices);
  for (size_t d = 0; d < devices; ++d) {
    if (args->output_lists[d] == nullptr && !loaded.results.empty()) return Invalid("output_lists[", d, "] is null");
    arguments[d].reserve(args->num_args);
    for (size_t i = 0; i < args->num_args; ++i) {
      PJRT_RETURN_IF_ERROR(CheckArgument(loaded, i, args->argument_lists[d][i]));
      arguments[d].push_back(args->argument_lists[d][i]->buffer.get());
    }
  }

  std::vector<std::vector<std::unique_ptr<xla::PjRtBuffer>>> results;
  std::optional<std::vector<xla::Future<>>> futures;
  const bool want_events = args->device_complete_events != nullptr;
  if (one_device) {
    if (args->execute_device->client != loaded.client) return Invalid("execute_device belongs to another client");
    xla::PjRtDevice* device = args->execute_device->device;
    std::optional<xla::Future<>> future;
    const bool portable = loaded.executable->num_replicas() == 1 && loaded.executable->num_partitions() == 1;
    PJRT_ASSIGN_OR_RETURN(auto outputs,
                          portable ? loaded.executable->ExecutePortable(arguments[0], device, options, future, want_events)
                                   : loaded.executable->ExecuteSharded(arguments[0], device, options, future, want_events));
    results.push_back(std::move(outputs));
    if (future) futures.emplace().push_back(std::move(*future));
  } else {
    if (want_events) futures.emplace();
    PJRT_ASSIGN_OR_RETURN(results, loaded.executable->Execute(arguments, options, futures));
  }
  for (const auto& outputs : results) {
    if (outputs.size() != loaded.results.size()) {
      return MakeError(absl::InternalError(absl::StrCat(outputs.size(), " results, expected ", loaded.results.size())));
    }
  }
  for (size_t d = 0; d < devices; ++d) {
    for (size_t i = 0; i < results[d].size(); ++i) {
      args->output_lists[d][i] = WrapBuffer(std::move(results[d][i]), loaded.keep);
    }
    if (want_events) args->device_complete_events[d] = WrapFuture(std::move((*futures)[d]));
  }
  return nullptr;
}

// --- loaded executables ----------------------------------------------------------------------------------------------

XT_CALL(PJRT_LoadedExecutable_Destroy) {
  if (args->executable == nullptr) return nullptr;
  auto* loaded = static_cast<Loaded*>(args->executable);
  std::shared_ptr<ClientState> keep = std::move(loaded->keep);  // the client must outlive what the line below frees
  delete loaded;
  return nullptr;
}

XT_GETTER(PJRT_LoadedExecutable_GetExecutable, loaded_executable,
          args->executable = new Executable(*static_cast<Loaded*>(args->loaded_executable)))
XT_GETTER(PJRT_LoadedExecutable_AddressableDevices, executable, {
  args->addressable_devices = args->executable->addressable_devices.data();
  args->num_addressable_devices = args->executable->addressable_devices.size();
})
XT_GETTER(PJRT_LoadedExecutable_Delete, executable, static_cast<Loaded*>(args->executable)->deleted = true)
XT_GETTER(PJRT_LoadedExecutable_IsDeleted, executable,
          args->is_deleted = static_cast<Loaded*>(args->executable)->deleted)

XT_CALL(PJRT_LoadedExecutable_GetDeviceAssignment) {
  XT_NEED(executable);
  xla::DeviceAssignmentProto proto;
  args->executable->executable->device_assignment().Serialize(&proto);
  auto* serialized = new PJRT_DeviceAssignmentSerialized{proto.SerializeAsString()};
  args->serialized_device_assignment = serialized;
  args->serialized_bytes = serialized->serialized.data();
  args->serialized_bytes_size = serialized->serialized.size();
  args->serialized_device_assignment_deleter = [](PJRT_DeviceAssignmentSerialized* assignment) { delete assignment; };
  return nullptr;
}

// --- what an executable is -------------------------------------------------------------------------------------------

XT_CALL(PJRT_Executable_Destroy) {
  if (args->executable != nullptr) delete Full(args->executable);
  return nullptr;
}

XT_GETTER(PJRT_Executable_Name, executable, {
  const absl::string_view name = args->executable->get()->name();
  args->executable_name = name.data();
  args->executable_name_size = name.size();
})
XT_GETTER(PJRT_Executable_NumReplicas, executable, args->num_replicas = args->executable->get()->num_replicas())
XT_GETTER(PJRT_Executable_NumPartitions, executable, args->num_partitions = args->executable->get()->num_partitions())
XT_GETTER(PJRT_Executable_NumOutputs, executable, args->num_outputs = Full(args->executable)->results.size())
XT_GETTER(PJRT_Executable_SizeOfGeneratedCodeInBytes, executable,
          args->size_in_bytes = args->executable->get()->SizeOfGeneratedCodeInBytes())

XT_CALL(PJRT_Executable_Fingerprint) {
  XT_NEED(executable);
  PJRT_RETURN_IF_ERROR(args->executable->fingerprint.status());
  args->executable_fingerprint = args->executable->fingerprint->data();
  args->executable_fingerprint_size = args->executable->fingerprint->size();
  return nullptr;
}

XT_CALL(PJRT_Executable_OutputElementTypes) {
  XT_NEED(executable);
  Executable& executable = *Full(args->executable);
  absl::MutexLock lock(&executable.mutex);
  if (!executable.out_type_ran) {
    for (const xla::Shape& shape : executable.results) executable.out_types.push_back(ToCType(shape.element_type()));
    executable.out_type_ran = true;
  }
  args->output_types = executable.out_types.data();
  args->num_output_types = executable.out_types.size();
  return nullptr;
}

XT_CALL(PJRT_Executable_OutputDimensions) {
  XT_NEED(executable);
  Executable& executable = *Full(args->executable);
  absl::MutexLock lock(&executable.mutex);
  if (!executable.out_dimension_ran) {
    for (const xla::Shape& shape : executable.results) {
      absl::Span<const int64_t> dims = shape.IsArray() ? shape.dimensions() : absl::Span<const int64_t>();
      executable.out_dimensions.insert(executable.out_dimensions.end(), dims.begin(), dims.end());
      executable.out_dimension_sizes.push_back(dims.size());
    }
    executable.out_dimension_ran = true;
  }
  args->num_outputs = executable.out_dimension_sizes.size();
  args->dims = executable.out_dimensions.data();
  args->dim_sizes = executable.out_dimension_sizes.data();
  return nullptr;
}

// The library does not say; on this platform every result lands in the default memory.
XT_CALL(PJRT_Executable_OutputMemoryKinds) {
  XT_NEED(executable);
  Executable& executable = *Full(args->executable);
  absl::MutexLock lock(&executable.mutex);
  if (!executable.memory_kind_ran) {
    static constexpr absl::string_view kDefault = "device";
    executable.memory_kinds.assign(executable.results.size(), kDefault.data());
    executable.memory_kind_sizes.assign(executable.results.size(), kDefault.size());
    executable.memory_kind_ran = true;
  }
  args->num_outputs = executable.memory_kinds.size();
  args->memory_kinds = executable.memory_kinds.data();
  args->memory_kind_sizes = executable.memory_kind_sizes.data();
  return nullptr;
}

XT_CALL(PJRT_Executable_GetCostAnalysis) {
  XT_NEED(executable);
  Executable& executable = *Full(args->executable);
  absl::MutexLock lock(&executable.mutex);
  if (!executable.cost_analysis_ran) {
    // Only the loaded executable can tell on this platform. All values are floats, so nothing else needs keeping alive.
    PJRT_ASSIGN_OR_RETURN(auto costs, executable.loaded->GetCostAnalysis());
    executable.cost_analysis_names.reserve(costs.size());  // the values point into this
    for (const auto& [name, value] : costs) {
      if (!std::holds_alternative<float>(value)) continue;
      executable.cost_analysis_names.push_back(name);
      executable.cost_analysis_properties.push_back(NamedValue(executable.cost_analysis_names.back(), value));
    }
    executable.cost_analysis_ran = true;
  }
  args->properties = executable.cost_analysis_properties.data();
  args->num_properties = executable.cost_analysis_properties.size();
  return nullptr;
}

XT_CALL(PJRT_Executable_GetCompiledMemoryStats) {
  XT_NEED(executable);
  PJRT_ASSIGN_OR_RETURN(xla::CompiledMemoryStats stats, Full(args->executable)->loaded->GetCompiledMemoryStats());
  args->generated_code_size_in_bytes = stats.generated_code_size_in_bytes;
  args->argument_size_in_bytes = stats.argument_size_in_bytes;
  args->output_size_in_bytes = stats.output_size_in_bytes;
  args->alias_size_in_bytes = stats.alias_size_in_bytes;
  args->temp_size_in_bytes = stats.temp_size_in_bytes;
  args->host_generated_code_size_in_bytes = stats.host_generated_code_size_in_bytes;
  args->host_argument_size_in_bytes = stats.host_argument_size_in_bytes;
  args->host_output_size_in_bytes = stats.host_output_size_in_bytes;
  args->host_alias_size_in_bytes = stats.host_alias_size_in_bytes;
  args->host_temp_size_in_bytes = stats.host_temp_size_in_bytes;
  // The library reports the arguments alone as the peak.
  args->peak_memory_in_bytes = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes +
                               stats.temp_size_in_bytes;
  args->total_size_in_bytes = args->peak_memory_in_bytes + stats.generated_code_size_in_bytes;
  return nullptr;
}

XT_CALL(PJRT_Executable_OptimizedProgram) {
  XT_NEED(executable);
  XT_NEED(program);
  if (PJRT_Error* error = CheckSize("PJRT_Program", args->program, PJRT_Program_STRUCT_SIZE)) return error;
  Executable& executable = *Full(args->executable);
  absl::MutexLock lock(&executable.mutex);
  if (executable.optimized.empty()) {
    PJRT_ASSIGN_OR_RETURN(auto modules, executable.loaded->GetHloModules());
    executable.optimized = modules[0]->ToProtoWithConfig().SerializeAsString();
  }
  static constexpr absl::string_view kFormat = "hlo_with_config";
  args->program->format = kFormat.data();
  args->program->format_size = kFormat.size();
  if (args->program->code != nullptr) {  // null is a question for the size
    if (args->program->code_size < executable.optimized.size()) {
      return Invalid("code_size is ", args->program->code_size, ", expected at least ", executable.optimized.size());
    }
    std::memcpy(args->program->code, executable.optimized.data(), executable.optimized.size());
  }
  args->program->code_size = executable.optimized.size();
  return nullptr;
}

XT_CALL(PJRT_Executable_GetCompileOptions) {
  XT_NEED(executable);
  PJRT_ASSIGN_OR_RETURN(xla::CompileOptions options, Full(args->executable)->loaded->GetCompileOptions());
  PJRT_ASSIGN_OR_RETURN(xla::CompileOptionsProto proto, options.ToProto());
  auto* serialized = new PJRT_SerializedCompileOptions{proto.SerializeAsString()};
  args->serialized_compile_options = serialized;
  args->serialized_bytes = serialized->serialized.data();
  args->serialized_bytes_size = serialized->serialized.size();
  args->serialized_compile_options_deleter = [](PJRT_SerializedCompileOptions* options) { delete options; };
  return nullptr;
}

// --- serializing and loading -----------------------------------------------------------------------------------------

inline uint64_t Checksum(absl::string_view bytes) {  // FNV-1a over words: damage is what it must find, not malice
  uint64_t hash = 0xcbf29ce484222325u ^ bytes.size();
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * 0x100000001b3u;
    hash ^= hash >> 29;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<uint8_t>(bytes[i])) * 0x100000001b3u;
  return hash;
}

// The processor that this process runs on: its name and a hash of its features. Code compiled for another may use
// instructions that this one lacks, and the library would run it all the same.
inline const std::string& Machine() {
  static const std::string* machine = [] {
    std::ifstream info("/proc/cpuinfo");
    std::string line, name = "unknown", flags;
    while (std::getline(info, line) && (flags.empty() || name == "unknown")) {
      const size_t colon = line.find(": ");
      if (colon == std::string::npos) continue;
      if (line.rfind("model name", 0) == 0) name = line.substr(colon + 2);
      if (line.rfind("flags", 0) == 0) flags = line.substr(colon + 2);
    }
    return new std::string(absl::StrCat(name, "/", absl::Hex(Checksum(flags))));
  }();
  return *machine;
}

constexpr absl::string_view kMagic = "xtrain-cpu-executable-1\n";

// magic, checksum of all that follows, length of the machine's name, the name, the library's bytes
inline std::string Seal(absl::string_view executable) {
  const std::string& machine = Machine();
  const uint64_t length = machine.size();
  std::string body(reinterpret_cast<const char*>(&length), sizeof(length));
  absl::StrAppend(&body, machine, executable);
  const uint64_t sum = Checksum(body);
  return absl::StrCat(kMagic, absl::string_view(reinterpret_cast<const char*>(&sum), sizeof(sum)), body);
}

inline absl::StatusOr<absl::string_view> Unseal(absl::string_view bytes) {
  uint64_t sum, length;
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("the bytes are no executable that this version of the xtrain CPU plugin serialized");
  }
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < sizeof(sum) + sizeof(length)) return absl::DataLossError("the serialized executable is truncated");
  std::memcpy(&sum, bytes.data(), sizeof(sum));
  bytes.remove_prefix(sizeof(sum));
  if (Checksum(bytes) != sum) return absl::DataLossError("the serialized executable is truncated or damaged");
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes.remove_prefix(sizeof(length));
  if (length > bytes.size()) return absl::DataLossError("the serialized executable is damaged");
  if (bytes.substr(0, length) != Machine()) {
    return absl::FailedPreconditionError(absl::StrCat("the executable was compiled for the processor '", bytes.substr(0, length),
                                                      "', this is '", Machine(), "'; compile it again here"));
  }
  return bytes.substr(length);
}

// While one lives, the library logs nothing. Loading an executable on the very machine that compiled it logs two errors of a
// kilobyte each, that it might crash; the envelope has settled that question before.
class QuietLog {
 public:
  QuietLog() : lock_(Mutex()), before_(absl::MinLogLevel()) { absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal); }
  ~QuietLog() { absl::SetMinLogLevel(before_); }

 private:
  static std::mutex& Mutex() {
    static std::mutex* mutex = new std::mutex;
    return *mutex;
  }
  std::lock_guard<std::mutex> lock_;
  absl::LogSeverityAtLeast before_;
};

XT_CALL(PJRT_Executable_Serialize) {
  XT_NEED(executable);
  const auto& loaded = static_cast<const Executable*>(args->executable)->loaded;
  PJRT_ASSIGN_OR_RETURN(std::string bytes, loaded->SerializeExecutable());
  auto* serialized = new PJRT_SerializedExecutable{Seal(bytes)};
  args->serialized_executable = serialized;
  args->serialized_bytes = serialized->serialized.data();
  args->serialized_bytes_size = serialized->serialized.size();
  args->serialized_executable_deleter = [](PJRT_SerializedExecutable* executable) { delete executable; };
  return nullptr;
}

XT_CALL(PJRT_Executable_DeserializeAndLoad) {
  XT_FIND_CLIENT(state);
  XT_NEED(serialized_executable);
  PJRT_ASSIGN_OR_RETURN(absl::string_view bytes,
                        Unseal(absl::string_view(args->serialized_executable, args->serialized_executable_size)));
  std::optional<xla::CompileOptions> options;
  if (args->overridden_serialized_compile_options_size > 0) {
    PJRT_ASSIGN_OR_RETURN(options, ReadCompileOptions(args->overridden_serialized_compile_options,
                                                      args->overridden_serialized_compile_options_size));
  }
  auto loading = [&] {
    QuietLog quiet;
    return state->client->client->LoadSerializedExecutable(bytes, std::move(options), {});
  }();
  PJRT_ASSIGN_OR_RETURN(auto executable, std::move(loading));
  PJRT_ASSIGN_OR_RETURN(args->loaded_executable, WrapLoaded(std::move(executable), std::move(state)));
  return nullptr;
}

// --- execute contexts ------------------------------------------------------------------------------------------------

XT_CALL(PJRT_ExecuteContext_Create) {
  args->context = pjrt::CreateWrapperExecuteContext(std::make_unique<xla::ExecuteContext>());
  return nullptr;
}

XT_CALL(PJRT_ExecuteContext_Destroy) {
  delete args->context;
  return nullptr;
}

}  // namespace xtrain

#endif  // XTRAIN_CPP_EXECUTABLE_H_
