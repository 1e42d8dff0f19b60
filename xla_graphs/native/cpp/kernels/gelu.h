// The Gaussian error linear unit, its derivative and the logistic function of one element, in plain C++ that a compiler makes vectors of.
// Everything is in an unnamed namespace, so that no unit can be linked to another's code.
//
// gelu(x) = x Phi(x) and gelu'(x) = Phi(x) + x Phi'(x). Exactly, Phi is the normal distribution; in the tanh form it is
// (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Both are made for -|x|, where nothing cancels.
//
// Source: Hendrycks and Gimpel, Gaussian error linear units (2016).

#ifndef XTRAIN_CPP_KERNELS_GELU_H_
#define XTRAIN_CPP_KERNELS_GELU_H_

#include "bits.h"

namespace xtrain::kernels {
namespace {

// Of -|x|: Phi and Phi'.
struct Normal {
  float below, slope;
};

inline __attribute__((always_inline)) Normal TanhForm(float size) {
  // Both are 0 long before this, whose square is finite.
  size = size > 1000.0f ? 1000.0f : size;
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

template <bool kTanh>
inline __attribute__((always_inline)) float GeluOf(float x) {
  const float size = x < 0 ? -x : x;
  const Normal normal = kTanh ? TanhForm(size) : ExactForm(size);
  return x * (x < 0 ? normal.below : 1.0f - normal.below);
}

template <bool kTanh>
inline __attribute__((always_inline)) float GeluSlope(float x) {
  const float size = x < 0 ? -x : x;
  const Normal normal = kTanh ? TanhForm(size) : ExactForm(size);
  return (x < 0 ? normal.below : 1.0f - normal.below) + x * normal.slope;
}

inline __attribute__((always_inline)) float Logistic(float x) {
  const float e = Exponential(x < 0 ? x : -x), part = 1.0f / (1.0f + e);
  return x < 0 ? e * part : part;
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GELU_H_
