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

struct NormForward {
  Norm norm;
  const float* shift;  // [width], or null
  void* result;        // [rows, width], f32 or bf16
  bool is_bf16;
};
// Claims chunks of rows from `next` until none is left.
using NormForwardWork = void (*)(const NormForward& of, std::atomic<int64_t>& next);

struct NormBackward {
  Norm norm;
  const float* dy;  // [rows, width]
  float* dx;        // [rows, width]
  float* sums;      // [chunks, 2, width]: of each chunk the gradients of scale and shift
};
using NormBackwardWork = void (*)(const NormBackward& of, std::atomic<int64_t>& next);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_NORM_H_
