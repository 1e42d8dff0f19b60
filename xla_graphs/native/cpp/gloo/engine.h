// The interface between the CPU plugin and the engine that carries collectives between processes. It knows neither XLA nor Gloo, so
// that the engine is a small library of its own, which is built where Gloo is installed and opened when several processes run.
// Both sides are built together by one compiler, so C++ types may cross; failures cross as std::exception.

#ifndef XTRAIN_CPP_GLOO_ENGINE_H_
#define XTRAIN_CPP_GLOO_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace xtrain::gloo_engine {

// Where ranks find each other's addresses.
class Store {
 public:
  virtual ~Store() = default;
  virtual void Put(const std::string& key, const std::string& value) = 0;
  // Waits for a value that is put later.
  virtual std::string Get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

enum class Element { F32, F64, S8, U8, S16, U16, S32, U32, S64, U64 };
enum class Reduction { Sum, Product, Min, Max };

struct Part {
  char* data;
  size_t size;
};

// The ranks of one collective clique, connected to each other. One call at a time.
class Ranks {
 public:
  virtual ~Ranks() = default;
  // Every rank gets the same bits.
  virtual void AllReduce(const void* in, void* out, size_t count, Element element, Reduction reduction) = 0;
  // Adds up block r of every rank's `in` on rank r, always in the order of ranks; blocks have `count` elements.
  virtual void ReduceScatter(const void* in, void* out, size_t count, Element element, Reduction reduction) = 0;
  // Sends send[r] to rank r and receives recv[r] from it; a part of size 0 is not sent. What a rank has for itself is copied.
  virtual void Exchange(const std::vector<Part>& send, const std::vector<Part>& recv) = 0;
};

struct Place {
  std::string clique;  // equal on all ranks of the clique, different from that of any other
  std::string host;    // the address of this process that the others reach it at
  int rank;
  int size;
  std::chrono::milliseconds connect_timeout;
  std::chrono::milliseconds timeout;  // of one collective
};

using Connect = std::unique_ptr<Ranks>(std::shared_ptr<Store> store, const Place& place);

}  // namespace xtrain::gloo_engine

#endif  // XTRAIN_CPP_GLOO_ENGINE_H_
