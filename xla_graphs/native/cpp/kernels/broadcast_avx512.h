// The kernel that broadcasts words of A: shared by the AVX-512 kernels, which differ in what one instruction multiplies.
//
// Registers: 14 rows x 2 vectors of 16 columns of sums, two vectors for B's 32 columns at one word of k, one for a word of A,
// broadcast: 31 of 32. Each word takes 28 multiply-adds, which two units do in 14 cycles, and 16 loads, which two ports do
// in 8. At the edges of C fewer rows and one vector of columns are computed. Five pointers reach the words of 14 rows, at 0, 1 and
// 2 times their distance.
// Caches: a panel of B, 32 columns x kc words, is read again for each panel of A, whose panels stream from L2 at 4 bytes a
// cycle.
//
// Source: Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication (2008).

#ifndef XTRAIN_CPP_KERNELS_BROADCAST_AVX512_H_
#define XTRAIN_CPP_KERNELS_BROADCAST_AVX512_H_

#include "pack_avx512.h"

// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

// P: kPairs, kRounds (whether f32 operands are rounded to bf16, which then are words of f32), State, and `MultiplyAdd(sums, words of A,
// words of B)`.
template <class P>
struct Broadcast {
  static constexpr int kMr = 14, kNr = 32;
  static constexpr bool kPairs = P::kPairs, kTakesBf16 = true;
  // Where words are what is in memory.
  static constexpr bool kReadsRows = !P::kRounds;
  using A = Order<kMr, false, false, 1, P::kRounds, !kPairs>;
  using B = Order<kNr, false, false, 1, P::kRounds>;
  // Panels of B of 96 KB: twice L1 or more, and still faster than to store and load the sums more often.
  static constexpr int64_t kKc = 768, kStep = kKc, kAWords = 64 << 10;
  static constexpr bool kBInL1 = false;
  static constexpr int SumAt(int row, int column) { return row * kNr + column; }
  using State = typename P::State;

  static inline __attribute__((always_inline)) __m512i Word(const char* at) {
    int32_t word;
    std::memcpy(&word, at, sizeof word);
    return _mm512_set1_epi32(word);
  }

  // kRows x 16 kVectors of C. Only the first `columns`, and of the last two rows those below `rows`, are written.
  template <int kRows, int kVectors>
  static void Part(const Matmul& x, Rows a, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    const char* every_third[(kRows + 2) / 3];
#pragma GCC unroll 5
    for (int i = 0; i < (kRows + 2) / 3; ++i) every_third[i] = a.at + 3 * i * a.row;
    __m512 sums[kRows][kVectors];
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = from == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(from + i * kNr + 16 * j);
      }
    }
    for (int64_t k = 0; k < words; ++k, b += kNr) {
      // One line of each row of the next panel: the hardware prefetcher does not follow 14 streams.
      if (a.prefetches_next && k % 16 == 0) {
        for (int i = kRows; i < 2 * kRows; ++i) Prefetch(a.at + i * a.row + k * 4);
      }
      if (k < a.lines) Prefetch(a.ahead + k * 64);
      __m512i right[kVectors];
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) right[j] = _mm512_loadu_si512(b + 16 * j);
#pragma GCC unroll 14
      for (int i = 0; i < kRows; ++i) {
        const __m512i left = Word(every_third[i / 3] + i % 3 * a.row + k * a.word);
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) sums[i][j] = P::MultiplyAdd(sums[i][j], left, right[j]);
      }
    }
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) {
        if (to != nullptr) {
          _mm512_storeu_ps(to + i * kNr + 16 * j, sums[i][j]);
        } else if (i < rows) {
          StoreRow(x, at + i * x.c_strides[2] + 16 * j, FirstBits(columns - 16 * j, 16), sums[i][j]);
        }
      }
    }
  }

  template <int kVectors>
  static void Panel(const Matmul& x, Rows a, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                    int columns) {
    switch ((rows + 1) / 2) {
      case 1:
        return Part<2, kVectors>(x, a, b, words, from, to, at, rows, columns);
      case 2:
        return Part<4, kVectors>(x, a, b, words, from, to, at, rows, columns);
      case 3:
        return Part<6, kVectors>(x, a, b, words, from, to, at, rows, columns);
      case 4:
        return Part<8, kVectors>(x, a, b, words, from, to, at, rows, columns);
      case 5:
        return Part<10, kVectors>(x, a, b, words, from, to, at, rows, columns);
      case 6:
        return Part<12, kVectors>(x, a, b, words, from, to, at, rows, columns);
      default:
        return Part<14, kVectors>(x, a, b, words, from, to, at, rows, columns);
    }
  }

  static double Spin(int64_t words) {
    const State state;
    __m512 sums[kMr][2];
    __m512i left = _mm512_setzero_si512(), right[2] = {left, left};
    __asm__ volatile("" : "+v"(left), "+v"(right[0]), "+v"(right[1]));
#pragma GCC unroll 14
    for (int i = 0; i < kMr; ++i) {
      sums[i][0] = sums[i][1] = _mm512_setzero_ps();
      // Equal sums would be one for the compiler.
      __asm__ volatile("" : "+v"(sums[i][0]), "+v"(sums[i][1]));
    }
    for (int64_t k = 0; k < words; ++k) {
#pragma GCC unroll 14
      for (int i = 0; i < kMr; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) sums[i][j] = P::MultiplyAdd(sums[i][j], left, right[j]);
      }
    }
#pragma GCC unroll 14
    for (int i = 0; i < kMr; ++i) __asm__ volatile("" : : "v"(sums[i][0]), "v"(sums[i][1]));
    return 2.0 * kMr * kNr * (kPairs ? 2 : 1) * words;
  }

  static void Tile(const Matmul& x, Rows a, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    if (to == nullptr) ExpectRows(x, at, rows, columns);
    if (columns > 16) {
      Panel<2>(x, a, b, words, from, to, at, rows, columns);
    } else {
      Panel<1>(x, a, b, words, from, to, at, rows, columns);
    }
  }
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_BROADCAST_AVX512_H_
