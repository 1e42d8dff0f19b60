// Matmul of f32 on AVX2's fused multiply-add: Intel from Haswell, AMD from Zen on, where there is no AVX-512.
//
// Registers: 6 rows x 2 vectors of 8 columns of sums, two vectors for B's 16 columns at one word of k, one for a word of A,
// broadcast: 15 of 16. Each word takes 12 multiply-adds, which two units do in 6 cycles, and 8 loads, which two ports do in 4.
// Caches: a panel of B, 16 columns x 256 words, is 16 KB, half of L1; A's block takes 128 KB of L2.
//
// Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#include <immintrin.h>

#include "pack_avx2.h"

// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

struct Avx2 {
  static constexpr int kMr = 6, kNr = 16;
  static constexpr bool kReadsRows = true;
  static constexpr bool kPairs = false, kTakesBf16 = false;
  using A = Order<kMr>;
  using B = Order<kNr>;
  static constexpr int64_t kKc = 256, kStep = kKc, kAWords = 32 << 10;
  static constexpr int SumAt(int row, int column) { return row * kNr + column; }
  struct State {
    State() {}
  };

  static void Tile(const Matmul& x, Rows a, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    if (to == nullptr) ExpectRows(x, at, rows, columns);
    __m256 sums[kMr][2];
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) sums[i][j] = from == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(from + i * kNr + 8 * j);
    }
    const char *left = a.at, *below = a.at + 3 * a.row;
    const float* right = reinterpret_cast<const float*>(b);
    for (int64_t k = 0; k < words; ++k, left += a.word, below += a.word, right += kNr) {
      const __m256 b0 = _mm256_loadu_ps(right), b1 = _mm256_loadu_ps(right + 8);
#pragma GCC unroll 6
      for (int i = 0; i < kMr; ++i) {
        const __m256 one = _mm256_broadcast_ss(reinterpret_cast<const float*>((i < 3 ? left : below) + i % 3 * a.row));
        sums[i][0] = _mm256_fmadd_ps(one, b0, sums[i][0]);
        sums[i][1] = _mm256_fmadd_ps(one, b1, sums[i][1]);
      }
    }
    alignas(32) float here[kMr * kNr];
    const bool is_whole = rows == kMr && columns == kNr;
    float* c = static_cast<float*>(x.c) + at;
    float* out = to != nullptr ? to : is_whole ? c : here;
    const int64_t pitch = to == nullptr && is_whole ? x.c_strides[2] : kNr;
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) {
      _mm256_storeu_ps(out + i * pitch, sums[i][0]);
      _mm256_storeu_ps(out + i * pitch + 8, sums[i][1]);
    }
    if (out != here) return;
    for (int i = 0; i < rows; ++i) std::memcpy(c + i * x.c_strides[2], here + i * kNr, columns * sizeof(float));
  }
};

}  // namespace

// Attention needs AVX-512.
const Implementation kAvx2F32 = {Gemm<Avx2>::MakePlan, Gemm<Avx2>::Work, {}};

}  // namespace xtrain::kernels
