// The loops of LayerNorm and RMSNorm, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything
// is in an unnamed namespace, so that no unit can be linked to another's code.
//
// A row is read several times, and is in L1 from the second time on. The order of its sums is the same whatever the instruction set.

#ifndef XTRAIN_CPP_KERNELS_NORM_LOOPS_H_
#define XTRAIN_CPP_KERNELS_NORM_LOOPS_H_

#include <algorithm>
#include <array>
#include <cmath>

#include "bits.h"
#include "flush.h"
#include "norm.h"

namespace xtrain::kernels {
namespace {

// Reads one element, or those of all lanes, of arrays of a row.
template <class V>
struct At {
  int64_t column;

  inline __attribute__((always_inline)) V operator()(const float* row) const {
    V value;
    std::memcpy(&value, row + column, sizeof value);
    return value;
  }
};

// The sums of what `terms` makes of each column, `kCount` of them.
template <int kCount, class F>
inline __attribute__((always_inline)) std::array<float, kCount> SumsOver(int64_t width, F terms) {
  constexpr int kVectors = 4 / kCount;
  Lanes sums[kVectors][kCount] = {};
  int64_t i = 0;
  for (; i + kVectors * kLanes <= width; i += kVectors * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) terms(At<Lanes>{i + v * kLanes}, sums[v]);
  }
  for (; i + kLanes <= width; i += kLanes) terms(At<Lanes>{i}, sums[0]);
  float lanes[kLanes][kCount];
  for (int n = 0; n < kCount; ++n) {
    Lanes all = sums[0][n];
    for (int v = 1; v < kVectors; ++v) all += sums[v][n];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane][n] = all[lane];
  }
  for (int lane = 0; i < width; ++i, ++lane) terms(At<float>{i}, lanes[lane]);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      for (int n = 0; n < kCount; ++n) lanes[lane][n] += lanes[lane + half][n];
    }
  }
  std::array<float, kCount> result;
  std::copy_n(lanes[0], kCount, result.begin());
  return result;
}

// What a row is normalized by.
struct Moments {
  float mean, rstd;

  inline __attribute__((always_inline)) Moments(const Norm& norm, const float* x) : mean(0) {
    if (norm.subtracts_mean) mean = SumsOver<1>(norm.width, [x](auto at, auto& sums) { sums[0] += at(x); })[0] / norm.width;
    const auto squares = SumsOver<1>(norm.width, [x, m = mean](auto at, auto& sums) {
      const auto centered = at(x) - m;
      sums[0] += centered * centered;
    });
    rstd = 1.0f / std::sqrt(squares[0] / norm.width + norm.eps);
  }
};

template <class T>
inline void NormRow(const Norm& norm, const float* __restrict x, const float* __restrict shift, T* __restrict to) {
  const Moments by(norm, x);
  const float mean = by.mean, rstd = by.rstd;
  const float* __restrict scale = norm.scale;
  if (shift == nullptr) {
    for (int64_t i = 0; i < norm.width; ++i) Write((x[i] - mean) * rstd * scale[i], to + i);
  } else {
    for (int64_t i = 0; i < norm.width; ++i) Write((x[i] - mean) * rstd * scale[i] + shift[i], to + i);
  }
}

template <class T>
inline const float* AddRow(const float* __restrict x, const T* __restrict addend, int64_t width, float* __restrict sum) {
  for (int64_t i = 0; i < width; ++i) sum[i] = x[i] + Read(addend[i]);
  return sum;
}

inline void ForwardNorm(const NormForward& of, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  const int64_t rows = of.norm.Chunk(), width = of.norm.width;
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < of.norm.Chunks();) {
    for (int64_t row = chunk * rows; row < std::min(of.norm.rows, (chunk + 1) * rows); ++row) {
      const int64_t at = row * width;
      const float* x = of.norm.x + at;
      if (of.addend.data != nullptr) {
        x = of.addend.is_bf16 ? AddRow(x, static_cast<const uint16_t*>(of.addend.data) + at, width, of.addend.sum + at)
                              : AddRow(x, static_cast<const float*>(of.addend.data) + at, width, of.addend.sum + at);
      }
      if (of.is_bf16) {
        NormRow(of.norm, x, of.shift, static_cast<uint16_t*>(of.result) + at);
      } else {
        NormRow(of.norm, x, of.shift, static_cast<float*>(of.result) + at);
      }
    }
  }
}

// With xhat = (x - mean) * rstd and g = dy * scale: dx = (g - mean of g - xhat * mean of g * xhat) * rstd, the mean of g for LayerNorm
// only; dy * xhat is added to dscale, dy to dshift.
inline void NormGradientRow(const Norm& norm, const float* __restrict x, const float* __restrict dy, float* __restrict dx,
                            float* __restrict dscale, float* __restrict dshift) {
  const Moments by(norm, x);
  const float mean = by.mean, rstd = by.rstd;
  const float* __restrict scale = norm.scale;
  const int64_t width = norm.width;
  const auto sums = SumsOver<2>(width, [=](auto at, auto& sums) {
    const auto g = at(dy) * at(scale);
    sums[0] += g;
    sums[1] += g * ((at(x) - mean) * rstd);
  });
  const float of_g = norm.subtracts_mean ? sums[0] / width : 0, of_products = sums[1] / width;
  for (int64_t i = 0; i < width; ++i) {
    const float xhat = (x[i] - mean) * rstd;
    dx[i] = (dy[i] * scale[i] - of_g - xhat * of_products) * rstd;
    dscale[i] += dy[i] * xhat;
    dshift[i] += dy[i];
  }
}

inline void BackwardNorm(const NormBackward& of, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  const int64_t rows = of.norm.Chunk(), width = of.norm.width;
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < of.norm.Chunks();) {
    float* sums = of.sums + chunk * 2 * width;
    std::fill_n(sums, 2 * width, 0.0f);
    for (int64_t row = chunk * rows; row < std::min(of.norm.rows, (chunk + 1) * rows); ++row) {
      const int64_t at = row * width;
      float* __restrict dx = of.dx + at;
      NormGradientRow(of.norm, of.norm.x + at, of.dy + at, dx, sums, sums + width);
      if (of.addend != nullptr) {
        const float* __restrict addend = of.addend + at;
        for (int64_t i = 0; i < width; ++i) dx[i] += addend[i];
      }
      if (of.narrow != nullptr) {
        uint16_t* __restrict narrow = of.narrow + at;
        for (int64_t i = 0; i < width; ++i) Write(dx[i], narrow + i);
      }
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_NORM_LOOPS_H_
