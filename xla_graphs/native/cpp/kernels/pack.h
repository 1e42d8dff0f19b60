// What packing is about, whatever the instruction set: operands as a kernel sees them, and memory for the packed. Included by
// each kernel's own translation unit; everything is in an unnamed namespace, so that no unit can be linked to another's code.

#ifndef XTRAIN_CPP_KERNELS_PACK_H_
#define XTRAIN_CPP_KERNELS_PACK_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace xtrain::kernels {
namespace {

// Memory that a thread keeps between calls: fresh pages would cost more than small matmuls do.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  // At least this many words, aligned to pages; what was there is lost.
  uint32_t* Words(int64_t words) {
    if (words > words_) {
      std::free(data_);
      words_ = 0;
      const size_t bytes = (static_cast<size_t>(words) * 4 + 4095) / 4096 * 4096;
      data_ = static_cast<uint32_t*>(std::aligned_alloc(4096, bytes));
      if (data_ == nullptr) throw std::bad_alloc();
      words_ = bytes / 4;
    }
    return data_;
  }

 private:
  uint32_t* data_ = nullptr;
  int64_t words_ = 0;
};

// One operand of one batch, as (r, k).
struct Source {
  const void* data;
  int64_t r_stride, k_stride;
  int64_t r_size, k_size;
};

// A's rows as a kernel reads them: word k of row i is `at + i * row + k * word`, in bytes; whatever the order of a panel that is
// packed for it, `at` is where it begins.
struct Rows {
  const char* at;
  int64_t row, word;
  bool prefetches_next;  // the rows below are read next, for the first time: the kernel prefetches them
  // Lines that other tiles read soon, perhaps from L3: the kernel prefetches as many of them as it can on the way.
  const char* ahead = nullptr;
  int64_t lines = 0;

  Rows From(int64_t k) const { return {at + k * word, row, word, prefetches_next}; }
};

inline uint32_t FirstBits(int64_t count, int64_t most) {
  count = std::min(std::max<int64_t>(count, 0), most);
  return count == 32 ? ~0u : (1u << count) - 1;
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_PACK_H_
