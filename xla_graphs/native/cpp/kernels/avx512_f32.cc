// Matmul on AVX-512's multiply-adds of f32: exact products of f32, as XLA's own dots are; and of bf16, which are widened as they are packed,
// for processors whose products of pairs of bf16 are slower (Intel's without AMX) or missing. Those of attention are by the same tile.
// Of bf16 subnormals count as zero, as with other kernels for them.

#include "attention_loops.h"
#include "broadcast_avx512.h"
#include "flush.h"

namespace xtrain::kernels {
namespace {

struct Singles {
  static constexpr bool kPairs = false, kRounds = false;
  struct State {
    State() {}
  };

  static inline __attribute__((always_inline)) __m512 MultiplyAdd(__m512 sums, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums);
  }
};

struct Widening : Singles {
  static constexpr bool kRounds = true;
  using State = FlushSubnormals;
};

}  // namespace

const Implementation kAvx512F32 = Implement<Broadcast<Singles>>();
const Implementation kAvx512WidenedBf16 = Implement<Broadcast<Widening>, Broadcast<Singles>>();

}  // namespace xtrain::kernels
