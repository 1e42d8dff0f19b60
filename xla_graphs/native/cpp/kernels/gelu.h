// Gaussian error linear units and their gradients, each array read once: XLA's CPU computes the tanh or the error function once for
// both passes and keeps it in memory between them.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_GELU_H_
#define XTRAIN_CPP_KERNELS_GELU_H_

#include <atomic>
#include <cstdint>

namespace xtrain::kernels {

struct Gelu {
  bool is_tanh;        // the tanh form; else the exact one
  int64_t elements;
  const void* x;
  const void* dy;      // backward, of x's type; else null
  void* result;        // backward the gradient of x
  bool x_bf16, result_bf16;  // else f32

  // Elements that a thread claims at a time.
  static constexpr int64_t kChunk = 1 << 14;
  int64_t Chunks() const { return (elements + kChunk - 1) / kChunk; }
};
// Claims chunks from `next` until none is left.
using GeluWork = void (*)(const Gelu& of, std::atomic<int64_t>& next);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GELU_H_
