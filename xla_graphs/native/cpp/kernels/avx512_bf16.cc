// Matmul of bf16 on AVX-512's products of pairs (AVX512_BF16), f32 sums. AMD from Zen 4 on; on Intel it serves where AMX is missing.
//
// Registers as in avx512_f32.cc, 14 rows x 2 vectors of 16 columns of sums; a word is a pair of neighbours along k, so that
// each instruction does twice the work of an f32 multiply-add.
// Caches: a panel of B, 32 columns x kc = 256 pairs, is 32 KB; A's block takes up to 512 KB of L2.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS.
// Subnormals count as zero, in operands and in sums, as VDPBF16PS has it; NaN and infinities pass.

#include "gemm.h"

namespace xtrain::kernels {
namespace {

struct Pairs {
  static constexpr int kMr = 14, kNr = 32;
  static constexpr bool kPairs = true;
  using A = Order<kMr, false, false>;
  using B = Order<kNr, false, false>;
  static constexpr int64_t kKc = 384, kAWords = 64 << 10;
  struct State {
    State() {}
  };

  static void Tile(const Matmul& x, const uint32_t* a, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at,
                   int rows, int columns) {
    if (to == nullptr) ExpectRows(x, at, rows, columns);
    __m512 sums[kMr][2];
    if (from == nullptr) {
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    } else {
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) {
        sums[i][0] = _mm512_loadu_ps(from + i * kNr);
        sums[i][1] = _mm512_loadu_ps(from + i * kNr + 16);
      }
    }
    for (int64_t k = 0; k < words; ++k, a += kMr, b += kNr) {
      const __m512bh left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) {
        const __m512bh row = (__m512bh)_mm512_set1_epi32(a[i]);
        sums[i][0] = _mm512_dpbf16_ps(sums[i][0], row, left);
        sums[i][1] = _mm512_dpbf16_ps(sums[i][1], row, right);
      }
    }
    if (to != nullptr) {
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) {
        _mm512_storeu_ps(to + i * kNr, sums[i][0]);
        _mm512_storeu_ps(to + i * kNr + 16, sums[i][1]);
      }
      return;
    }
    const __mmask16 left = FirstBits(columns, 16), right = FirstBits(columns - 16, 16);
#pragma GCC unroll 14
    for (int i = 0; i < kMr; ++i) {
      if (i < rows) {
        StoreRow(x, at + i * x.c_strides[2], left, sums[i][0]);
        StoreRow(x, at + i * x.c_strides[2] + 16, right, sums[i][1]);
      }
    }
  }
};

}  // namespace

const Implementation kAvx512Bf16 = {Gemm<Pairs>::MakePlan, Gemm<Pairs>::Work};

}  // namespace xtrain::kernels
