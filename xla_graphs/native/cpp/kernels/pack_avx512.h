// Packing: an operand's rows, or columns, in the order in which a kernel reads them. Included by each kernel's own
// translation unit, with that unit's instruction set; everything is in an unnamed namespace, so that no unit can be linked
// to another's code.
//
// A kernel reads words of 32 bits: an f32, or two bf16 that are neighbours along k. Operands are seen as (r, k), where r is
// a row of A or a column of B. What lies along k is packed in blocks of 16 r by 16 words of k, which are transposed in registers if
// the kernel wants them the other way; what lies along r, a word of 32 r at a time. What is not there is zero.
//
// Packing is bound by memory. The hardware prefetcher follows few rows at a time; other lines are prefetched by software, into L2 only:
// L1 has too few fill buffers for all that are on their way.

#ifndef XTRAIN_CPP_KERNELS_PACK_AVX512_H_
#define XTRAIN_CPP_KERNELS_PACK_AVX512_H_

#include <immintrin.h>

#include <array>

#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

inline __attribute__((always_inline)) __m512 Widened(__m256i bf16) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
}

// f32 that are bf16: the nearest, of two the even one. A NaN stays one.
inline __attribute__((always_inline)) __m512 Rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i all = _mm512_mask_or_epi32(nearest, is_nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_ps(_mm512_and_si512(all, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

inline __attribute__((always_inline)) __m256i ToBf16(__m512 x) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(x);
#else
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(Rounded(x)), 16));
#endif
}

inline __attribute__((always_inline)) __m512i ToBf16(__m512 first, __m512 second) {
#ifdef __AVX512BF16__
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
#else
  return _mm512_inserti64x4(_mm512_castsi256_si512(ToBf16(first)), ToBf16(second), 1);
#endif
}

// Stores 16 columns of a row of C.
inline __attribute__((always_inline)) void StoreRow(const Matmul& x, int64_t offset, __mmask16 mask, __m512 value) {
  if (x.c_bf16) {
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(x.c) + offset, mask, ToBf16(value));
  } else {
    _mm512_mask_storeu_ps(static_cast<float*>(x.c) + offset, mask, value);
  }
}

// To L2.
inline __attribute__((always_inline)) void Prefetch(const void* line) { _mm_prefetch(static_cast<const char*>(line), _MM_HINT_T1); }

// Of f32 what is packed: themselves (kWhole), the nearest bf16 (kNearest), or one of the three bf16 that add up to each exactly. Each of
// the three is the nearest to what is left, so that the next has either sign: pieces too small for a large sum then add up to nothing.
// What would round to infinity is cut off.
constexpr int kWhole = -1, kNearest = -2;
// As VFPCLASSPS takes it.
constexpr int kNanOrInfinity = 0x99;
template <int kPiece>
inline __attribute__((always_inline)) __m512 PieceOf(__m512 x) {
  if constexpr (kPiece == kWhole) return x;
  if constexpr (kPiece == kNearest) return Rounded(x);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto up = [](__m512 value) { return _mm512_add_epi32(_mm512_castps_si512(value), _mm512_set1_epi32(0x8000)); };
  const __mmask16 cut = _mm512_fpclass_ps_mask(_mm512_castsi512_ps(up(x)), kNanOrInfinity);
  const __m512i nearest = _mm512_and_si512(up(x), upper);
  const __m512 first = _mm512_castsi512_ps(_mm512_mask_and_epi32(nearest, cut, _mm512_castps_si512(x), upper));
  if constexpr (kPiece == 0) return first;
  const __m512 rest = _mm512_sub_ps(x, first);
  const __m512 second = _mm512_castsi512_ps(_mm512_and_si512(up(rest), upper));
  if constexpr (kPiece == 1) return second;
  return _mm512_sub_ps(rest, second);
}

inline __attribute__((always_inline)) void Transpose16(__m512i (&x)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Loads of one block, whose masks are made once. kPiece: what of an f32 becomes a bf16. kPairs: words are pairs of bf16; else f32, and then along k
// only. kBf16: what is in memory.
template <bool kPairs, bool kBf16, bool kAlongK, int kPiece = kWhole>
struct Load {
  const Source& s;
  const int64_t r, k;
  // Along k: which elements of a row are there; `high` those of a second vector, which f32 for pairs need.
  // Along r: which rows are there.
  uint32_t low, high;
  // How many rows (along k), or elements of k (along r), are there from here on.
  int64_t left;

  inline __attribute__((always_inline)) Load(const Source& source, int64_t r, int64_t k) : s(source), r(r), k(k) {
    if constexpr (kAlongK) {
      const int64_t elements = s.k_size - (kPairs ? 2 * k : k);
      low = FirstBits(elements, kBf16 ? 32 : 16), high = FirstBits(elements - 16, 16), left = s.r_size - r;
    } else {
      low = FirstBits(s.r_size - r, 16), high = 0, left = s.k_size - (kPairs ? 2 * k : k);
    }
  }

  // Along k: 16 words of row r + i. Along r: word k + i of 16 rows. What is not there is zero.
  inline __attribute__((always_inline)) __m512i operator()(int i) const {
    if constexpr (kAlongK) {
      if (i >= left) return _mm512_setzero_si512();
      const int64_t at = (r + i) * s.r_stride + (kPairs ? 2 * k : k);
      // The line that the block below will read: rows are too far apart for the hardware prefetcher.
      Prefetch(static_cast<const char*>(s.data) + (at + 16 * s.r_stride) * (kBf16 ? 2 : 4));
      if constexpr (kPairs && !kBf16) Prefetch(static_cast<const char*>(s.data) + (at + 16 + 16 * s.r_stride) * 4);
      if constexpr (!kPairs) {
        if constexpr (kBf16) {
          const __m256i narrow = _mm256_maskz_loadu_epi16(static_cast<__mmask16>(low), static_cast<const uint16_t*>(s.data) + at);
          return _mm512_castps_si512(Widened(narrow));
        } else {
          return _mm512_castps_si512(PieceOf<kPiece>(_mm512_maskz_loadu_ps(low, static_cast<const float*>(s.data) + at)));
        }
      } else {
#ifdef __AVX512BF16__
        if constexpr (kBf16) return _mm512_maskz_loadu_epi16(low, static_cast<const uint16_t*>(s.data) + at);
        const float* p = static_cast<const float*>(s.data) + at;
        return (__m512i)_mm512_cvtne2ps_pbh(PieceOf<kPiece>(_mm512_maskz_loadu_ps(high, p + 16)), PieceOf<kPiece>(_mm512_maskz_loadu_ps(low, p)));
#endif
      }
    } else {
#ifdef __AVX512BF16__
      const int64_t at = 2 * (k + i) * s.k_stride + r;
      const uint32_t even = 2 * i < left ? low : 0, odd = 2 * i + 1 < left ? low : 0;
      if constexpr (kBf16) {
        const uint16_t* p = static_cast<const uint16_t*>(s.data) + at;
        Prefetch(p + 32 * s.k_stride);
        Prefetch(p + 33 * s.k_stride);
        const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(even, p));
        const __m512i y = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(odd, p + s.k_stride));
        return _mm512_or_si512(x, _mm512_slli_epi32(y, 16));
      } else {
        const float* p = static_cast<const float*>(s.data) + at;
        Prefetch(p + 32 * s.k_stride);
        Prefetch(p + 33 * s.k_stride);
        const __m512 x = PieceOf<kPiece>(_mm512_maskz_loadu_ps(even, p));
        const __m512 y = PieceOf<kPiece>(_mm512_maskz_loadu_ps(odd, p + s.k_stride));
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(y, x);
        const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                               20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        return _mm512_permutexvar_epi16(order, both);
      }
#endif
    }
  }
};

// A block of rows [r, r + 16) and words [k, k + 16) to `to`, one vector each `pitch` words: of one r if kRMajor, else of one
// k. `vectors` of them are stored, of each the first `width` words.
template <bool kPairs, bool kBf16, bool kAlongK, bool kRMajor, int kPiece = kWhole>
inline __attribute__((always_inline)) void PackBlock(const Source& s, int64_t r, int64_t k, uint32_t* to, int64_t pitch,
                                                     int vectors, int width) {
  const Load<kPairs, kBf16, kAlongK, kPiece> load(s, r, k);
  const __mmask16 mask = FirstBits(width, 16);
  if constexpr (kAlongK == kRMajor) {
    for (int i = 0; i < vectors; ++i) _mm512_mask_storeu_epi32(to + i * pitch, mask, load(i));
  } else {
    __m512i x[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = load(i);
    Transpose16(x);
    if (vectors == 16) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(to + i * pitch, mask, x[i]);
    } else {
      alignas(64) uint32_t all[256];
      for (int i = 0; i < 16; ++i) _mm512_store_si512(all + 16 * i, x[i]);
      for (int i = 0; i < vectors; ++i) _mm512_mask_storeu_epi32(to + i * pitch, mask, _mm512_load_si512(all + 16 * i));
    }
  }
}

// The order of packed words. A panel has kR rows and all words of k.
//   Words: for each word of k, kR rows (what broadcasting kernels read).
//   Tiles: for each 16 words of k, for each 16 rows, a tile of 16 x 16 words, of one r each 16 (kRMajor) or one k (else).
//   With kOf 3, tiles of each of the three pieces of f32 (`PieceOf`), one piece's after the other's.
//   With kRounds, words are f32, and those that are f32 in memory are rounded to bf16.
//   With kRowsStay, of words along k, a panel has its rows one behind the other, as a kernel reads them that reads rows where they are:
//   nothing is transposed.
template <int kR, bool kTiles, bool kRMajor, int kOf = 1, bool kRounds = false, bool kRowsStay = false>
struct Order {
  static_assert(!kRowsStay || (!kTiles && kOf == 1), "rows are no tiles");
  static constexpr bool kKeepsRows = kRowsStay;
  static_assert(kOf == 1 || (kOf == 3 && kTiles && kR == 32), "pieces lie in tiles");
  static constexpr int kPieces = kOf;
  // What of f32 is packed, if they are not in pieces.
  static constexpr int kPiece = kRounds ? kNearest : kWhole;
  // Words that are stored for each word of k.
  static constexpr int64_t kPerK = kR * kOf;
  static constexpr int kRows = kR;
  static constexpr bool kIsRMajor = kRMajor, kIsTiles = kTiles;
  // Words of k as stored.
  static int64_t Padded(int64_t words) { return kTiles ? (words + 15) / 16 * 16 : words; }
  static int64_t PanelWords(int64_t words) { return kPerK * Padded(words); }
  // Where word k of a panel begins, unless tiles are by r.
  static int64_t At(int64_t k) { return kTiles ? k / 16 * 16 * kPerK + k % 16 * 16 : k * kR; }

  template <bool kPairs, bool kBf16, bool kAlongK>
  static inline __attribute__((always_inline)) void Block(const Source& s, int64_t r0, int64_t k0, int64_t words, int r, int64_t k,
                                                          uint32_t* panel) {
    if constexpr (kPieces == 3) {
      uint32_t* const to = panel + (k * kPerK + r * 16);
      PackBlock<kPairs, kBf16, kAlongK, kRMajor, 0>(s, r0 + r, k0 + k, to, 16, 16, 16);
      PackBlock<kPairs, kBf16, kAlongK, kRMajor, 1>(s, r0 + r, k0 + k, to + 16 * kR, 16, 16, 16);
      PackBlock<kPairs, kBf16, kAlongK, kRMajor, 2>(s, r0 + r, k0 + k, to + 32 * kR, 16, 16, 16);
    } else if constexpr (kTiles) {
      PackBlock<kPairs, kBf16, kAlongK, kRMajor>(s, r0 + r, k0 + k, panel + (k * kR + r * 16), 16, 16, 16);
    } else {
      PackBlock<kPairs, kBf16, kAlongK, false, kPiece>(s, r0 + r, k0 + k, panel + k * kR + r, kR,
                                               static_cast<int>(std::min<int64_t>(16, words - k)), std::min(16, kR - r));
    }
  }
};

#ifdef __AVX512BF16__
// Pairs of neighbours along k of 32 rows: of 16 from the first on, and of 16 from kSecond on.
template <int kSecond>
inline __attribute__((always_inline)) void Interleave(__m512i even, __m512i odd, __m512i& first, __m512i& second) {
  alignas(64) static constexpr auto kOrders = [] {
    std::array<uint16_t, 64> orders{};
    for (int i = 0; i < 64; ++i) orders[i] = i / 32 * kSecond + i % 32 / 2 + i % 2 * 32;
    return orders;
  }();
  first = _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrders.data()), odd);
  second = _mm512_permutex2var_epi16(even, _mm512_load_si512(kOrders.data() + 32), odd);
}
#endif

// Words of up to 32 rows from r on that lie side by side: of 16 from the first on, and of 16 from kSecond on.
template <int kSecond, bool kPairs, bool kBf16>
class Across {
 public:
  inline __attribute__((always_inline)) Across(const Source& s, int64_t r)
      : s_(s), r_(r), low_(FirstBits(s.r_size - r, 32)), high_(FirstBits(s.r_size - r - kShift, 16)) {}

  template <int kPiece = kWhole>
  inline __attribute__((always_inline)) void operator()(int64_t k, int64_t ahead, __m512i& first, __m512i& second) const {
    if constexpr (!kPairs) {
      first = Row<kPiece>(k, ahead, second);
    } else {
#ifdef __AVX512BF16__
      Interleave<kSecond>(Pairs<kPiece>(2 * k, 2 * ahead), Pairs<kPiece>(2 * k + 1, 2 * ahead), first, second);
#endif
    }
  }

 private:
  // f32 that become bf16 are put side by side first.
  static constexpr int kShift = kPairs ? 16 : kSecond;

  // f32 of element k: of 16 rows from the first on, and `second` of those from kShift on.
  template <int kPiece>
  inline __attribute__((always_inline)) __m512i Row(int64_t k, int64_t ahead, __m512i& second) const {
    const int64_t at = k * s_.k_stride + r_;
    const __mmask16 low = k < s_.k_size ? low_ : 0, high = k < s_.k_size ? high_ : 0;
    if constexpr (kBf16) {
      const uint16_t* from = static_cast<const uint16_t*>(s_.data) + at;
      Prefetch(from + ahead * s_.k_stride);
      second = _mm512_castps_si512(Widened(_mm256_maskz_loadu_epi16(high, from + kShift)));
      return _mm512_castps_si512(Widened(_mm256_maskz_loadu_epi16(low, from)));
    } else {
      const float* from = static_cast<const float*>(s_.data) + at;
      Prefetch(from + ahead * s_.k_stride);
      Prefetch(from + ahead * s_.k_stride + kShift);
      second = _mm512_castps_si512(PieceOf<kPiece>(_mm512_maskz_loadu_ps(high, from + kShift)));
      return _mm512_castps_si512(PieceOf<kPiece>(_mm512_maskz_loadu_ps(low, from)));
    }
  }

#ifdef __AVX512BF16__
  // bf16 of element k of 32 rows.
  template <int kPiece>
  inline __attribute__((always_inline)) __m512i Pairs(int64_t k, int64_t ahead) const {
    if constexpr (kBf16) {
      const uint16_t* from = static_cast<const uint16_t*>(s_.data) + k * s_.k_stride + r_;
      Prefetch(from + ahead * s_.k_stride);
      return _mm512_maskz_loadu_epi16(k < s_.k_size ? low_ : 0, from);
    } else {
      __m512i high;
      const __m512i low = Row<kWhole>(k, ahead, high);
      return (__m512i)_mm512_cvtne2ps_pbh(PieceOf<kPiece>(_mm512_castsi512_ps(high)), PieceOf<kPiece>(_mm512_castsi512_ps(low)));
    }
  }
#endif

  const Source& s_;
  const int64_t r_;
  const __mmask32 low_;
  const __mmask16 high_;
};

// Packs `panels` panels from row r0 on, words [k0, k0 + words) of k, each `panel_words` behind the one before.
template <class O, bool kPairs, bool kBf16>
void Pack(const Source& source, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to, int64_t panel_words) {
  const Source s = source;
  if (s.k_stride == 1 && O::kKeepsRows) {
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t pitch = panel_words / O::kRows;
      for (int64_t k = 0; k < words; k += 16) {
        const Load<kPairs, kBf16, true, O::kPiece> load(s, r0 + p * O::kRows, k0 + k);
        const __mmask16 mask = FirstBits(words - k, 16);
        for (int r = 0; r < O::kRows; ++r) _mm512_mask_storeu_epi32(to + p * panel_words + r * pitch + k, mask, load(r));
      }
    }
  } else if (s.k_stride == 1) {
    for (int64_t p = 0; p < panels; ++p) {
      for (int r = 0; r < O::kRows; r += 16) {
        for (int64_t k = 0; k < words; k += 16) {
          O::template Block<kPairs, kBf16, true>(s, r0 + p * O::kRows, k0, words, r, k, to + p * panel_words);
        }
      }
    }
  } else if constexpr (O::kIsRMajor) {
    for (int64_t k = 0; k < words; k += 16) {
      for (int64_t p = 0; p < panels; ++p) {
        for (int r = 0; r < O::kRows; r += 16) {
          O::template Block<kPairs, kBf16, false>(s, r0 + p * O::kRows, k0, words, r, k, to + p * panel_words);
        }
      }
    }
  } else {
    // Of a panel of 32 rows both halves, of smaller ones two panels. More words at a time are more rows in memory than the
    // hardware prefetcher follows; fewer write the lines of panels piece by piece.
    constexpr bool kIsHalf = O::kRows < 16;
    constexpr int64_t kStep = 4, kPitch = O::kIsTiles ? 16 : O::kRows;
    constexpr __mmask16 kFirst = kIsHalf ? (1u << O::kRows) - 1 : 0xffff;
    const int64_t to_second = kIsHalf ? panel_words : O::kIsTiles ? 256 : 16;
    const int64_t padded = O::Padded(words);
    for (int64_t k = 0; k < padded; k += kStep) {
      const int64_t count = std::min(kStep, padded - k);
      for (int64_t p = 0; p < panels; p += kIsHalf ? 2 : 1) {
        const Across<kIsHalf ? O::kRows : 16, kPairs, kBf16> across(s, r0 + p * O::kRows);
        const __mmask16 of_second = kIsHalf && p + 1 == panels ? 0 : kFirst;
        uint32_t* at = to + p * panel_words + O::At(k);
        for (int64_t i = 0; i < count; ++i, at += kPitch) {
          __m512i first, second;
          if constexpr (O::kPieces == 3) {
            across.template operator()<0>(k0 + k + i, kStep, first, second);
            _mm512_store_si512(at, first), _mm512_store_si512(at + 256, second);
            across.template operator()<1>(k0 + k + i, kStep, first, second);
            _mm512_store_si512(at + 512, first), _mm512_store_si512(at + 768, second);
            across.template operator()<2>(k0 + k + i, kStep, first, second);
            _mm512_store_si512(at + 1024, first), _mm512_store_si512(at + 1280, second);
          } else {
            across.template operator()<O::kPiece>(k0 + k + i, kStep, first, second);
            _mm512_mask_storeu_epi32(at, kFirst, first);
            _mm512_mask_storeu_epi32(at + to_second, of_second, second);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_PACK_AVX512_H_
