// The loops of GELU, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything is in an unnamed
// namespace, so that no unit can be linked to another's code.
//
// gelu(x) = x Phi(x) and gelu'(x) = Phi(x) + x Phi'(x). Exactly, Phi is the normal distribution; in the tanh form it is
// (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Both are made for -|x|, where nothing cancels.
//
// Source: Hendrycks and Gimpel, Gaussian error linear units (2016).

#ifndef XTRAIN_CPP_KERNELS_GELU_LOOPS_H_
#define XTRAIN_CPP_KERNELS_GELU_LOOPS_H_

#include <algorithm>

#include "bits.h"
#include "flush.h"
#include "gelu.h"

namespace xtrain::kernels {
namespace {

// Of -|x|: Phi and Phi'.
struct Normal {
  float below, slope;
};

inline __attribute__((always_inline)) Normal TanhForm(float size) {
  constexpr float kTwice = 1.59576912160573f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
  const float square = size * size;
  const float e = Exponential(-kTwice * (size + kCubic * square * size));
  const float part = 1.0f / (1.0f + e), below = e * part;
  return {below, below * part * (kTwice + 3 * kCubic * kTwice * square)};
}

// Phi(-a sqrt(2)) = erfc(a) / 2 = e^(-a^2) t q(t) / 2 with t = 1 / (1 + 0.3 a): q is fitted, within 2e-8.
inline __attribute__((always_inline)) Normal ExactForm(float size) {
  const float e = Exponential(-0.5f * size * size), t = 1.0f / (1.0f + 0.212132034f * size);
  float q = -0.129478793f;
  q = q * t + 0.485331452f;
  q = q * t - 0.511756034f;
  q = q * t + 0.547062462f;
  q = q * t - 0.0941449492f;
  q = q * t + 0.214683176f;
  q = q * t + 0.148410175f;
  q = q * t + 0.17070369f;
  q = q * t + 0.169188802f;
  return {0.5f * e * (q * t), 0.398942280f * e};
}

template <bool kTanh, class T, class R>
inline void ForwardGelu(const T* __restrict x, int64_t count, R* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const float at = Read(x[i]), size = at < 0 ? -at : at;
    const Normal normal = kTanh ? TanhForm(size) : ExactForm(size);
    Write(at * (at < 0 ? normal.below : 1.0f - normal.below), to + i);
  }
}

template <bool kTanh, class T, class R>
inline void BackwardGelu(const T* __restrict x, const T* __restrict dy, int64_t count, R* __restrict to) {
  for (int64_t i = 0; i < count; ++i) {
    const float at = Read(x[i]), size = at < 0 ? -at : at;
    const Normal normal = kTanh ? TanhForm(size) : ExactForm(size);
    const float slope = (at < 0 ? normal.below : 1.0f - normal.below) + at * normal.slope;
    Write(Read(dy[i]) * slope, to + i);
  }
}

// In blocks, each of which prefetches the next: the instructions of an element are many, which leaves few loads in flight.
template <class T, class R>
inline void GeluChunk(const Gelu& of, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 256;
  for (; begin < end; begin += kBlock) {
    const int64_t count = std::min(kBlock, end - begin);
    const T *x = static_cast<const T*>(of.x) + begin, *dy = of.dy == nullptr ? nullptr : static_cast<const T*>(of.dy) + begin;
    R* to = static_cast<R*>(of.result) + begin;
    for (int64_t i = kBlock; i < 2 * kBlock; i += 64 / sizeof(T)) {
      __builtin_prefetch(x + i);
      if (dy != nullptr) __builtin_prefetch(dy + i);
    }
    if (dy == nullptr) {
      of.is_tanh ? ForwardGelu<true>(x, count, to) : ForwardGelu<false>(x, count, to);
    } else {
      of.is_tanh ? BackwardGelu<true>(x, dy, count, to) : BackwardGelu<false>(x, dy, count, to);
    }
  }
}

inline void Gelus(const Gelu& of, std::atomic<int64_t>& next) {
  const FlushSubnormals flush;
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < of.Chunks();) {
    const int64_t begin = chunk * Gelu::kChunk, end = std::min(begin + Gelu::kChunk, of.elements);
    if (of.x_bf16) {
      of.result_bf16 ? GeluChunk<uint16_t, uint16_t>(of, begin, end) : GeluChunk<uint16_t, float>(of, begin, end);
    } else {
      of.result_bf16 ? GeluChunk<float, uint16_t>(of, begin, end) : GeluChunk<float, float>(of, begin, end);
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GELU_LOOPS_H_
