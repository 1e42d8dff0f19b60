// Numbers in 8 bits, as xla_graphs/src/nn/block_codes.rs has them: 256 entries up to 1, decade by decade, whose numbers are the
// codes.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_BLOCK_CODES_H_
#define XTRAIN_CPP_KERNELS_BLOCK_CODES_H_

#include <cfloat>
#include <cmath>

namespace xtrain::kernels {
namespace {

constexpr int kDecades = 8;

// A map's decades, the last of which is the number 1.
struct Decades {
  float from[kDecades];    // numbers of the decade begin here, as they are nearest to its entries
  float first[kDecades];   // the number of its first entry
  float factor[kDecades];  // what makes them numbers from 1 to 10
};

// The exponents of a map's first decade and of its last.
template <bool kSigned>
constexpr int kFirstExponent = kSigned ? 0 : 1;
template <bool kSigned>
constexpr int kLastExponent = kFirstExponent<kSigned> + kDecades - 1;

constexpr double Power(double of, int exponent) { return exponent == 0 ? 1 : of * Power(of, exponent - 1); }

// The entry with a number from 1, of exponent floor(log2(number)).
template <bool kSigned>
constexpr double Entry(double number, int exponent) {
  const double part = (number + 0.5) / Power(2, exponent);
  const double value = (9 * part - 8) / Power(10, kLastExponent<kSigned> - exponent);
  return value < 1 ? value : 1;
}

template <bool kSigned>
constexpr Decades MakeDecades() {
  Decades decades = {};
  for (int d = 0; d < kDecades; ++d) {
    const int exponent = kFirstExponent<kSigned> + d;
    const double first = Power(2, exponent);
    const double below = d == 0 ? 0 : Entry<kSigned>(first - 1, exponent - 1);
    decades.from[d] = static_cast<float>((below + Entry<kSigned>(first, exponent)) / 2);
    decades.first[d] = static_cast<float>(first);
    decades.factor[d] = static_cast<float>(Power(10, kLastExponent<kSigned> - exponent));
  }
  return decades;
}

template <bool kSigned>
constexpr Decades kDecadesOf = MakeDecades<kSigned>();

// The 256 entries, by code.
struct EntryTable {
  float at[256];
};

template <bool kSigned>
constexpr EntryTable MakeEntries() {
  EntryTable entries = {};
  for (int code = 0; code < 256; ++code) {
    const int number = !kSigned ? code + 1 : code < 127 ? 127 - code : code - 127;
    int exponent = 0;
    while (number >> (exponent + 1)) ++exponent;
    const double entry = number < (kSigned ? 1 : 2) ? 0 : Entry<kSigned>(number, exponent);
    entries.at[code] = static_cast<float>(kSigned && code < 127 ? -entry : entry);
  }
  return entries;
}

template <bool kSigned>
constexpr EntryTable kEntriesOf = MakeEntries<kSigned>();

// The code of the entry nearest to x / scale.
template <bool kSigned>
inline __attribute__((always_inline)) float Code(float x, float scale) {
  constexpr const Decades& decades = kDecadesOf<kSigned>;
  // A block of zeros has any codes.
  const float value = x / (scale > FLT_MIN ? scale : FLT_MIN), size = kSigned ? std::fabs(value) : value;
  float first = kSigned ? 0 : 1, factor = 0;
  for (int d = 0; d < kDecades; ++d) {
    first = size >= decades.from[d] ? decades.first[d] : first;
    factor = size >= decades.from[d] ? decades.factor[d] : factor;
  }
  float number = static_cast<float>(static_cast<int>((size * factor + 8) * (1.0f / 9) * first));
  // Between two decades the nearest may be in the one that a number is not in.
  number = number < 2 * first - 1 ? number : 2 * first - 1;
  number = number > first ? number : first;
  if (!kSigned) return number - 1;
  // There is no -1.
  return value < 0 ? 127 - (number < 127 ? number : 127) : 127 + number;
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_BLOCK_CODES_H_
