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

inline __attribute__((always_inline)) void Write(float value, float* to) { *to = value; }
inline __attribute__((always_inline)) void Write(float value, uint16_t* to) { *to = static_cast<uint16_t>(Rounded(value) >> 16); }

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_BITS_H_
