// The loops of products of a few rows with a matrix, compiled once for each instruction set: plain C++ that a compiler makes vectors of.
// Everything is in an unnamed namespace, so that no unit can be linked to another's code.

#ifndef XTRAIN_CPP_KERNELS_GEMV_LOOPS_H_
#define XTRAIN_CPP_KERNELS_GEMV_LOOPS_H_

#include "bits.h"
#include "flush.h"
#include "gemv.h"

namespace xtrain::kernels {
namespace {

// An f32 that is rounded to bf16 as it is read.
struct RoundedWeight {
  float value;
};

inline __attribute__((always_inline)) float Read(RoundedWeight from) { return FromBits(Rounded(from.value)); }

inline __attribute__((always_inline)) Lanes ReadLanes(const RoundedWeight* from) {
  Lanes values;
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = Read(from[lane]);
  return values;
}

// The sum of all lanes, in halves.
inline float Total(const Lanes& lanes) {
  float sums[kLanes];
  std::memcpy(sums, &lanes, sizeof sums);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// The products of `kRows` rows with one column of W, which lies in a row.
template <int kRows, class X, class W>
inline __attribute__((always_inline)) void Column(const X* x, const W* w, int64_t k, float* to) {
  constexpr int kSides = kRows == 1 ? 4 : 2;  // sums that do not wait for each other
  Lanes sums[kRows][kSides] = {};
  int64_t i = 0;
  for (; i + kSides * kLanes <= k; i += kSides * kLanes) {
#pragma GCC unroll 4
    for (int side = 0; side < kSides; ++side) {
      const Lanes weights = ReadLanes(w + i + side * kLanes);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) sums[row][side] += ReadLanes(x + row * k + i + side * kLanes) * weights;
    }
  }
  for (; i + kLanes <= k; i += kLanes) {
    const Lanes weights = ReadLanes(w + i);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) sums[row][0] += ReadLanes(x + row * k + i) * weights;
  }
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row) {
    Lanes all = sums[row][0];
    for (int side = 1; side < kSides; ++side) all += sums[row][side];
    float total = Total(all);
    for (int64_t rest = i; rest < k; ++rest) total += Read(x[row * k + rest]) * Read(w[rest]);
    to[row] = total;
  }
}

// Adds the products of `kRows` rows with `kDeep` neighbouring rows of W to their sums, which lie `kWidest` apart.
template <int kRows, int kDeep, class X, class W>
inline __attribute__((always_inline)) void AddRows(const X* x, int64_t k, const W* w, int64_t n, int64_t columns, float* sums) {
  float values[kRows][kDeep];
  for (int row = 0; row < kRows; ++row) {
    for (int deep = 0; deep < kDeep; ++deep) values[row][deep] = Read(x[row * k + deep]);
  }
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) {
    Lanes weights[kDeep];
#pragma GCC unroll 8
    for (int deep = 0; deep < kDeep; ++deep) weights[deep] = ReadLanes(w + deep * n + i);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      float* to = sums + row * Gemv::kWidest + i;
      Lanes sum = ReadLanes(to);
#pragma GCC unroll 8
      for (int deep = 0; deep < kDeep; ++deep) sum += values[row][deep] * weights[deep];
      std::memcpy(to, &sum, sizeof sum);
    }
  }
  for (; i < columns; ++i) {
    for (int row = 0; row < kRows; ++row) {
      float sum = sums[row * Gemv::kWidest + i];
      for (int deep = 0; deep < kDeep; ++deep) sum += values[row][deep] * Read(w[deep * n + i]);
      sums[row * Gemv::kWidest + i] = sum;
    }
  }
}

inline void WriteSum(const Gemv& of, int64_t row, int64_t column, float sum) {
  const int64_t at = row * of.n + column;
  of.y_bf16 ? Write(sum, static_cast<uint16_t*>(of.y) + at) : Write(sum, static_cast<float*>(of.y) + at);
}

template <int kRows, class X, class W>
inline void GemvChunk(const Gemv& of, int64_t begin, int64_t end) {
  const X* x = static_cast<const X*>(of.x);
  const W* w = static_cast<const W*>(of.w);
  if (of.by_columns) {
    for (int64_t column = begin; column < end; ++column) {
      float sums[kRows];
      Column<kRows>(x, w + column * of.k, of.k, sums);
      for (int row = 0; row < kRows; ++row) WriteSum(of, row, column, sums[row]);
    }
    return;
  }
  constexpr int kDeep = 8;
  float sums[kRows * Gemv::kWidest] = {};
  int64_t i = 0;
  for (; i + kDeep <= of.k; i += kDeep) AddRows<kRows, kDeep>(x + i, of.k, w + i * of.n + begin, of.n, end - begin, sums);
  for (; i < of.k; ++i) AddRows<kRows, 1>(x + i, of.k, w + i * of.n + begin, of.n, end - begin, sums);
  for (int row = 0; row < kRows; ++row) {
    for (int64_t column = begin; column < end; ++column) WriteSum(of, row, column, sums[row * Gemv::kWidest + column - begin]);
  }
}

template <class X, class W>
inline void GemvRows(const Gemv& of, int64_t begin, int64_t end) {
  switch (of.m) {
    case 1:
      return GemvChunk<1, X, W>(of, begin, end);
    case 2:
      return GemvChunk<2, X, W>(of, begin, end);
    case 3:
      return GemvChunk<3, X, W>(of, begin, end);
    default:
      return GemvChunk<4, X, W>(of, begin, end);
  }
}

template <class X>
inline void GemvOf(const Gemv& of, int64_t begin, int64_t end) {
  if (of.w_bf16) return GemvRows<X, uint16_t>(of, begin, end);
  of.rounds ? GemvRows<X, RoundedWeight>(of, begin, end) : GemvRows<X, float>(of, begin, end);
}

inline void Gemvs(const Gemv& of, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < of.Chunks();) {
    const int64_t begin = chunk * of.columns, end = std::min(begin + of.columns, of.n);
    of.x_bf16 ? GemvOf<uint16_t>(of, begin, end) : GemvOf<float>(of, begin, end);
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GEMV_LOOPS_H_
