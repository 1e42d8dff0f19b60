// Matmul of bf16 on AMX's tiles, f32 sums. Intel from Sapphire Rapids on.
//
// Registers: 8 tiles of 16 rows x 64 bytes. 2 x 2 of them hold 32 x 32 of C, two hold 32 rows of A (32 of k, as they are),
// two hold 32 columns of B (16 pairs of k, neighbours along k side by side). A step of 32 along k loads four tiles, 8 cycles
// each from L1, and multiplies four times, 16 cycles each: the multiplier is never short of loads that hit L1 or L2.
// Caches: 128 pairs of a panel of B, 32 columns, are 16 KB, a third of L1, while panels of A come from L2 at half of what that
// gives: the tiles' 16 cycles are then nearly all of the time (3,000 of 3,270 GFLOP/s); with 384 pairs, which fill L1, B comes
// from L2 as well (1,700). A's block takes up to 256 KB of the L2's 2 MB, for 768 KB leave
// no room for what B's panels are prefetched to; a panel's sums take 128 bytes a row.
//
// Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX.
// Subnormals count as zero, in operands and in sums, as AMX has it; NaN and infinities pass.

#include "attention_loops.h"

namespace xtrain::kernels {
namespace {

struct Amx {
  static constexpr int kMr = 32, kNr = 32;
  static constexpr bool kReadsRows = false;
  static constexpr bool kPairs = true;
  using A = Order<kMr, true, true>;
  using B = Order<kNr, true, false>;
  static constexpr int64_t kKc = 384, kStep = 128, kAWords = 64 << 10;

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

  static void Tile(const Matmul& x, Rows panel, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    const uint32_t* a = reinterpret_cast<const uint32_t*>(panel.at);
    if (to == nullptr) ExpectRows(x, at, rows, columns);
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
    const char *ahead = panel.ahead, *end = ahead + 64 * panel.lines;
    for (int64_t k = 0; k < words; k += 16, a += 512, b += 512) {
      if (ahead < end) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) Prefetch(ahead + 64 * i);
        ahead += 512;
      }
      _tile_loadd(6, b, 64);
      _tile_loadd(4, a, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + 256, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a + 256, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (to == nullptr && !x.c_bf16 && rows == 32 && columns == 32) {
      float* c = static_cast<float*>(x.c) + at;
      const int64_t pitch = x.c_strides[2];
      _tile_stored(0, c, pitch * 4);
      _tile_stored(1, c + 16, pitch * 4);
      _tile_stored(2, c + 16 * pitch, pitch * 4);
      _tile_stored(3, c + 16 * pitch + 16, pitch * 4);
      return;
    }
    alignas(64) float here[1024];
    float* sums = to == nullptr ? here : to;
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    if (to != nullptr) return;
    if (x.c_bf16 && columns == 32) {
      // Whole lines, if C is aligned.
      for (int i = 0; i < rows; ++i) {
        const float* row = sums + i / 16 * 512 + i % 16 * 16;
        const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_load_ps(row + 256), _mm512_load_ps(row));
        _mm512_storeu_si512(static_cast<uint16_t*>(x.c) + at + i * x.c_strides[2], (__m512i)both);
      }
      return;
    }
    const __mmask16 left = FirstBits(columns, 16), right = FirstBits(columns - 16, 16);
    for (int i = 0; i < rows; ++i) {
      const float* row = sums + i / 16 * 512 + i % 16 * 16;
      StoreRow(x, at + i * x.c_strides[2], left, _mm512_load_ps(row));
      if (columns > 16) StoreRow(x, at + i * x.c_strides[2] + 16, right, _mm512_load_ps(row + 256));
    }
  }
};

}  // namespace

const Implementation kAmxBf16 = Implement<Amx>();

}  // namespace xtrain::kernels
