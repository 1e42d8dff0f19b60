// What loops in plain C++ share; see loops.h. Everything is in an unnamed namespace, so that no unit can be linked to another's code.

#ifndef XTRAIN_CPP_KERNELS_BITS_H_
#define XTRAIN_CPP_KERNELS_BITS_H_

#include <cstdint>
#include <cstring>

namespace xtrain::kernels {
namespace {

// Sums that run side by side.
constexpr int kLanes = 16;
// One value of each.
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// The upper half of the f32 is the bf16.
inline uint32_t Rounded(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  return value != value ? (bits | 0x400000) & 0xffff0000u : rounded;
}

inline __attribute__((always_inline)) float Read(float value) { return value; }
inline __attribute__((always_inline)) float Read(uint16_t bf16) { return FromBits(static_cast<uint32_t>(bf16) << 16); }
inline __attribute__((always_inline)) void Write(float value, float* to) { *to = value; }
inline __attribute__((always_inline)) void Write(float value, uint16_t* to) { *to = static_cast<uint16_t>(Rounded(value) >> 16); }

inline __attribute__((always_inline)) Lanes ReadLanes(const float* from) {
  Lanes values;
  std::memcpy(&values, from, sizeof values);
  return values;
}
inline __attribute__((always_inline)) Lanes ReadLanes(const uint16_t* from) {
  typedef uint16_t Narrow __attribute__((vector_size(2 * kLanes)));
  typedef uint32_t Wide __attribute__((vector_size(4 * kLanes)));
  Narrow bf16;
  std::memcpy(&bf16, from, sizeof bf16);
  return reinterpret_cast<Lanes>(__builtin_convertvector(bf16, Wide) << 16);
}

// e^x for x up to 0, within 2 ulp; 0 where it would be subnormal; of a NaN a NaN. Source: Cephes (Moshier), expf.
inline __attribute__((always_inline)) float Exponential(float x) {
  constexpr float kLeast = -87.3f;
  const float at = x < kLeast ? kLeast : x;
  // Beyond 2^23 an f32 has no fraction: its low bits are the integer that is nearest.
  const float shifted = at * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = at - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const float e = p * FromBits((Bits(shifted) + 127) << 23);
  return x < kLeast ? 0.0f : e;
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_BITS_H_
