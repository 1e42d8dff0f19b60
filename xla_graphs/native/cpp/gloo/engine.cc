// The collectives of several processes over Gloo. Built into libxtrain_gloo.so where Gloo is installed.

#include "engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

namespace xtrain::gloo_engine {
namespace {

using std::chrono::milliseconds;

// Gloo numbers its own collectives from 1 up; ours must not meet them.
constexpr uint8_t kExchangeSlot = 0x70;

// Up to so many bytes a ring's many small messages cost more than sending everything to everyone.
constexpr size_t kSmall = 32 << 10;

// Keys of one clique in the launcher's store.
class CliqueStore : public gloo::rendezvous::Store {
 public:
  CliqueStore(std::shared_ptr<gloo_engine::Store> store, const Place& place)
      : store_(std::move(store)), prefix_("gloo/" + place.clique + "/"), timeout_(place.connect_timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_->Put(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_->Get(prefix_ + key, timeout_);
    return std::vector<char>(value.begin(), value.end());
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    for (const std::string& key : keys) store_->Get(prefix_ + key, std::max(timeout, timeout_));
  }

 private:
  std::shared_ptr<gloo_engine::Store> store_;
  std::string prefix_;
  milliseconds timeout_;
};

// One event loop for each address that this process listens at.
std::shared_ptr<gloo::transport::Device> DeviceAt(const std::string& host) {
  static std::mutex mutex;
  static auto* devices = new std::map<std::string, std::shared_ptr<gloo::transport::Device>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& device = (*devices)[host];
  if (device == nullptr) {
    gloo::transport::tcp::attr attributes;
    attributes.hostname = host;
    device = gloo::transport::tcp::CreateDevice(attributes);
  }
  return device;
}

template <typename T>
void Combine(Reduction reduction, void* out, const void* a, const void* b, size_t count) {
  T* to = static_cast<T*>(out);
  const T* left = static_cast<const T*>(a);
  const T* right = static_cast<const T*>(b);
  switch (reduction) {
    case Reduction::Sum:
      for (size_t i = 0; i < count; ++i) to[i] = left[i] + right[i];
      return;
    case Reduction::Product:
      for (size_t i = 0; i < count; ++i) to[i] = left[i] * right[i];
      return;
    case Reduction::Min:
      for (size_t i = 0; i < count; ++i) to[i] = std::min(left[i], right[i]);
      return;
    case Reduction::Max:
      for (size_t i = 0; i < count; ++i) to[i] = std::max(left[i], right[i]);
      return;
  }
}

using Combiner = void (*)(Reduction, void*, const void*, const void*, size_t);

struct ElementInfo {
  size_t size;
  Combiner combine;
};

ElementInfo InfoOf(Element element) {
  switch (element) {
    case Element::F32: return {4, Combine<float>};
    case Element::F64: return {8, Combine<double>};
    case Element::S8: return {1, Combine<int8_t>};
    case Element::U8: return {1, Combine<uint8_t>};
    case Element::S16: return {2, Combine<int16_t>};
    case Element::U16: return {2, Combine<uint16_t>};
    case Element::S32: return {4, Combine<int32_t>};
    case Element::U32: return {4, Combine<uint32_t>};
    case Element::S64: return {8, Combine<int64_t>};
    case Element::U64: return {8, Combine<uint64_t>};
  }
  throw std::invalid_argument("an element type that the engine does not know");
}

class GlooRanks : public Ranks {
 public:
  GlooRanks(std::shared_ptr<Store> store, const Place& place) : rank_(place.rank), size_(place.size), timeout_(place.timeout) {
    std::shared_ptr<gloo::transport::Device> device = DeviceAt(place.host);
    context_ = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    context_->setTimeout(place.connect_timeout);
    CliqueStore clique(std::move(store), place);
    context_->connectFullMesh(clique, device);
    context_->setTimeout(timeout_);
  }

  void AllReduce(const void* in, void* out, size_t count, Element element, Reduction reduction) override {
    const ElementInfo info = InfoOf(element);
    if (count * info.size <= kSmall) return ReduceHere(in, out, count, info, reduction);
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setTag(NextTag());
    options.setTimeout(timeout_);
    options.setReduceFunction([info, reduction](void* to, const void* a, const void* b, size_t n) {
      info.combine(reduction, to, a, b, n);
    });
    // Gloo's templates only take the element's size from the type.
    auto with = [&](auto* sample) {
      using T = std::remove_pointer_t<decltype(sample)>;
      options.setInput(static_cast<T*>(const_cast<void*>(in)), count);
      options.setOutput(static_cast<T*>(out), count);
    };
    switch (info.size) {
      case 1: with(static_cast<uint8_t*>(nullptr)); break;
      case 2: with(static_cast<uint16_t*>(nullptr)); break;
      case 4: with(static_cast<uint32_t*>(nullptr)); break;
      default: with(static_cast<uint64_t*>(nullptr)); break;
    }
    gloo::allreduce(options);
  }

  void ReduceScatter(const void* in, void* out, size_t count, Element element, Reduction reduction) override {
    const ElementInfo info = InfoOf(element);
    const size_t block = count * info.size;
    std::vector<char> received(block * size_);
    std::vector<Part> send(size_), recv(size_);
    for (int peer = 0; peer < size_; ++peer) {
      send[peer] = {static_cast<char*>(const_cast<void*>(in)) + peer * block, block};
      recv[peer] = {received.data() + peer * block, block};
    }
    Exchange(send, recv);
    std::memcpy(out, received.data(), block);
    for (int peer = 1; peer < size_; ++peer) info.combine(reduction, out, out, received.data() + peer * block, count);
  }

  void Exchange(const std::vector<Part>& send, const std::vector<Part>& recv) override {
    const uint64_t slot = gloo::Slot::build(kExchangeSlot, NextTag());
    std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sending, receiving;
    for (int step = 1; step < size_; ++step) {
      // Each rank begins with its neighbour, so that not all of them send to rank 0 first.
      const int to = (rank_ + step) % size_, from = (rank_ + size_ - step) % size_;
      if (recv[from].size > 0) {
        receiving.push_back(context_->createUnboundBuffer(recv[from].data, recv[from].size));
        receiving.back()->recv(from, slot);
      }
      if (send[to].size > 0) {
        sending.push_back(context_->createUnboundBuffer(send[to].data, send[to].size));
        sending.back()->send(to, slot);
      }
    }
    if (recv[rank_].size > 0) std::memmove(recv[rank_].data, send[rank_].data, recv[rank_].size);
    for (auto& buffer : receiving) {
      if (!buffer->waitRecv(timeout_)) throw std::runtime_error("receiving was aborted");
    }
    for (auto& buffer : sending) {
      if (!buffer->waitSend(timeout_)) throw std::runtime_error("sending was aborted");
    }
  }

 private:
  uint32_t NextTag() { return tag_++; }

  // Each rank adds up everything itself, in the order of ranks, so that all get the same bits.
  void ReduceHere(const void* in, void* out, size_t count, const ElementInfo& info, Reduction reduction) {
    const size_t bytes = count * info.size;
    std::vector<char> received(bytes * size_);
    std::vector<Part> send(size_, {static_cast<char*>(const_cast<void*>(in)), bytes}), recv(size_);
    for (int peer = 0; peer < size_; ++peer) recv[peer] = {received.data() + peer * bytes, bytes};
    Exchange(send, recv);
    std::memcpy(out, received.data(), bytes);
    for (int peer = 1; peer < size_; ++peer) info.combine(reduction, out, out, received.data() + peer * bytes, count);
  }

  const int rank_, size_;
  const milliseconds timeout_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  uint32_t tag_ = 0;  // all ranks make the same calls in the same order
};

}  // namespace
}  // namespace xtrain::gloo_engine

__attribute__((visibility("default"))) std::unique_ptr<xtrain::gloo_engine::Ranks> xtrain_gloo_connect(
    std::shared_ptr<xtrain::gloo_engine::Store> store, const xtrain::gloo_engine::Place& place) asm("xtrain_gloo_connect");

std::unique_ptr<xtrain::gloo_engine::Ranks> xtrain_gloo_connect(std::shared_ptr<xtrain::gloo_engine::Store> store,
                                                                const xtrain::gloo_engine::Place& place) {
  return std::make_unique<xtrain::gloo_engine::GlooRanks>(std::move(store), place);
}
