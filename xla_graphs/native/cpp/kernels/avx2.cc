// Matmul on AVX2's fused multiply-add: of f32, and of bf16, which are widened as they are packed. Intel from Haswell, AMD from Zen on, where
// there is no AVX-512.
//
// Registers: 6 rows x 2 vectors of 8 columns of sums, two vectors for B's 16 columns at one word of k, one for a word of A,
// broadcast: 15 of 16. Each word takes 12 multiply-adds, which two units do in 6 cycles, and 8 loads, which two ports do in 4.
// Caches: a panel of B, 16 columns x 256 words, is 16 KB, half of L1; A's block takes 128 KB of L2.
//
// Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).
// Of bf16 subnormals count as zero, as with other kernels for them.

#include <immintrin.h>

#include "flush.h"
#include "pack_avx2.h"

// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

// kWidens: operands and results may be bf16, and operands that are f32 are rounded to it.
template <bool kWidens>
struct Avx2 {
  static constexpr int kMr = 6, kNr = 16;
  // Where words are what is in memory.
  static constexpr bool kReadsRows = !kWidens;
  static constexpr bool kPairs = false, kTakesBf16 = kWidens;
  using A = Order<kMr, kWidens, kWidens>;
  using B = Order<kNr, kWidens>;
  static constexpr int64_t kKc = 256, kStep = kKc, kAWords = 32 << 10;
  static constexpr bool kBInL1 = true;
  static constexpr int SumAt(int row, int column) { return row * kNr + column; }
  struct None {
    None() {}
  };
  using State = std::conditional_t<kWidens, FlushSubnormals, None>;

  static double Spin(int64_t words) {
    const State state;
    __m256 sums[kMr][2], left = _mm256_setzero_ps(), right[2] = {left, left};
    __asm__ volatile("" : "+x"(left), "+x"(right[0]), "+x"(right[1]));
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) {
      sums[i][0] = sums[i][1] = _mm256_setzero_ps();
      // Equal sums would be one for the compiler.
      __asm__ volatile("" : "+x"(sums[i][0]), "+x"(sums[i][1]));
    }
    for (int64_t k = 0; k < words; ++k) {
#pragma GCC unroll 6
      for (int i = 0; i < kMr; ++i) {
        sums[i][0] = _mm256_fmadd_ps(left, right[0], sums[i][0]);
        sums[i][1] = _mm256_fmadd_ps(left, right[1], sums[i][1]);
      }
    }
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) __asm__ volatile("" : : "x"(sums[i][0]), "x"(sums[i][1]));
    return 2.0 * kMr * kNr * words;
  }

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
    const bool is_whole = rows == kMr && columns == kNr;
    if (kWidens && to == nullptr && x.c_bf16 && is_whole) {
      uint16_t* c = static_cast<uint16_t*>(x.c) + at;
#pragma GCC unroll 6
      for (int i = 0; i < kMr; ++i) {
        StoreBf16(sums[i][0], c + i * x.c_strides[2]);
        StoreBf16(sums[i][1], c + i * x.c_strides[2] + 8);
      }
      return;
    }
    alignas(32) float here[kMr * kNr];
    const bool is_direct = to == nullptr && is_whole && !x.c_bf16;
    float* out = to != nullptr ? to : is_direct ? static_cast<float*>(x.c) + at : here;
    const int64_t pitch = is_direct ? x.c_strides[2] : kNr;
#pragma GCC unroll 6
    for (int i = 0; i < kMr; ++i) {
      _mm256_storeu_ps(out + i * pitch, sums[i][0]);
      _mm256_storeu_ps(out + i * pitch + 8, sums[i][1]);
    }
    if (out != here) return;
    for (int i = 0; i < rows; ++i, at += x.c_strides[2]) {
      if (!x.c_bf16) std::memcpy(static_cast<float*>(x.c) + at, here + i * kNr, columns * sizeof(float));
      for (int j = 0; j < columns && x.c_bf16; ++j) Write(here[i * kNr + j], static_cast<uint16_t*>(x.c) + at + j);
    }
  }
};

// Attention needs AVX-512.
template <class K>
constexpr Implementation WithoutAttention() {
  return {Gemm<K>::kShape, Gemm<K>::Work, K::Spin, {}};
}

}  // namespace

const Implementation kAvx2F32 = WithoutAttention<Avx2<false>>();
const Implementation kAvx2WidenedBf16 = WithoutAttention<Avx2<true>>();

}  // namespace xtrain::kernels
