// The loops of cross-entropy, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything is in
// an unnamed namespace, so that no unit can be linked to another's code.
//
// A block of a row is read twice, for its maximum and for its exponentials, and is in L1 the second time; sums that began under a
// lower maximum are scaled. 16 sums run side by side whatever the instruction set.
//
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax (2018).

#ifndef XTRAIN_CPP_KERNELS_CROSS_ENTROPY_LOOPS_H_
#define XTRAIN_CPP_KERNELS_CROSS_ENTROPY_LOOPS_H_

#include <cmath>
#include <limits>

#include "bits.h"
#include "cross_entropy.h"
#include "flush.h"

namespace xtrain::kernels {
namespace {

// The highest of `count` elements and `most`, NaN left aside. As vectors: of an array's lanes GCC compares one at a time.
inline float Highest(const float* x, int64_t count, float most) {
  Lanes highest = most - Lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes here;
    std::memcpy(&here, x + i, sizeof here);
    highest = here > highest ? here : highest;
  }
  for (; i < count; ++i) most = x[i] > most ? x[i] : most;
  for (int lane = 0; lane < kLanes; ++lane) most = highest[lane] > most ? highest[lane] : most;
  return most;
}

// A NaN if there is one, or no class is possible, as the difference of two infinities.
inline float LogSum(const float* row, int64_t classes) {
  constexpr int64_t kRowBlock = 2048;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  float most = kNone;
  float sums[kLanes] = {};
  for (int64_t begin = 0; begin < classes; begin += kRowBlock) {
    const float* x = row + begin;
    const int64_t count = std::min(kRowBlock, classes - begin), whole = count / kLanes * kLanes;
    const float now = Highest(x, count, most);
    if (now > most) {
      const float scale = Exponential(most - now);
      for (float& sum : sums) sum *= scale;
      most = now;
    }
    const float by = most == kNone ? 0.0f : most;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] += Exponential(x[i + lane] - by);
    }
    for (int64_t i = whole; i < count; ++i) sums[i - whole] += Exponential(x[i] - by);
  }
  double sum = 0;
  for (const float part : sums) sum += part;
  return most == kNone ? most - most : most + static_cast<float>(std::log(sum));
}

inline void LogSums(const Logits& logits, float* log_sums, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  const int64_t rows = logits.Chunk();
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < logits.Chunks();) {
    for (int64_t row = chunk * rows; row < std::min(logits.rows, (chunk + 1) * rows); ++row) {
      log_sums[row] = LogSum(logits.data + row * logits.classes, logits.classes);
    }
  }
}

template <class T>
inline void GradientRow(const float* __restrict x, int64_t classes, float log_sum, int32_t label, float loss_gradient, T* __restrict to) {
  if (loss_gradient == 0) {
    std::fill_n(to, classes, T{});
    return;
  }
  for (int64_t i = 0; i < classes; ++i) Write(Exponential(x[i] - log_sum) * loss_gradient, to + i);
  if (label >= 0 && label < classes) Write((Exponential(x[label] - log_sum) - 1.0f) * loss_gradient, to + label);
}

inline void Gradients(const LogitGradients& of, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  const int64_t rows = of.logits.Chunk(), classes = of.logits.classes;
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < of.logits.Chunks();) {
    for (int64_t row = chunk * rows; row < std::min(of.logits.rows, (chunk + 1) * rows); ++row) {
      const float* x = of.logits.data + row * classes;
      if (of.is_bf16) {
        GradientRow(x, classes, of.log_sums[row], of.labels[row], of.loss_gradients[row], static_cast<uint16_t*>(of.result) + row * classes);
      } else {
        GradientRow(x, classes, of.log_sums[row], of.labels[row], of.loss_gradients[row], static_cast<float*>(of.result) + row * classes);
      }
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_CROSS_ENTROPY_LOOPS_H_
