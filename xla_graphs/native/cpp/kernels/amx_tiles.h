// AMX's tiles as a matmul uses them: 8 of 16 rows x 64 bytes. 0 to 3 hold 32 x 32 of C, 4 and 5 hold 32 rows of A, 6 and 7 hold
// 32 columns of B. Included by each kernel's own translation unit, before gemm.h.

#ifndef XTRAIN_CPP_KERNELS_AMX_TILES_H_
#define XTRAIN_CPP_KERNELS_AMX_TILES_H_

#include "pack_avx512.h"

namespace xtrain::kernels {
namespace {

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

  // The tiles are configured for as long as a thread works. From a constant: GCC's intrinsic says of 8 bytes only that it reads them, so
  // that stores to the others of a variable are dead to the optimizer.
  struct State {
    State() {
      alignas(64) static constexpr Shapes kShapes;
      _tile_loadconfig(&kShapes);
    }
    ~State() { _tile_release(); }
  };

  // Products of tiles of bf16, `kProducts` of them for one of the kernel's own type.
  template <int kProducts>
  static double SpinOf(int64_t words) {
    const State state;
    Begin(nullptr);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    const int64_t steps = words / 16;
    for (int64_t k = 0; k < steps; ++k) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    return 2.0 * kMr * kNr * 32 * steps / kProducts;
  }

  // C as it is before: `from`, or 0.
  static inline __attribute__((always_inline)) void Begin(const float* from) {
    // What tiles are loaded from is written: the intrinsics do not say that they read memory.
    __asm__ volatile("" : : : "memory");
    if (from == nullptr) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    } else {
      _tile_loadd(0, from, 64);
      _tile_loadd(1, from + 256, 64);
      _tile_loadd(2, from + 512, 64);
      _tile_loadd(3, from + 768, 64);
    }
  }

  static inline __attribute__((always_inline)) void Store(float* sums) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
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
