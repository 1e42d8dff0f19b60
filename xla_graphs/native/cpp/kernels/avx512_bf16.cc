// Matmul of bf16 on AVX-512's products of pairs (AVX512_BF16), f32 sums. AMD from Zen 4 on; on Intel it does
// half as many a cycle as a multiply-add of f32, and `kAvx512WidenedBf16` (avx512_f32.cc) is as fast. A word is a pair of neighbours along k, so that each instruction does twice the work of an f32 multiply-add.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS.
// Subnormals count as zero, in operands and in sums, as VDPBF16PS has it; NaN and infinities pass.

#include "attention_loops.h"
#include "broadcast_avx512.h"

namespace xtrain::kernels {
namespace {

struct Pairs {
  static constexpr bool kPairs = true, kRounds = false;
  struct State {
    State() {}
  };

  static inline __attribute__((always_inline)) __m512 MultiplyAdd(__m512 sums, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sums, (__m512bh)a, (__m512bh)b);
  }
};

}  // namespace

const Implementation kAvx512Bf16 = Implement<Broadcast<Pairs>>();

}  // namespace xtrain::kernels
