// Several processes, one client each: the topology of all their devices, the store in which they find each other, and
// collectives between them over the engine of gloo/engine.h.

#ifndef XTRAIN_CPP_PROCESSES_H_
#define XTRAIN_CPP_PROCESSES_H_

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "gloo/engine.h"
#include "xla/backends/cpu/collectives/cpu_collectives.h"
#include "xla/core/collectives/clique_key.h"
#include "xla/pjrt/pjrt_compiler.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_topology_description.h"
#include "xla/primitive_util.h"

namespace xtrain {

// --- the store of whoever created the client ----------------------------------------------------------------------------

// The key-value callbacks of PJRT_Client_Create.
class CallbackStore : public gloo_engine::Store {
 public:
  CallbackStore(PJRT_KeyValueGetCallback get, void* get_argument, PJRT_KeyValuePutCallback put, void* put_argument)
      : get_(get), get_argument_(get_argument), put_(put), put_argument_(put_argument) {}

  void Put(const std::string& key, const std::string& value) override {
    PJRT_CallbackError make_error = MakeCallbackError;
    PJRT_KeyValuePutCallback_Args args = {};
    args.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE;
    args.key = key.data();
    args.key_size = key.size();
    args.value = value.data();
    args.value_size = value.size();
    args.callback_error = &make_error;
    args.user_arg = put_argument_;
    Throw(put_(&args));
  }

  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    PJRT_CallbackError make_error = MakeCallbackError;
    PJRT_KeyValueGetCallback_Args args = {};
    args.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE;
    args.key = key.data();
    args.key_size = key.size();
    args.timeout_in_ms = static_cast<int>(std::min<int64_t>(timeout.count(), std::numeric_limits<int>::max()));
    args.callback_error = &make_error;
    args.user_arg = get_argument_;
    Throw(get_(&args));
    std::string value(args.value, args.value_size);
    if (args.value_deleter_callback != nullptr) args.value_deleter_callback(args.value);
    return value;
  }

 private:
  static PJRT_Error* MakeCallbackError(PJRT_Error_Code code, const char* message, size_t size) {
    return MakeError(absl::Status(static_cast<absl::StatusCode>(code), absl::string_view(message, size)));
  }

  static void Throw(PJRT_Error* error) {
    if (error == nullptr) return;
    const std::string message(error->status.message());
    delete error;
    throw std::runtime_error(message);
  }

  PJRT_KeyValueGetCallback get_;
  void* get_argument_;
  PJRT_KeyValuePutCallback put_;
  void* put_argument_;
};

// --- collectives ---------------------------------------------------------------------------------------------------------

inline absl::StatusOr<gloo_engine::Element> ElementOf(xla::PrimitiveType type) {
  using gloo_engine::Element;
  switch (type) {
    case xla::F32: return Element::F32;
    case xla::F64: return Element::F64;
    case xla::S8: return Element::S8;
    case xla::U8: return Element::U8;
    case xla::PRED: return Element::U8;  // or is the maximum, and is the minimum
    case xla::S16: return Element::S16;
    case xla::U16: return Element::U16;
    case xla::S32: return Element::S32;
    case xla::U32: return Element::U32;
    case xla::S64: return Element::S64;
    case xla::U64: return Element::U64;
    default:
      return absl::UnimplementedError(absl::StrCat("the engine between processes adds up no elements of type ",
                                                   xla::PrimitiveType_Name(type)));
  }
}

inline gloo_engine::Reduction ReductionOf(xla::ReductionKind kind) {
  using gloo_engine::Reduction;
  switch (kind) {
    case xla::ReductionKind::SUM: return Reduction::Sum;
    case xla::ReductionKind::PRODUCT: return Reduction::Product;
    case xla::ReductionKind::MIN: return Reduction::Min;
    case xla::ReductionKind::MAX: return Reduction::Max;
  }
  return Reduction::Sum;
}

class ProcessCommunicator : public xla::Communicator {
  using Address = stream_executor::DeviceAddressBase;

 public:
  ProcessCommunicator(std::unique_ptr<gloo_engine::Ranks> ranks, int rank, int size)
      : ranks_(std::move(ranks)), rank_(rank), size_(size) {}

  xla::Future<> AllReduce(Address send, Address recv, xla::PrimitiveType type, size_t count, xla::ReductionKind kind,
                          const Executor&) override {
    auto element = ElementOf(type);
    if (!element.ok()) return xla::Future<>(element.status());
    return Run("all-reduce", [&] { ranks_->AllReduce(send.opaque(), recv.opaque(), count, *element, ReductionOf(kind)); });
  }

  xla::Future<> ReduceScatter(Address send, Address recv, xla::PrimitiveType type, size_t count, xla::ReductionKind kind,
                              const Executor&) override {
    auto element = ElementOf(type);
    if (!element.ok()) return xla::Future<>(element.status());
    return Run("reduce-scatter",
               [&] { ranks_->ReduceScatter(send.opaque(), recv.opaque(), count, *element, ReductionOf(kind)); });
  }

  xla::Future<> AllGather(Address send, Address recv, xla::PrimitiveType type, size_t count, const Executor&) override {
    const size_t bytes = BytesOf(type, count);
    std::vector<gloo_engine::Part> sends(size_, Part(send, bytes)), recvs(size_);
    for (int peer = 0; peer < size_; ++peer) recvs[peer] = {static_cast<char*>(recv.opaque()) + peer * bytes, bytes};
    return Run("all-gather", [&] { ranks_->Exchange(sends, recvs); });
  }

  xla::Future<> CollectivePermute(Address send, Address recv, xla::PrimitiveType type, size_t count,
                                  std::optional<xla::RankId> source, absl::Span<const xla::RankId> targets,
                                  const Executor&) override {
    const size_t bytes = BytesOf(type, count);
    std::vector<gloo_engine::Part> sends(size_), recvs(size_);
    for (xla::RankId target : targets) sends[target.value()] = Part(send, bytes);
    if (source) {
      recvs[source->value()] = Part(recv, bytes);
    } else {
      std::memset(recv.opaque(), 0, bytes);  // as the operation is defined
    }
    return Run("collective-permute", [&] { ranks_->Exchange(sends, recvs); });
  }

  xla::Future<> AllToAll(absl::InlinedVector<Address, 4> send, absl::InlinedVector<Address, 4> recv, xla::PrimitiveType type,
                         size_t count, const Executor&) override {
    const size_t bytes = BytesOf(type, count);
    std::vector<gloo_engine::Part> sends(size_), recvs(size_);
    for (int peer = 0; peer < size_; ++peer) {
      sends[peer] = Part(send[peer], bytes);
      recvs[peer] = Part(recv[peer], bytes);
    }
    return Run("all-to-all", [&] { ranks_->Exchange(sends, recvs); });
  }

  xla::Future<> Broadcast(Address, Address, xla::PrimitiveType, size_t, xla::RankId, const Executor&) override {
    return None("broadcast");
  }
  xla::Future<> Send(Address, xla::PrimitiveType, size_t, xla::RankId, const Executor&) override { return None("send"); }
  xla::Future<> Recv(Address, xla::PrimitiveType, size_t, xla::RankId, const Executor&) override { return None("recv"); }

  absl::StatusOr<size_t> NumRanks() const override { return size_; }
  absl::StatusOr<size_t> CurrentRank() override { return rank_; }
  std::string ToString() const override { return absl::StrCat("ProcessCommunicator [rank: ", rank_, " of ", size_, "]"); }

 private:
  static size_t BytesOf(xla::PrimitiveType type, size_t count) {
    return count * xla::primitive_util::ByteWidth(type);
  }

  static gloo_engine::Part Part(Address address, size_t bytes) { return {static_cast<char*>(address.opaque()), bytes}; }

  static xla::Future<> None(const char* what) {
    return xla::Future<>(absl::UnimplementedError(absl::StrCat(what, " between processes is not implemented on the CPU")));
  }

  // Runs in the thread that executes the module: a collective has to end before what needs it anyway.
  template <typename Call>
  xla::Future<> Run(const char* what, Call call) {
    try {
      call();
      return xla::Future<>(absl::OkStatus());
    } catch (const std::exception& error) {
      return xla::Future<>(absl::UnavailableError(
          absl::StrCat(what, " with the other processes failed on rank ", rank_, " of ", size_, ": ", error.what())));
    }
  }

  std::unique_ptr<gloo_engine::Ranks> ranks_;
  const int rank_, size_;
};

class ProcessCollectives : public xla::cpu::CpuCollectives {
 public:
  ProcessCollectives(gloo_engine::Connect* connect, std::shared_ptr<gloo_engine::Store> store, gloo_engine::Place place)
      : connect_(connect), store_(std::move(store)), place_(std::move(place)) {}

  // Called from each device's thread with that device's rank, so the ranks of one process connect at the same time.
  absl::StatusOr<std::vector<std::unique_ptr<xla::Communicator>>> CreateCommunicators(
      const xla::CliqueKey& key, const std::optional<xla::CliqueIds>&, absl::Span<const DeviceRank> ranks,
      const Config&) override {
    std::vector<std::unique_ptr<xla::Communicator>> communicators;
    for (const DeviceRank& rank : ranks) {
      gloo_engine::Place place = place_;
      for (xla::GlobalDeviceId device : key.devices()) absl::StrAppend(&place.clique, device.value(), ".");
      place.rank = static_cast<int>(rank.rank.value());
      place.size = static_cast<int>(key.num_devices());
      try {
        communicators.push_back(std::make_unique<ProcessCommunicator>(connect_(store_, place), place.rank, place.size));
      } catch (const std::exception& error) {
        return absl::UnavailableError(absl::StrCat("rank ", place.rank, " of ", place.size, " (at ", place.host,
                                                   ") cannot reach the other processes: ", error.what()));
      }
    }
    return communicators;
  }

 private:
  gloo_engine::Connect* connect_;
  std::shared_ptr<gloo_engine::Store> store_;
  const gloo_engine::Place place_;
};

// --- opening -------------------------------------------------------------------------------------------------------------

// The engine's library lies beside this one (of tests: above the directory of the test's program), or where the variable says.
inline absl::StatusOr<gloo_engine::Connect*> OpenEngine() {
  std::vector<std::string> places;
  if (const char* told = std::getenv("XTRAIN_GLOO_LIBRARY"); told != nullptr && *told != '\0') {
    places.push_back(told);
  } else {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(&OpenEngine), &info) != 0 && info.dli_fname != nullptr) {
      std::error_code failed;
      const std::filesystem::path self = std::filesystem::canonical(info.dli_fname, failed);
      const std::filesystem::path folder = (failed ? std::filesystem::path(info.dli_fname) : self).parent_path();
      places.push_back(folder / "libxtrain_gloo.so");
      places.push_back(folder.parent_path() / "libxtrain_gloo.so");
    }
  }
  std::string reasons;
  for (const std::string& place : places) {
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", dlerror());
      continue;
    }
    if (void* symbol = dlsym(library, "xtrain_gloo_connect")) return reinterpret_cast<gloo_engine::Connect*>(symbol);
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", place, " is another library");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("several processes on the CPU need Gloo, which this build has not got (", reasons,
                   "); install libgloo-dev (Debian, Ubuntu) and run bin/bootstrap again"));
}

struct ProcessOptions {
  int process_id = 0;
  int num_processes = 1;
  std::string host = "127.0.0.1";
  int64_t connect_timeout_seconds = 300;
  int64_t collective_timeout_seconds = 1800;
};

// All devices of the run, `local` of them on each process.
inline std::shared_ptr<xla::CpuTopologyDescription> TopologyOf(const ProcessOptions& options, int local) {
  std::vector<xla::CpuTopology::CpuDevice> devices;
  for (int process = 0; process < options.num_processes; ++process) {
    for (int device = 0; device < local; ++device) devices.push_back({process, device});
  }
  return std::make_shared<xla::CpuTopologyDescription>(xla::CpuId(), xla::CpuName(), "cpu", std::move(devices),
                                                       absl::Span<const std::string>());
}

inline absl::StatusOr<std::shared_ptr<xla::cpu::CpuCollectives>> CollectivesOf(const ProcessOptions& options,
                                                                               const PJRT_Client_Create_Args& args) {
  if (args.kv_get_callback == nullptr || args.kv_put_callback == nullptr) {
    return absl::InvalidArgumentError("num_processes above 1 needs kv_get_callback and kv_put_callback");
  }
  auto engine = OpenEngine();
  if (!engine.ok()) return engine.status();
  auto store = std::make_shared<CallbackStore>(args.kv_get_callback, args.kv_get_user_arg, args.kv_put_callback,
                                               args.kv_put_user_arg);
  gloo_engine::Place place = {};
  place.host = options.host;
  place.connect_timeout = std::chrono::seconds(options.connect_timeout_seconds);
  place.timeout = std::chrono::seconds(options.collective_timeout_seconds);
  return std::make_shared<ProcessCollectives>(*engine, std::move(store), std::move(place));
}

}  // namespace xtrain

#endif  // XTRAIN_CPP_PROCESSES_H_
