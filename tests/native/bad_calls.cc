// The CPU plugin called wrongly, through the bare C API: every bad call must end in an error that says what is wrong, never
// in an abort, a hang or a wrong number. Built and run by xla_graphs/native/tests/plugin.rs; the argument is the plugin's
// path. Needs nothing but pjrt_c_api.h, so it also shows that a plain C caller can use the plugin.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace {

const PJRT_Api* api;

[[noreturn]] void Fail(int line, const std::string& what) {
  std::fprintf(stderr, "line %d: %s\n", line, what.c_str());
  std::exit(1);
}
#define CHECK_THAT(condition) \
  if (!(condition)) Fail(__LINE__, "not so: " #condition)

struct Error {
  int code = 0;
  std::string message;
};

Error Take(PJRT_Error* error) {
  if (error == nullptr) return {};
  PJRT_Error_Message_Args message = {PJRT_Error_Message_Args_STRUCT_SIZE, nullptr, error};
  api->PJRT_Error_Message(&message);
  PJRT_Error_GetCode_Args code = {PJRT_Error_GetCode_Args_STRUCT_SIZE, nullptr, error};
  CHECK_THAT(api->PJRT_Error_GetCode(&code) == nullptr);
  Error taken = {code.code, std::string(message.message, message.message_size)};
  PJRT_Error_Destroy_Args destroy = {PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->PJRT_Error_Destroy(&destroy);
  return taken;
}

void Expect(PJRT_Error* error, int code, const char* words, int line) {
  const Error taken = Take(error);
  if (taken.code != code || taken.message.find(words) == std::string::npos) {
    Fail(line, "expected code " + std::to_string(code) + " and '" + words + "', got " + std::to_string(taken.code) + " '" + taken.message + "'");
  }
}
#define EXPECT(call, code, words) Expect(call, PJRT_Error_Code_##code, words, __LINE__)

void Good(PJRT_Error* error, int line) {
  const Error taken = Take(error);
  if (taken.code != 0) Fail(line, taken.message);
}
#define GOOD(call) Good(call, __LINE__)

// A zeroed argument struct with its size filled in.
#define ARGS(name, variable) \
  name##_Args variable = {}; \
  variable.struct_size = name##_Args_STRUCT_SIZE

PJRT_NamedValue IntOption(const char* name, int64_t value) {
  PJRT_NamedValue option = {};
  option.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  option.name = name;
  option.name_size = std::strlen(name);
  option.type = PJRT_NamedValue_kInt64;
  option.int64_value = value;
  option.value_size = 1;
  return option;
}

PJRT_Error* Create(const PJRT_NamedValue& option, PJRT_Client** client) {
  ARGS(PJRT_Client_Create, args);
  args.create_options = &option;
  args.num_options = 1;
  PJRT_Error* error = api->PJRT_Client_Create(&args);
  *client = args.client;
  return error;
}

PJRT_Client* Create(int64_t devices) {
  PJRT_Client* client;
  GOOD(Create(IntOption("cpu_device_count", devices), &client));
  return client;
}

PJRT_Error* Destroy(PJRT_Client* client) {
  ARGS(PJRT_Client_Destroy, args);
  args.client = client;
  return api->PJRT_Client_Destroy(&args);
}

PJRT_Device* Device(PJRT_Client* client, int index) {
  ARGS(PJRT_Client_AddressableDevices, args);
  args.client = client;
  GOOD(api->PJRT_Client_AddressableDevices(&args));
  return args.addressable_devices[index];
}

// --- compiling -------------------------------------------------------------------------------------------------------

// A CompileOptionsProto by hand: executable_build_options (3) of device_ordinal (1) -1, num_replicas (4), num_partitions (5).
std::string CompileOptions(char replicas) {
  std::string build("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20", 12);
  build += replicas;
  build += std::string("\x28\x01", 2);
  return std::string("\x1a") + static_cast<char>(build.size()) + build;
}

PJRT_Error* Compile(PJRT_Client* client, const char* format, const std::string& code, const std::string& options,
                    PJRT_LoadedExecutable** executable) {
  PJRT_Program program = {};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = const_cast<char*>(code.data());
  program.code_size = code.size();
  program.format = format;
  program.format_size = std::strlen(format);
  ARGS(PJRT_Client_Compile, args);
  args.client = client;
  args.program = &program;
  args.compile_options = options.data();
  args.compile_options_size = options.size();
  PJRT_Error* error = api->PJRT_Client_Compile(&args);
  *executable = args.executable;
  return error;
}

// x + y, with x donated: both f32[4].
constexpr char kAdd[] = R"(module @add {
  func.func public @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %y : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";
// x + y over f32[2,3], nothing donated.
constexpr char kMatrix[] = R"(module @matrix {
  func.func public @main(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.add %x, %y : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
})";

PJRT_LoadedExecutable* Compile(PJRT_Client* client, const char* mlir, char replicas = 1) {
  PJRT_LoadedExecutable* executable;
  GOOD(Compile(client, "mlir", mlir, CompileOptions(replicas), &executable));
  return executable;
}

PJRT_Executable* Describe(PJRT_LoadedExecutable* loaded) {
  ARGS(PJRT_LoadedExecutable_GetExecutable, args);
  args.loaded_executable = loaded;
  GOOD(api->PJRT_LoadedExecutable_GetExecutable(&args));
  return args.executable;
}

void DestroyExecutable(PJRT_Executable* executable) {
  ARGS(PJRT_Executable_Destroy, args);
  args.executable = executable;
  GOOD(api->PJRT_Executable_Destroy(&args));
}

void DestroyLoaded(PJRT_LoadedExecutable* executable) {
  ARGS(PJRT_LoadedExecutable_Destroy, args);
  args.executable = executable;
  GOOD(api->PJRT_LoadedExecutable_Destroy(&args));
}

// --- buffers ---------------------------------------------------------------------------------------------------------

PJRT_Client_BufferFromHostBuffer_Args PutArgs(PJRT_Client* client, const void* data, PJRT_Buffer_Type type,
                                              const std::vector<int64_t>& dims, int device) {
  ARGS(PJRT_Client_BufferFromHostBuffer, args);
  args.client = client;
  args.data = data;
  args.type = type;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = Device(client, device);
  return args;
}

void DestroyEvent(PJRT_Event* event) {
  ARGS(PJRT_Event_Destroy, args);
  args.event = event;
  GOOD(api->PJRT_Event_Destroy(&args));
}

PJRT_Buffer* Put(PJRT_Client* client, const void* data, PJRT_Buffer_Type type, const std::vector<int64_t>& dims, int device = 0) {
  auto args = PutArgs(client, data, type, dims, device);
  GOOD(api->PJRT_Client_BufferFromHostBuffer(&args));
  DestroyEvent(args.done_with_host_buffer);
  return args.buffer;
}

void DestroyBuffer(PJRT_Buffer* buffer) {
  ARGS(PJRT_Buffer_Destroy, args);
  args.buffer = buffer;
  GOOD(api->PJRT_Buffer_Destroy(&args));
}

PJRT_Error* Await(PJRT_Event* event) {
  ARGS(PJRT_Event_Await, args);
  args.event = event;
  PJRT_Error* error = api->PJRT_Event_Await(&args);
  DestroyEvent(event);
  return error;
}

PJRT_Error* Read(PJRT_Buffer* buffer, void* to, size_t size) {
  ARGS(PJRT_Buffer_ToHostBuffer, args);
  args.src = buffer;
  args.dst = to;
  args.dst_size = size;
  if (PJRT_Error* error = api->PJRT_Buffer_ToHostBuffer(&args)) return error;
  return Await(args.event);
}

std::vector<float> Floats(PJRT_Buffer* buffer, size_t count) {
  std::vector<float> values(count);
  GOOD(Read(buffer, values.data(), count * sizeof(float)));
  return values;
}

PJRT_Error* Execute(PJRT_LoadedExecutable* executable, const std::vector<std::vector<PJRT_Buffer*>>& arguments,
                    std::vector<PJRT_Buffer*>& results, size_t num_args = SIZE_MAX) {
  PJRT_ExecuteOptions options = {};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  std::vector<PJRT_Buffer* const*> lists;
  std::vector<PJRT_Buffer**> outputs;
  results.assign(arguments.size(), nullptr);
  for (size_t d = 0; d < arguments.size(); ++d) {
    lists.push_back(arguments[d].data());
    outputs.push_back(&results[d]);
  }
  ARGS(PJRT_LoadedExecutable_Execute, args);
  args.executable = executable;
  args.options = &options;
  args.argument_lists = lists.data();
  args.num_devices = arguments.size();
  args.num_args = num_args == SIZE_MAX ? arguments[0].size() : num_args;
  args.output_lists = outputs.data();
  return api->PJRT_LoadedExecutable_Execute(&args);
}

// --- the tests -------------------------------------------------------------------------------------------------------

using AnyCall = PJRT_Error* (*)(void*);

// Every slot of the table, called with a struct that is too small and with one that is all null.
void EverySlot() {
  const auto* slots = reinterpret_cast<const AnyCall*>(&api->PJRT_Error_Destroy);
  const size_t count = (sizeof(PJRT_Api) - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void*);
  int implemented = 0, unimplemented = 0;
  for (size_t i = 0; i < count; ++i) {
    CHECK_THAT(slots[i] != nullptr);
    if (i < 2) continue;  // PJRT_Error_Destroy and PJRT_Error_Message return nothing
    alignas(16) unsigned char args[4096] = {};
    const size_t tiny = 1, large = sizeof(args);
    std::memcpy(args, &tiny, sizeof(tiny));
    const Error small = Take(slots[i](args));
    if (small.code == PJRT_Error_Code_UNIMPLEMENTED) {
      CHECK_THAT(small.message.find("PJRT_") == 0 && small.message.find("is not implemented") != std::string::npos);
      ++unimplemented;
      continue;
    }
    CHECK_THAT(small.code == PJRT_Error_Code_INVALID_ARGUMENT && small.message.find("struct_size is 1") != std::string::npos);
    std::memcpy(args, &large, sizeof(large));
    Take(slots[i](args));  // an error, or nothing to do: but back here
    ++implemented;
  }
  CHECK_THAT(api->struct_size == PJRT_Api_STRUCT_SIZE && api->pjrt_api_version.major_version == PJRT_API_MAJOR);
  std::printf("PASS every slot: %d implemented, %d answer UNIMPLEMENTED by name\n", implemented, unimplemented);
}

void CreateOptions() {
  PJRT_Client* client;
  EXPECT(Create(IntOption("no_such_option", 1), &client), INVALID_ARGUMENT, "no_such_option");
  EXPECT(Create(IntOption("cpu_device_count", 0), &client), INVALID_ARGUMENT, "cpu_device_count");
  EXPECT(Create(IntOption("pool_limit_bytes", -1), &client), INVALID_ARGUMENT, "pool_limit_bytes");
  EXPECT(Create(IntOption("asynchronous", 1), &client), INVALID_ARGUMENT, "must be a bool");
  GOOD(Create(IntOption("pool_limit_bytes", 0), &client));
  GOOD(Destroy(client));
  EXPECT(Destroy(client), INVALID_ARGUMENT, "was destroyed before");
  std::puts("PASS create options");
}

void Programs(PJRT_Client* client) {
  PJRT_LoadedExecutable* executable;
  const std::string one = CompileOptions(1), four = CompileOptions(4);
  EXPECT(Compile(client, "elf", "x", one, &executable), INVALID_ARGUMENT, "unknown program format 'elf'");
  EXPECT(Compile(client, "hlo", "garbage", one, &executable), INVALID_ARGUMENT, "no HloModuleProto");
  EXPECT(Compile(client, "hlo", "", one, &executable), INVALID_ARGUMENT, "no computation");
  CHECK_THAT(Take(Compile(client, "mlir", "module @broken {", one, &executable)).code != 0);
  CHECK_THAT(Take(Compile(client, "mlir", "", one, &executable)).code != 0);
  EXPECT(Compile(client, "mlir", kAdd, "\xff\xff", &executable), INVALID_ARGUMENT, "no CompileOptionsProto");
  CHECK_THAT(Take(Compile(client, "mlir", kAdd, four, &executable)).code != 0);  // two devices are there
  GOOD(Compile(client, "mlir", kAdd, "", &executable));                          // no options: one replica
  DestroyLoaded(executable);

  // The optimized module can be compiled again; cut short or with a flipped bit it may only fail or be a module all the same.
  PJRT_LoadedExecutable* add = Compile(client, kAdd);
  PJRT_Executable* described = Describe(add);
  PJRT_Program program = {};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  ARGS(PJRT_Executable_OptimizedProgram, args);
  args.executable = described;
  args.program = &program;
  GOOD(api->PJRT_Executable_OptimizedProgram(&args));
  std::string code(program.code_size, '\0');
  program.code = code.data();
  program.code_size = 1;
  EXPECT(api->PJRT_Executable_OptimizedProgram(&args), INVALID_ARGUMENT, "code_size is 1");
  program.code_size = code.size();
  GOOD(api->PJRT_Executable_OptimizedProgram(&args));
  const std::string format(program.format, program.format_size);
  GOOD(Compile(client, format.c_str(), code, one, &executable));
  DestroyLoaded(executable);
  int refused = 0;
  for (size_t cut = 1; cut < 40; ++cut) {
    if (Take(Compile(client, format.c_str(), code.substr(0, code.size() * cut / 40), one, &executable)).code != 0) {
      ++refused;
    } else {
      DestroyLoaded(executable);
    }
  }
  CHECK_THAT(refused >= 38);
  DestroyExecutable(described);
  DestroyLoaded(add);
  std::puts("PASS programs: garbage, truncated, too many replicas");
}

void Arguments(PJRT_Client* client, PJRT_Client* other) {
  const float x[] = {1, 2, 3, 4}, y[] = {10, 20, 30, 40};
  const int32_t ints[] = {1, 2, 3, 4};
  PJRT_LoadedExecutable *add = Compile(client, kAdd), *matrix = Compile(client, kMatrix);
  PJRT_Buffer *a = Put(client, x, PJRT_Buffer_Type_F32, {4}), *b = Put(client, y, PJRT_Buffer_Type_F32, {4});
  PJRT_Buffer* typed = Put(client, ints, PJRT_Buffer_Type_S32, {4});
  PJRT_Buffer* square = Put(client, y, PJRT_Buffer_Type_F32, {2, 2});
  PJRT_Buffer* foreign = Put(other, y, PJRT_Buffer_Type_F32, {4});
  PJRT_Buffer* elsewhere = Put(client, y, PJRT_Buffer_Type_F32, {4}, 1);
  std::vector<PJRT_Buffer*> results;
  EXPECT(Execute(add, {{a, typed}}, results), INVALID_ARGUMENT, "argument 1 is s32[4]");
  EXPECT(Execute(add, {{a, square}}, results), INVALID_ARGUMENT, "argument 1 is f32[2,2]");
  EXPECT(Execute(add, {{a, nullptr}}, results), INVALID_ARGUMENT, "argument 1 is null");
  EXPECT(Execute(add, {{a}}, results), INVALID_ARGUMENT, "1 arguments for an executable of 2");
  EXPECT(Execute(add, {{a, b, b}}, results), INVALID_ARGUMENT, "3 arguments for an executable of 2");
  EXPECT(Execute(add, {{a, b}, {a, b}}, results), INVALID_ARGUMENT, "num_devices is 2");
  EXPECT(Execute(add, {{a, foreign}}, results), INVALID_ARGUMENT, "belongs to another client");
  CHECK_THAT(Take(Execute(add, {{a, elsewhere}}, results)).code != 0);
  CHECK_THAT(Take(Execute(add, {{a, a}}, results)).code != 0);  // donated and used besides
  CHECK_THAT(Floats(a, 4)[3] == 4);                             // nothing above touched it

  GOOD(Execute(add, {{a, b}}, results));
  CHECK_THAT(Floats(results[0], 4) == (std::vector<float>{11, 22, 33, 44}));
  DestroyBuffer(results[0]);
  EXPECT(Execute(add, {{a, b}}, results), INVALID_ARGUMENT, "argument 0: the buffer has been deleted or donated");
  float back[4];
  EXPECT(Read(a, back, sizeof(back)), INVALID_ARGUMENT, "deleted or donated");
  ARGS(PJRT_Buffer_Delete, remove);
  remove.buffer = b;
  GOOD(api->PJRT_Buffer_Delete(&remove));
  EXPECT(Execute(add, {{b, b}}, results), INVALID_ARGUMENT, "deleted or donated");
  ARGS(PJRT_Buffer_CopyToDevice, copy);
  copy.buffer = b;
  copy.dst_device = Device(client, 1);
  EXPECT(api->PJRT_Buffer_CopyToDevice(&copy), INVALID_ARGUMENT, "deleted or donated");
  copy.buffer = typed;
  copy.dst_device = Device(other, 0);
  EXPECT(api->PJRT_Buffer_CopyToDevice(&copy), INVALID_ARGUMENT, "another client");

  // A buffer with its dimensions in another order in memory has the right type and dims, and would give wrong numbers.
  const float six[] = {0, 1, 2, 3, 4, 5};
  const std::vector<int64_t> dims = {2, 3}, columns_first = {0, 1};
  PJRT_Buffer_MemoryLayout layout = {};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.minor_to_major = columns_first.data();
  layout.tiled.minor_to_major_size = 2;
  auto put = PutArgs(client, six, PJRT_Buffer_Type_F32, dims, 0);
  put.device_layout = &layout;
  GOOD(api->PJRT_Client_BufferFromHostBuffer(&put));
  DestroyEvent(put.done_with_host_buffer);
  PJRT_Buffer* rows = Put(client, six, PJRT_Buffer_Type_F32, dims);
  CHECK_THAT(Floats(put.buffer, 6) == Floats(rows, 6));
  EXPECT(Execute(matrix, {{rows, put.buffer}}, results), INVALID_ARGUMENT, "argument 1 is f32[2,3]{0,1}");
  GOOD(Execute(matrix, {{rows, rows}}, results));
  CHECK_THAT(Floats(results[0], 6)[5] == 10);
  for (PJRT_Buffer* buffer : {a, b, typed, square, foreign, elsewhere, rows, put.buffer, results[0]}) DestroyBuffer(buffer);

  ARGS(PJRT_LoadedExecutable_Delete, gone);
  gone.executable = matrix;
  GOOD(api->PJRT_LoadedExecutable_Delete(&gone));
  EXPECT(Execute(matrix, {{nullptr, nullptr}}, results), INVALID_ARGUMENT, "has been deleted");
  DestroyLoaded(add);
  DestroyLoaded(matrix);
  std::puts("PASS arguments: types, dims, layouts, counts, devices, clients, deleted, donated");
}

void Transfers(PJRT_Client* client) {
  const float data[] = {1, 2, 3, 4, 5, 6};
  auto put = [&](PJRT_Buffer_Type type, const std::vector<int64_t>& dims, auto change) {
    auto args = PutArgs(client, data, type, dims, 0);
    change(args);
    return api->PJRT_Client_BufferFromHostBuffer(&args);
  };
  using Args = PJRT_Client_BufferFromHostBuffer_Args;
  auto same = [](Args&) {};
  EXPECT(put(PJRT_Buffer_Type_F32, {-1}, same), INVALID_ARGUMENT, "dimension 0 is -1");
  EXPECT(put(PJRT_Buffer_Type_INVALID, {2}, same), INVALID_ARGUMENT, "unknown element type 0");
  EXPECT(put(static_cast<PJRT_Buffer_Type>(99), {2}, same), INVALID_ARGUMENT, "unknown element type 99");
  CHECK_THAT(Take(put(PJRT_Buffer_Type_F32, {int64_t{1} << 40, int64_t{1} << 40}, same)).code != 0);  // more than 2^63 bytes
  EXPECT(put(PJRT_Buffer_Type_F32, {2}, [](Args& args) { args.data = nullptr; }), INVALID_ARGUMENT, "data is null");
  EXPECT(put(PJRT_Buffer_Type_F32, {2}, [](Args& args) { args.client = nullptr; }), INVALID_ARGUMENT, "no client");
  EXPECT(put(PJRT_Buffer_Type_F32, {2}, [](Args& args) { args.device = nullptr; }), INVALID_ARGUMENT, "neither a device");
  const int64_t strides[] = {4, 4};
  EXPECT(put(PJRT_Buffer_Type_F32, {2}, [&](Args& args) { args.byte_strides = strides, args.num_byte_strides = 2; }),
         INVALID_ARGUMENT, "2 byte_strides for 1 dimensions");
  EXPECT(put(PJRT_Buffer_Type_F32, {2}, [](Args& args) { args.host_buffer_semantics = static_cast<PJRT_HostBufferSemantics>(7); }),
         INVALID_ARGUMENT, "unknown host buffer semantics 7");

  PJRT_Buffer* buffer = Put(client, data, PJRT_Buffer_Type_F32, {6});
  float back[6] = {};
  EXPECT(Read(buffer, back, 8), INVALID_ARGUMENT, "dst_size is 8, expected at least 24");
  ARGS(PJRT_Buffer_CopyRawToHost, raw);
  raw.buffer = buffer;
  raw.dst = back;
  const int64_t ranges[][2] = {{-4, 4}, {0, 28}, {24, 4}, {4, -4}, {INT64_MAX, 1}, {1, INT64_MAX}};
  for (const auto& [offset, size] : ranges) {
    raw.offset = offset;
    raw.transfer_size = size;
    EXPECT(api->PJRT_Buffer_CopyRawToHost(&raw), INVALID_ARGUMENT, "of a buffer of 24");
  }
  ARGS(PJRT_Buffer_DecreaseExternalReferenceCount, decrease);
  decrease.buffer = buffer;
  EXPECT(api->PJRT_Buffer_DecreaseExternalReferenceCount(&decrease), INVALID_ARGUMENT, "no external reference");
  DestroyBuffer(buffer);

  ARGS(PJRT_Client_LookupDevice, lookup);
  lookup.client = client;
  lookup.id = 77;
  CHECK_THAT(Take(api->PJRT_Client_LookupDevice(&lookup)).code != 0);
  std::puts("PASS transfers: dims, types, strides, sizes, ranges");
}

void Events() {
  ARGS(PJRT_Event_Create, create);
  GOOD(api->PJRT_Event_Create(&create));
  ARGS(PJRT_Event_Error, error);
  error.event = create.event;
  EXPECT(api->PJRT_Event_Error(&error), INVALID_ARGUMENT, "not ready");
  Error seen;
  ARGS(PJRT_Event_OnReady, on_ready);
  on_ready.event = create.event;
  on_ready.user_arg = &seen;
  on_ready.callback = [](PJRT_Error* failure, void* into) { *static_cast<Error*>(into) = Take(failure); };
  GOOD(api->PJRT_Event_OnReady(&on_ready));
  ARGS(PJRT_Event_Set, set);
  set.event = create.event;
  set.error_code = PJRT_Error_Code_DATA_LOSS;
  set.error_message = "lost";
  set.error_message_size = 4;
  GOOD(api->PJRT_Event_Set(&set));
  CHECK_THAT(seen.code == PJRT_Error_Code_DATA_LOSS && seen.message == "lost");
  EXPECT(api->PJRT_Event_Set(&set), INVALID_ARGUMENT, "set already");
  EXPECT(api->PJRT_Event_Error(&error), DATA_LOSS, "lost");
  EXPECT(Await(create.event), DATA_LOSS, "lost");
  std::puts("PASS events");
}

PJRT_Error* Load(PJRT_Client* client, const std::string& bytes, PJRT_LoadedExecutable** executable) {
  ARGS(PJRT_Executable_DeserializeAndLoad, args);
  args.client = client;
  args.serialized_executable = bytes.data();
  args.serialized_executable_size = bytes.size();
  PJRT_Error* error = api->PJRT_Executable_DeserializeAndLoad(&args);
  *executable = args.loaded_executable;
  return error;
}

void Serialized(PJRT_Client* client) {
  PJRT_LoadedExecutable *add = Compile(client, kAdd), *loaded;
  PJRT_Executable* described = Describe(add);
  DestroyLoaded(add);  // what describes it lives on
  ARGS(PJRT_Executable_Serialize, args);
  args.executable = described;
  GOOD(api->PJRT_Executable_Serialize(&args));
  const std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  DestroyExecutable(described);

  for (size_t cut = 0; cut < 64; ++cut) CHECK_THAT(Take(Load(client, bytes.substr(0, bytes.size() * cut / 64), &loaded)).code != 0);
  for (size_t at = 0; at < bytes.size(); at += bytes.size() / 101 + 1) {
    std::string damaged = bytes;
    damaged[at] ^= 0x10;
    CHECK_THAT(Take(Load(client, damaged, &loaded)).code != 0);
  }
  EXPECT(Load(client, "not an executable at all", &loaded), INVALID_ARGUMENT, "no executable");
  EXPECT(Load(client, bytes + "x", &loaded), DATA_LOSS, "damaged");
  GOOD(Load(client, bytes, &loaded));
  DestroyLoaded(loaded);

  // For two devices, into a client with one.
  PJRT_LoadedExecutable* two = Compile(client, kMatrix, 2);
  described = Describe(two);
  args.executable = described;
  GOOD(api->PJRT_Executable_Serialize(&args));
  PJRT_Client* single = Create(1);
  CHECK_THAT(Take(Load(single, std::string(args.serialized_bytes, args.serialized_bytes_size), &loaded)).code != 0);
  args.serialized_executable_deleter(args.serialized_executable);
  GOOD(Destroy(single));
  DestroyExecutable(described);
  DestroyLoaded(two);
  std::puts("PASS serialized executables: truncated, damaged, foreign, too few devices");
}

void DestroyInAnyOrder() {
  const float x[] = {1, 2, 3, 4};
  PJRT_Client* client = Create(2);
  PJRT_LoadedExecutable* add = Compile(client, kAdd);
  PJRT_Executable* described = Describe(add);
  PJRT_Buffer *a = Put(client, x, PJRT_Buffer_Type_F32, {4}), *b = Put(client, x, PJRT_Buffer_Type_F32, {4});
  std::vector<PJRT_Buffer*> results;
  GOOD(Execute(add, {{a, b}}, results));
  GOOD(Destroy(client));
  CHECK_THAT(Floats(results[0], 4)[3] == 8);
  EXPECT(Destroy(client), INVALID_ARGUMENT, "was destroyed before");
  DestroyLoaded(add);
  for (PJRT_Buffer* buffer : {a, b, results[0]}) DestroyBuffer(buffer);
  DestroyExecutable(described);
  std::puts("PASS a client destroyed before its buffers and executables");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  alarm(300);  // a hang is a failure too
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Fail(__LINE__, dlerror());
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  CHECK_THAT(get_api != nullptr);
  api = get_api();
  EverySlot();
  CreateOptions();
  PJRT_Client *client = Create(2), *other = Create(1);
  Programs(client);
  Arguments(client, other);
  Transfers(client);
  Events();
  Serialized(client);
  DestroyInAnyOrder();
  GOOD(Destroy(client));
  GOOD(Destroy(other));
  std::puts("ALL PASS");
  return 0;
}
