// Drives the CPU plugin through XLA's own C-API client, which nobody here wrote: whatever it asks for, and whatever numbers
// it gets back, must be right. Built and run by xla_graphs/native/tests/plugin.rs; the argument is the plugin's path.

#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/parser/hlo_parser.h"
#include "xla/literal.h"
#include "xla/pjrt/c_api_client/pjrt_c_api_client.h"
#include "xla/pjrt/pjrt_client.h"
#include "xla/pjrt/pjrt_executable.h"

namespace {

using Buffers = std::vector<std::unique_ptr<xla::PjRtBuffer>>;
using Semantics = xla::PjRtClient::HostBufferSemantics;

#define CHECK_THAT(condition)                                                    \
  if (!(condition)) {                                                            \
    std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    std::exit(1);                                                                \
  }

template <typename T>
T Get(absl::StatusOr<T> value, int line) {
  if (!value.ok()) {
    std::fprintf(stderr, "line %d: %s\n", line, value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}
#define GET(expression) Get(expression, __LINE__)

#define CHECK_ERROR(status, words)                                                                              \
  {                                                                                                             \
    const std::string message((status).ToString());                                                             \
    if (message.find(words) == std::string::npos) {                                                             \
      std::fprintf(stderr, "%s:%d: expected '%s' in: %s\n", __FILE__, __LINE__, words, message.c_str());        \
      std::exit(1);                                                                                             \
    }                                                                                                           \
  }

xla::XlaComputation Parse(const char* text) {
  return xla::XlaComputation(GET(xla::ParseAndReturnUnverifiedModule(text))->ToProto());
}

xla::CompileOptions Options(int replicas) {
  xla::CompileOptions options;
  options.executable_build_options.set_num_replicas(replicas);
  options.executable_build_options.set_num_partitions(1);
  return options;
}

std::unique_ptr<xla::PjRtLoadedExecutable> Compile(xla::PjRtClient& client, const char* text, int replicas = 1) {
  return GET(client.CompileAndLoad(Parse(text), Options(replicas)));
}

template <typename T>
std::unique_ptr<xla::PjRtBuffer> Put(xla::PjRtClient& client, const std::vector<T>& data, std::vector<int64_t> dims, int device = 0) {
  xla::PjRtMemorySpace* memory = GET(client.addressable_devices()[device]->default_memory_space());
  return GET(client.BufferFromHostBuffer(data.data(), xla::primitive_util::NativeToPrimitiveType<T>(), dims, std::nullopt,
                                         Semantics::kImmutableOnlyDuringCall, nullptr, memory, nullptr));
}

template <typename T>
std::vector<T> Take(xla::PjRtBuffer& buffer) {
  auto literal = GET(buffer.ToLiteral().Await());
  return std::vector<T>(literal->data<T>().begin(), literal->data<T>().end());
}

std::vector<float> Ramp(int n, float start) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), start);
  return values;
}

// Momentum SGD on one weight matrix: two donated inputs, one that is not, a scalar result.
constexpr char kStep[] = R"(HloModule step, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
ENTRY e {
  w = f32[256,128] parameter(0)
  m = f32[256,128] parameter(1)
  x = f32[128,64] parameter(2)
  zero = f32[] constant(0)
  nine = f32[] constant(0.5)
  nines = f32[256,128] broadcast(nine), dimensions={}
  rate = f32[] constant(0.125)
  rates = f32[256,128] broadcast(rate), dimensions={}
  y = f32[256,64] dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[256,128] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  decayed = f32[256,128] multiply(m, nines)
  m2 = f32[256,128] add(decayed, g)
  scaled = f32[256,128] multiply(m2, rates)
  w2 = f32[256,128] subtract(w, scaled)
  loss = f32[] reduce(y, zero), dimensions={0,1}, to_apply=sum
  ROOT out = (f32[256,128], f32[256,128], f32[]) tuple(w2, m2, loss) })";

void Describe(xla::PjRtClient& client) {
  CHECK_THAT(client.device_count() == 4 && client.addressable_device_count() == 4);
  CHECK_THAT(client.memory_spaces().size() == 12);  // three kinds on each device
  CHECK_THAT(client.platform_name() == "cpu");
  CHECK_THAT(!client.platform_version().empty());
  CHECK_THAT(client.process_index() == 0);
  auto assignment = GET(client.GetDefaultDeviceAssignment(2, 2));
  CHECK_THAT(assignment.replica_count() == 2 && assignment.computation_count() == 2 && assignment(1, 1) == 3);
  auto* topology = GET(client.GetTopologyDescription());
  CHECK_THAT(topology->DeviceDescriptions().size() == 4);
  CHECK_THAT(GET(client.LookupDevice(xla::PjRtGlobalDeviceId(2)))->local_hardware_id().value() == 2);
  CHECK_THAT(!client.LookupDevice(xla::PjRtGlobalDeviceId(9)).ok());
  std::puts("PASS describe");
}

void Collectives(xla::PjRtClient& client) {
  auto executable = Compile(client, R"(HloModule groups
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[1024] parameter(0)
  pairs = f32[1024] all-reduce(x), replica_groups={{0,1},{2,3}}, to_apply=sum
  all = f32[1024] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  ring = f32[1024] collective-permute(x), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT out = (f32[1024], f32[1024], f32[1024]) tuple(pairs, all, ring) })", 4);
  CHECK_THAT(executable->addressable_devices().size() == 4);
  Buffers inputs;
  std::vector<std::vector<xla::PjRtBuffer*>> arguments;
  for (int d = 0; d < 4; ++d) {
    inputs.push_back(Put(client, Ramp(1024, 1000.f * d), {1024}, d));
    arguments.push_back({inputs.back().get()});
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    auto results = GET(executable->Execute(arguments, {}));
    for (int d = 0; d < 4; ++d) {
      std::vector<float> pairs = Take<float>(*results[d][0]), all = Take<float>(*results[d][1]), ring = Take<float>(*results[d][2]);
      for (int i = 0; i < 1024; ++i) {
        CHECK_THAT(pairs[i] == 2.f * i + (d < 2 ? 1000.f : 5000.f));
        CHECK_THAT(all[i] == 4.f * i + 6000.f);
        CHECK_THAT(ring[i] == i + 1000.f * ((d + 3) % 4));
      }
    }
  }
  std::puts("PASS collectives over 4 devices");
}

void Analysis(xla::PjRtClient& client) {
  auto executable = Compile(client, kStep);
  const int64_t matrix = 256 * 128 * 4, x = 128 * 64 * 4;
  auto stats = GET(executable->GetCompiledMemoryStats());
  CHECK_THAT(stats.argument_size_in_bytes == 2 * matrix + x);
  CHECK_THAT(stats.alias_size_in_bytes == 2 * matrix);
  CHECK_THAT(stats.output_size_in_bytes >= 2 * matrix + 4 && stats.output_size_in_bytes < 2 * matrix + 256);
  CHECK_THAT(stats.peak_memory_in_bytes == stats.argument_size_in_bytes + stats.output_size_in_bytes -
                                               stats.alias_size_in_bytes + stats.temp_size_in_bytes);
  auto costs = GET(executable->GetCostAnalysis());
  const float dots = 2.f * 2.f * 256 * 128 * 64;  // two products of the same size
  const float flops = std::get<float>(costs.at("flops"));
  CHECK_THAT(flops >= dots && flops < dots * 1.1f);
  CHECK_THAT(std::get<float>(costs.at("bytes accessed")) > 0);

  auto modules = GET(executable->GetHloModules());
  CHECK_THAT(modules.size() == 1 && modules[0]->name() == "step");
  CHECK_THAT(modules[0]->input_output_alias_config().ParameterHasAlias(0, {}));
  CHECK_THAT(!GET(executable->FingerprintExecutable()).empty());
  CHECK_THAT(GET(executable->FingerprintExecutable()) == GET(Compile(client, kStep)->FingerprintExecutable()));
  auto shapes = GET(executable->GetOutputDimensions());
  CHECK_THAT(shapes.size() == 1 && shapes[0].size() == 3 && shapes[0][1][0] == 256 && shapes[0][2].empty());
  CHECK_THAT(GET(executable->GetOutputElementTypes())[0][2] == xla::F32);
  CHECK_THAT(GET(executable->GetOutputMemoryKinds())[0][0] == "device");

  xla::CompileOptions options = Options(1);
  options.env_option_overrides = {{"xla_cpu_prefer_vector_width", int64_t{512}}};
  CHECK_THAT(client.CompileAndLoad(Parse(kStep), options).ok());
  options.env_option_overrides = {{"xla_no_such_option", true}};
  CHECK_ERROR(client.CompileAndLoad(Parse(kStep), options).status(), "xla_no_such_option");
  CHECK_THAT(!client.CompileAndLoad(Parse(kStep), Options(5)).ok());  // more replicas than devices
  std::puts("PASS memory and cost analysis, optimized module, options");
}

// Runs four steps in donated state and returns weights, momentum and losses.
std::vector<float> Steps(xla::PjRtClient& client, xla::PjRtLoadedExecutable& executable) {
  auto w = Put(client, std::vector<float>(256 * 128, 0.01f), {256, 128}), m = Put(client, std::vector<float>(256 * 128), {256, 128});
  std::vector<float> inputs(128 * 64), everything;
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = 0.001f * (i % 97);
  auto x = Put(client, inputs, {128, 64});
  for (int step = 0; step < 4; ++step) {
    const uintptr_t before = GET(client.UnsafeBufferPointer(w.get()));
    auto results = GET(executable.Execute({{w.get(), m.get(), x.get()}}, {}));
    CHECK_THAT(w->IsDeleted() && m->IsDeleted() && !x->IsDeleted());
    CHECK_ERROR(executable.Execute({{w.get(), m.get(), x.get()}}, {}).status(), "deleted or donated");
    CHECK_THAT(!w->ToLiteral().Await().ok());
    w = std::move(results[0][0]);
    m = std::move(results[0][1]);
    CHECK_THAT(GET(client.UnsafeBufferPointer(w.get())) == before);  // updated in place
    everything.push_back(Take<float>(*results[0][2])[0]);
  }
  for (auto* buffer : {&w, &m}) {
    auto values = Take<float>(**buffer);
    everything.insert(everything.end(), values.begin(), values.end());
  }
  return everything;
}

// The same four steps on the host, in double.
void CheckSteps(const std::vector<float>& got) {
  std::vector<double> x(128 * 64), w(256 * 128, 0.01f), m(256 * 128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.001f * (i % 97);
  for (int step = 0; step < 4; ++step) {
    double loss = 0;
    for (int r = 0; r < 256; ++r) {
      std::vector<double> y(64), g(128);
      for (int k = 0; k < 128; ++k) {
        for (int c = 0; c < 64; ++c) y[c] += w[r * 128 + k] * x[k * 64 + c];
      }
      for (double value : y) loss += value;
      for (int k = 0; k < 128; ++k) {
        for (int c = 0; c < 64; ++c) g[k] += y[c] * x[k * 64 + c];
        m[r * 128 + k] = 0.5 * m[r * 128 + k] + g[k];
        w[r * 128 + k] -= 0.125 * m[r * 128 + k];
      }
    }
    CHECK_THAT(std::abs(got[step] - loss) <= 1e-4 * std::abs(loss) + 1e-4);  // a sum of 16384 f32
  }
  for (size_t i = 0; i < w.size(); ++i) CHECK_THAT(std::abs(got[4 + i] - w[i]) < 1e-5);
}

void DonationAndSerialization(xla::PjRtClient& client) {
  auto executable = Compile(client, kStep);
  std::vector<float> compiled = Steps(client, *executable);
  CheckSteps(compiled);
  std::puts("PASS donation: four steps in place, right to 1e-5");

  const std::string bytes = GET(executable->SerializeExecutable());
  executable.reset();
  auto loaded = GET(client.LoadSerializedExecutable(bytes, std::nullopt, {}));
  CHECK_THAT(Steps(client, *loaded) == compiled);  // bit for bit
  CHECK_THAT(!client.LoadSerializedExecutable(bytes.substr(0, bytes.size() / 2), std::nullopt, {}).ok());
  std::string damaged = bytes;
  damaged[damaged.size() / 2] ^= 1;
  CHECK_THAT(!client.LoadSerializedExecutable(damaged, std::nullopt, {}).ok());
  std::puts("PASS serialize and load: equal bit for bit, damage refused");

  // An input named as not donatable is kept, and the rest is donated all the same.
  auto w = Put(client, std::vector<float>(256 * 128, 1.f), {256, 128}), m = Put(client, std::vector<float>(256 * 128), {256, 128});
  auto x = Put(client, std::vector<float>(128 * 64, 0.f), {128, 64});
  xla::ExecuteOptions options;
  options.non_donatable_input_indices = {0};
  auto results = GET(loaded->Execute({{w.get(), m.get(), x.get()}}, options));
  CHECK_THAT(!w->IsDeleted() && m->IsDeleted());
  CHECK_THAT(Take<float>(*w) == Take<float>(*results[0][0]));  // with x of zeros nothing changes
  std::puts("PASS inputs kept from donation");
}

void Copies(xla::PjRtClient& client) {
  // A transposed host array: element (r, c) at r + 3 c.
  const std::vector<float> transposed = Ramp(12, 0);
  xla::PjRtMemorySpace* memory = GET(client.addressable_devices()[1]->default_memory_space());
  const std::vector<int64_t> dims = {3, 4}, strides = {4, 12};
  auto buffer = GET(client.BufferFromHostBuffer(transposed.data(), xla::F32, dims, strides, Semantics::kImmutableOnlyDuringCall,
                                                nullptr, memory, nullptr));
  std::vector<float> rows = Take<float>(*buffer);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) CHECK_THAT(rows[r * 4 + c] == r + 3 * c);
  }
  auto moved = GET(buffer->CopyToMemorySpace(GET(client.addressable_devices()[3]->default_memory_space())));
  CHECK_THAT(moved->device() == client.addressable_devices()[3] && Take<float>(*moved) == rows);
  auto pinned = GET(buffer->CopyToMemorySpace(GET(client.addressable_devices()[1]->memory_space_by_kind("pinned_host"))));
  CHECK_THAT(pinned->memory_space()->kind() == "pinned_host" && Take<float>(*pinned) == rows);
  float two[2];
  CHECK_THAT(buffer->CopyRawToHost(two, 4, 8).Await().ok() && two[0] == rows[1] && two[1] == rows[2]);
  CHECK_THAT(!buffer->CopyRawToHost(two, 44, 8).Await().ok());

  // Other element types, empty arrays and scalars come back as they went.
  for (size_t n : {size_t{0}, size_t{1}, size_t{1000}}) {
    std::vector<xla::bfloat16> halves(n);
    std::vector<int64_t> longs(n);
    for (size_t i = 0; i < n; ++i) {
      halves[i] = static_cast<xla::bfloat16>(0.25f * i);
      longs[i] = (int64_t{1} << 40) + i;
    }
    const std::vector<int64_t> shape = {static_cast<int64_t>(n)};
    CHECK_THAT(Take<xla::bfloat16>(*Put(client, halves, shape)) == halves);
    CHECK_THAT(Take<int64_t>(*Put(client, longs, shape)) == longs);
  }
  CHECK_THAT(Take<double>(*Put(client, std::vector<double>{2.5}, {}))[0] == 2.5);
  std::puts("PASS copies: strides, devices, memories, raw, types");
}

// An execution lets its memory go a moment after its results are ready.
bool Settles(xla::PjRtDevice* device, int64_t bytes_in_use) {
  for (int i = 0; i < 500; ++i) {
    if (GET(device->GetAllocatorStats()).bytes_in_use == bytes_in_use) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void Memory(xla::PjRtClient& client) {
  xla::PjRtDevice* device = client.addressable_devices()[0];
  CHECK_THAT(Settles(device, 0));  // all that the tests before this one made is gone
  const auto before = GET(device->GetAllocatorStats());
  {
    auto buffer = Put(client, std::vector<float>(1 << 20, 1.f), {1 << 20});
    CHECK_THAT(buffer->GetReadyFuture().Await().ok());
    CHECK_THAT(GET(device->GetAllocatorStats()).bytes_in_use >= before.bytes_in_use + (4 << 20));
  }
  CHECK_THAT(Settles(device, before.bytes_in_use));

  // Two thousand steps that make and drop buffers: what the pool holds does not grow.
  auto executable = Compile(client, kStep);
  auto run = [&](int steps) {
    auto w = Put(client, std::vector<float>(256 * 128, 0.01f), {256, 128}), m = Put(client, std::vector<float>(256 * 128), {256, 128});
    for (int step = 0; step < steps; ++step) {
      auto x = Put(client, std::vector<float>(128 * 64, 1e-3f), {128, 64});
      auto results = GET(executable->Execute({{w.get(), m.get(), x.get()}}, {}));
      w = std::move(results[0][0]);
      m = std::move(results[0][1]);
    }
    CHECK_THAT(w->GetReadyFuture().Await().ok());
  };
  run(50);
  const auto warm = GET(device->GetAllocatorStats());
  run(2000);
  CHECK_THAT(Settles(device, before.bytes_in_use));
  const auto after = GET(device->GetAllocatorStats());
  CHECK_THAT(*after.peak_pool_bytes <= *warm.peak_pool_bytes + (4 << 20));
  CHECK_THAT(after.num_allocs > warm.num_allocs);
  std::puts("PASS memory: statistics right, flat over 2000 steps");
}

void Threads(xla::PjRtClient& client) {
  auto executable = Compile(client, "HloModule twice\nENTRY e { x = f32[4096] parameter(0)\n ROOT y = f32[4096] add(x, x) }");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&client, &executable, t] {
      for (int i = 0; i < 60; ++i) {
        auto x = Put(client, std::vector<float>(4096, 64.f * t + i), {4096});
        auto results = GET(executable->Execute({{x.get()}}, {}));
        for (float value : Take<float>(*results[0][0])) CHECK_THAT(value == 2 * (64.f * t + i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::puts("PASS eight threads");
}

}  // namespace

int main(int argc, char** argv) {
  CHECK_THAT(argc == 2);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  CHECK_THAT(get_api != nullptr);
  CHECK_ERROR(xla::WrapClientAroundCApi(get_api(), {{"no_such_option", true}}).status(), "no_such_option");
  auto client = GET(xla::WrapClientAroundCApi(get_api(), {{"cpu_device_count", int64_t{4}}}));
  Describe(*client);
  Collectives(*client);
  Analysis(*client);
  DonationAndSerialization(*client);
  Copies(*client);
  Memory(*client);
  Threads(*client);
  std::puts("ALL PASS");
  return 0;
}
