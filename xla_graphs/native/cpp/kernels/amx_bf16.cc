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

#include "amx_tiles.h"
// After the packing.
#include "attention_loops.h"

namespace xtrain::kernels {
namespace {

struct Amx : Tiles {
  static constexpr bool kTakesBf16 = true;
  using A = Order<kMr, true, true>;
  using B = Order<kNr, true, false>;
  static constexpr int64_t kKc = 384, kStep = 128, kAWords = 64 << 10;

  static double Spin(int64_t words) { return SpinOf<1>(words); }

  static void Tile(const Matmul& x, Rows panel, const uint32_t* b, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    const uint32_t* a = reinterpret_cast<const uint32_t*>(panel.at);
    if (to == nullptr) ExpectRows(x, at, rows, columns);
    Begin(from);
    const char *ahead = panel.ahead, *end = ahead + 64 * panel.lines;
    for (int64_t k = 0; k < words; k += 16, a += 512, b += 512) {
      if (ahead < end) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) Prefetch(ahead + 64 * i);
        ahead += 512;
      }
      tiles::Load<6>(b, 64);
      tiles::Load<4>(a, 64);
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::Load<7>(b + 256, 64);
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::Load<5>(a + 256, 64);
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::MultiplyAdd<3, 5, 7>();
    }
    if (to == nullptr && !x.c_bf16 && rows == 32 && columns == 32) {
      float* c = static_cast<float*>(x.c) + at;
      const int64_t pitch = x.c_strides[2];
      tiles::Store<0>(c, pitch * 4);
      tiles::Store<1>(c + 16, pitch * 4);
      tiles::Store<2>(c + 16 * pitch, pitch * 4);
      tiles::Store<3>(c + 16 * pitch + 16, pitch * 4);
      return;
    }
    alignas(64) float here[1024];
    float* sums = to == nullptr ? here : to;
    Store(sums);
    if (to == nullptr) Write(x, sums, at, rows, columns);
  }
};

}  // namespace

const Implementation kAmxBf16 = Implement<Amx>();

}  // namespace xtrain::kernels
