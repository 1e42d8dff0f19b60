// AMX's tiles as a matmul uses them: 8 of 16 rows x 64 bytes. 0 to 3 hold 32 x 32 of C, 4 and 5 hold 32 rows of A, 6 and 7 hold
// 32 columns of B. Included by each kernel's own translation unit, before gemm.h.

#ifndef XTRAIN_CPP_KERNELS_AMX_TILES_H_
#define XTRAIN_CPP_KERNELS_AMX_TILES_H_

#include "pack_avx512.h"

namespace xtrain::kernels {
namespace {

#ifndef XTRAIN_EMULATES_TILES  // as tests do
// AMX's instructions. Not the compilers' intrinsics: Clang 13 releases the tiles at the end of every function that has one, and GCC's
// `_tile_loadconfig` says of 8 bytes only that it reads them. No more than those of GCC do `Load` and `Store` say which memory they touch.
namespace tiles {

inline __attribute__((always_inline)) void Configure(const void* shapes) {
  __asm__ volatile("ldtilecfg %0" : : "m"(*static_cast<const char(*)[64]>(shapes)));
}

inline __attribute__((always_inline)) void Release() { __asm__ volatile("tilerelease"); }

template <int kTo>
inline __attribute__((always_inline)) void Zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTo));
}

// 16 rows of 64 bytes, `stride` bytes apart.
template <int kTo>
inline __attribute__((always_inline)) void Load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTo));
}

template <int kFrom>
inline __attribute__((always_inline)) void Store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kFrom) : "memory");
}

// f32 sums += A B, of pairs of bf16.
template <int kSums, int kA, int kB>
inline __attribute__((always_inline)) void MultiplyAdd() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace tiles
#endif

struct Tiles {
  static constexpr int kMr = 32, kNr = 32;
  static constexpr bool kReadsRows = false, kBInL1 = false;
  static constexpr bool kPairs = true;

  static constexpr int SumAt(int row, int column) { return row / 16 * 512 + column / 16 * 256 + row % 16 * 16 + column % 16; }

  struct Shapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };

  // The tiles are configured for as long as a thread works.
  struct State {
    State() {
      alignas(64) static constexpr Shapes kShapes;
      tiles::Configure(&kShapes);
    }
    ~State() { tiles::Release(); }
  };

  // Products of tiles of bf16, `kProducts` of them for one of the kernel's own type.
  template <int kProducts>
  static double SpinOf(int64_t words) {
    const State state;
    Begin(nullptr);
    tiles::Zero<4>();
    tiles::Zero<5>();
    tiles::Zero<6>();
    tiles::Zero<7>();
    const int64_t steps = words / 16;
    for (int64_t k = 0; k < steps; ++k) {
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::MultiplyAdd<3, 5, 7>();
    }
    return 2.0 * kMr * kNr * 32 * steps / kProducts;
  }

  // C as it is before: `from`, or 0.
  static inline __attribute__((always_inline)) void Begin(const float* from) {
    // What tiles are loaded from is written: `Load` does not say that it reads memory.
    __asm__ volatile("" : : : "memory");
    if (from == nullptr) {
      tiles::Zero<0>();
      tiles::Zero<1>();
      tiles::Zero<2>();
      tiles::Zero<3>();
    } else {
      tiles::Load<0>(from, 64);
      tiles::Load<1>(from + 256, 64);
      tiles::Load<2>(from + 512, 64);
      tiles::Load<3>(from + 768, 64);
    }
  }

  static inline __attribute__((always_inline)) void Store(float* sums) {
    tiles::Store<0>(sums, 64);
    tiles::Store<1>(sums + 256, 64);
    tiles::Store<2>(sums + 512, 64);
    tiles::Store<3>(sums + 768, 64);
  }

  // Sums, as tiles are stored, to C.
  static inline __attribute__((always_inline)) void Write(const Matmul& x, const float* sums, int64_t at, int rows, int columns) {
    if (x.c_bf16 && columns == 32) {
      // Whole lines, if C is aligned.
      for (int i = 0; i < rows; ++i) {
        const float* row = sums + SumAt(i, 0);
        const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(row + 256), _mm512_load_ps(row));
        _mm512_storeu_si512(static_cast<uint16_t*>(x.c) + at + i * x.c_strides[2], (__m512i)both);
      }
      return;
    }
    const __mmask16 left = FirstBits(columns, 16), right = FirstBits(columns - 16, 16);
    for (int i = 0; i < rows; ++i) {
      const float* row = sums + SumAt(i, 0);
      StoreRow(x, at + i * x.c_strides[2], left, _mm512_load_ps(row));
      if (columns > 16) StoreRow(x, at + i * x.c_strides[2] + 16, right, _mm512_load_ps(row + 256));
    }
  }
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_AMX_TILES_H_
