// Softmax cross-entropy over rows of logits, each of which is read from memory once forward and once backward. XLA's CPU reads
// them for the maximum, for the exponentials' sum, for the gradient, and writes the gradient in f32 for those who round it.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_CROSS_ENTROPY_H_
#define XTRAIN_CPP_KERNELS_CROSS_ENTROPY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace xtrain::kernels {

struct Logits {
  const float* data;  // [rows, classes]
  int64_t rows, classes;

  // Rows that a thread claims at a time.
  int64_t Chunk() const { return std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(classes, 1)); }
  int64_t Chunks() const { return (rows + Chunk() - 1) / Chunk(); }
};

// Of each row the logarithm of the sum of the exponentials, to `log_sums`. Claims chunks of rows from `next` until none is left.
using LogSumsWork = void (*)(const Logits& logits, float* log_sums, std::atomic<int64_t>& next);

// (softmax - one-hot of the label) times the gradient of the row's loss; of a row whose gradient is 0 that is 0, whatever its
// logits are.
struct LogitGradients {
  Logits logits;
  const float* log_sums;        // what LogSumsWork gave
  const int32_t* labels;        // one that is no class hits none
  const float* loss_gradients;  // of each row's loss
  void* result;                 // [rows, classes], f32 or bf16
  bool is_bf16;
};
using LogitGradientsWork = void (*)(const LogitGradients& of, std::atomic<int64_t>& next);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_CROSS_ENTROPY_H_
