// Matmul of f32 on AVX-512: exact products of f32, as XLA's own dots are.

#include "attention_loops.h"
#include "broadcast_avx512.h"

namespace xtrain::kernels {
namespace {

struct Singles {
  static constexpr bool kPairs = false;

  static inline __attribute__((always_inline)) __m512 MultiplyAdd(__m512 sums, __m512i a, __m512i b) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sums);
  }
};

}  // namespace

const Implementation kAvx512F32 = Implement<Broadcast<Singles>>();

}  // namespace xtrain::kernels
