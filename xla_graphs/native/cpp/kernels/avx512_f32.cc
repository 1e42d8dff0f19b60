// Matmul of f32 on AVX-512: exact products of f32, as XLA's own dots are.
//
// Registers: 14 rows x 2 vectors of 16 columns of sums, two vectors for B's 32 columns at one k, one for an element of A,
// broadcast: 31 of 32. Each k takes 28 multiply-adds, which two units do in 14 cycles, and 16 loads, which two ports do in 8.
// Caches: a panel of B, 32 columns x kc = 256, is 32 KB and stays in L1 (48 KB; where it is 32, L2 helps out); A's panels
// stream from L2 at 4 bytes a cycle.
//
// Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#include "gemm.h"

namespace xtrain::kernels {
namespace {

struct Broadcast {
  static constexpr int kMr = 14, kNr = 32;
  static constexpr bool kPairs = false;
  using A = Order<kMr, false, false>;
  using B = Order<kNr, false, false>;
  static constexpr int64_t kKc = 768, kAWords = 64 << 10;
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
      const __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) {
        float value;
        __builtin_memcpy(&value, a + i, 4);
        const __m512 row = _mm512_set1_ps(value);
        sums[i][0] = _mm512_fmadd_ps(row, left, sums[i][0]);
        sums[i][1] = _mm512_fmadd_ps(row, right, sums[i][1]);
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

const Implementation kAvx512F32 = {Gemm<Broadcast>::MakePlan, Gemm<Broadcast>::Work};

}  // namespace xtrain::kernels
