// Products of a few rows with a matrix, y = x W, such as those of a generated token with a model's weights. They are bound by reading W:
// each element is read once, in the order in which it lies.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_GEMV_H_
#define XTRAIN_CPP_KERNELS_GEMV_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xtrain::kernels {

struct Gemv {
  // Rows of x that are multiplied at a time.
  static constexpr int64_t kMostRows = 4;
  // Columns of a part where W is [k, n]: a page of f32 in each row of W, and sums that stay in L1.
  static constexpr int64_t kWidest = 1024, kNarrowest = 128;

  int64_t m, n, k;  // m up to kMostRows
  const void* x;    // [m, k]
  const void* w;    // [k, n], or [n, k]
  void* y;          // [m, n]
  bool by_columns;  // W is [n, k]
  bool rounds;      // W, f32, is rounded to bf16 as it is read
  bool x_bf16, w_bf16, y_bf16;  // else f32
  int64_t columns;              // that a thread claims at a time

  int64_t Chunks() const { return (n + columns - 1) / columns; }

  // Columns of a part for this many threads. Each sum is one thread's, so that it has no influence on the bits.
  int64_t Columns(int64_t threads) const {
    // About 256 KB of W.
    if (by_columns) {
      const int64_t each = (n + 4 * threads - 1) / (4 * threads);
      return std::clamp<int64_t>(std::min(each, (int64_t{1} << 16) / std::max<int64_t>(k, 1)), 1, n);
    }
    // As many for each thread: rows of a part are short, and long pieces of them are read faster.
    const int64_t parts = threads * ((n + threads * kWidest - 1) / (threads * kWidest));
    return std::clamp<int64_t>(((n + parts - 1) / parts + 15) / 16 * 16, kNarrowest, kWidest);
  }
};
// Claims chunks of columns from `next` until none is left.
using GemvWork = void (*)(const Gemv& of, std::atomic<int64_t>& next);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GEMV_H_
