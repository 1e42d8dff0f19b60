// Packing for AVX2: words are f32, bf16 are widened. What lies along the rows of a panel is copied; what lies along k is copied too if the
// kernel reads rows, else turned word by word. Included by the kernel's own translation unit.

#ifndef XTRAIN_CPP_KERNELS_PACK_AVX2_H_
#define XTRAIN_CPP_KERNELS_PACK_AVX2_H_

#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "bits.h"
#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

// A panel has kR rows for each word of k, one word after the other.
//   With kRounds, what is f32 in memory is rounded to bf16.
//   With kRowsStay, of words along k, a panel has its rows one behind the other, as a kernel reads them that reads rows where they are.
template <int kR, bool kRounds = false, bool kRowsStay = false>
struct Order {
  static constexpr int kRows = kR, kPieces = 1;
  static constexpr bool kKeepsRows = kRowsStay, kIsTiles = false, kIsRounded = kRounds;
  static constexpr int64_t kPerK = kR;
  static int64_t PanelWords(int64_t words) { return kR * words; }
};

// f32 that are bf16: the nearest, of two the even one. A NaN stays one.
inline __attribute__((always_inline)) __m256i Rounded(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
  const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_and_si256(_mm256_blendv_epi8(nearest, nan, is_nan), _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}

// Stores 8 values as bf16.
inline __attribute__((always_inline)) void StoreBf16(__m256 x, uint16_t* to) {
  const __m256i upper = _mm256_srli_epi32(Rounded(x), 16);
  const __m128i both = _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), both);
}

// Elements as the words that are packed.
template <bool kRounds>
struct Reader {
  static inline __attribute__((always_inline)) __m256i Eight(const uint16_t* from) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))), 16);
  }
  static inline __attribute__((always_inline)) __m256i Eight(const float* from) {
    const __m256 x = _mm256_loadu_ps(from);
    return kRounds ? Rounded(x) : _mm256_castps_si256(x);
  }
  static inline __attribute__((always_inline)) uint32_t One(const uint16_t* from) { return static_cast<uint32_t>(*from) << 16; }
  static inline __attribute__((always_inline)) uint32_t One(const float* from) {
    return kRounds ? Rounded(*from) : Bits(*from);
  }
  // `count` of them, side by side.
  template <class T>
  static inline __attribute__((always_inline)) void Copy(const T* from, int64_t count, uint32_t* to) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), Eight(from + i));
    for (; i < count; ++i) to[i] = One(from + i);
  }
};

// Packs `panels` panels from row r0 on, words [k0, k0 + words) of k, each `panel_words` behind the one before; what is not
// there is zero.
template <class O, bool kPairs, bool kBf16>
void Pack(const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to, int64_t panel_words) {
  static_assert(!kPairs, "words are f32");
  using T = std::conditional_t<kBf16, uint16_t, float>;
  using Read = Reader<O::kIsRounded>;
  constexpr int kR = O::kRows;
  const T* from = static_cast<const T*>(s.data);
  const int64_t there = std::max<int64_t>(0, std::min(words, s.k_size - k0));
  for (int64_t p = 0; p < panels; ++p, to += panel_words) {
    const int64_t r = r0 + p * kR, rows = std::min<int64_t>(kR, s.r_size - r);
    const T* panel = from + r * s.r_stride + k0 * s.k_stride;
    if (O::kKeepsRows && s.k_stride == 1) {
      const int64_t pitch = panel_words / kR;
      for (int64_t i = 0; i < kR; ++i) {
        const int64_t count = i < rows ? there : 0;
        Read::Copy(panel + i * s.r_stride, count, to + i * pitch);
        std::memset(to + i * pitch + count, 0, (words - count) * sizeof(uint32_t));
      }
      continue;
    }
    if (rows < kR || there < words) std::memset(to, 0, O::PanelWords(words) * sizeof(uint32_t));
    if (s.r_stride == 1 && rows == kR) {
      for (int64_t k = 0; k < there; ++k) Read::Copy(panel + k * s.k_stride, kR, to + k * kR);
    } else if (s.r_stride == 1) {
      for (int64_t k = 0; k < there; ++k) Read::Copy(panel + k * s.k_stride, rows, to + k * kR);
    } else {
      // Eight words of each row at a time: a line of `to` is written while it is near.
      for (int64_t k = 0; k < there; k += 8) {
        const int64_t end = std::min(there, k + 8);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t at = k; at < end; ++at) to[at * kR + i] = Read::One(panel + i * s.r_stride + at * s.k_stride);
        }
      }
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_PACK_AVX2_H_
