// LayerNorm and RMSNorm over rows, each of which is read from memory once forward and once backward. XLA's CPU writes arrays of
// their size between the sums of a row and what they serve for, and again for the gradients of the parameters.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_NORM_H_
#define XTRAIN_CPP_KERNELS_NORM_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xtrain::kernels {

struct Norm {
  const float* x;  // [rows, width]
  int64_t rows, width;
  bool subtracts_mean;  // LayerNorm; else RMSNorm
  float eps;
  const float* scale;  // [width]

  // Rows that a thread claims at a time: sums over rows are made of these, whatever the number of threads.
  int64_t Chunk() const { return std::max<int64_t>(8, (rows + 63) / 64); }
  int64_t Chunks() const { return (rows + Chunk() - 1) / Chunk(); }
};

// What is normalized may be a sum, as where a layer's result is added to its input: `norm.x` and this, which gives `sum`.
struct Addend {
  const void* data = nullptr;  // [rows, width], f32 or bf16, or null
  bool is_bf16 = false;
  float* sum = nullptr;  // [rows, width]
};

struct NormForward {
  Norm norm;
  const float* shift;  // [width], or null
  void* result;        // [rows, width], f32 or bf16
  bool is_bf16;
  Addend addend = {};
};
// Claims chunks of rows from `next` until none is left.
using NormForwardWork = void (*)(const NormForward& of, std::atomic<int64_t>& next);

struct NormBackward {
  Norm norm;
  const float* dy;  // [rows, width]
  float* dx;        // [rows, width]
  float* sums;      // [chunks, 2, width]: of each chunk the gradients of scale and shift
  const float* addend = nullptr;  // [rows, width], added to dx, or null
  uint16_t* narrow = nullptr;     // [rows, width]: dx in bf16 besides, or null
};
using NormBackwardWork = void (*)(const NormBackward& of, std::atomic<int64_t>& next);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_NORM_H_
