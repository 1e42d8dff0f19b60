// What attention computes of each score, 16 at a time: powers of 2, tanh, and the random words of its dropout. Included by each
// kernel's own translation unit.

#ifndef XTRAIN_CPP_KERNELS_ATTENTION_MATH_H_
#define XTRAIN_CPP_KERNELS_ATTENTION_MATH_H_

#include <immintrin.h>

#include "attention.h"

namespace xtrain::kernels {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

// 2^x, within 2 ulp; 0 for what is far below 0. Source: Cephes (Moshier), exp2f.
inline __attribute__((always_inline)) __m512 Exp2(__m512 x) {
  // In this order a NaN stays.
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
  const __m512 n = _mm512_roundscale_ps(x, 0x08), r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.535336188319500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.339887440266574e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.618437357674640e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.550332471162809e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.402264791363012e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.931472028550421e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// Source: Cephes (Moshier), tanhf.
inline __attribute__((always_inline)) __m512 Tanh(__m512 x) {
  const __m512 size = _mm512_abs_ps(x), square = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(2.06390887954e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-5.37397155531e-2f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(1.33314422036e-1f));
  p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(-3.33332819422e-1f));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, square), x, x);
  const __m512 e = Exp2(_mm512_mul_ps(size, _mm512_set1_ps(-2 * kLog2E))), one = _mm512_set1_ps(1.0f);
  const __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
  const __m512 signed_far = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(far), sign));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GE_OQ), p, signed_far);
}

// The first word of Threefry-2x32 with 13 rounds for 16 elements, by their rows and places in these, as `nn/dropout.rs` writes it in
// XLA's operations.
class Threefry {
 public:
  explicit Threefry(const AttentionDropout& dropout) {
    keys_[0] = dropout.key[0], keys_[1] = dropout.key[1] + dropout.stream;
    keys_[2] = keys_[0] ^ keys_[1] ^ 0x1bd11bdau;
  }

  inline __attribute__((always_inline)) __m512i operator()(__m512i rows, __m512i places) const {
    __m512i x0 = _mm512_add_epi32(places, Word(keys_[0]));
    __m512i x1 = _mm512_add_epi32(rows, Word(keys_[1]));
    Rounds<13, 15, 26, 6>(x0, x1);
    Inject(x0, x1, 1);
    Rounds<17, 29, 16, 24>(x0, x1);
    Inject(x0, x1, 2);
    Rounds<13, 15, 26, 6>(x0, x1);
    Inject(x0, x1, 3);
    return _mm512_add_epi32(x0, x1);  // the 13th round, of which only the first word is read
  }

 private:
  static inline __attribute__((always_inline)) __m512i Word(uint32_t x) { return _mm512_set1_epi32(static_cast<int32_t>(x)); }

  template <int kA, int kB, int kC, int kD>
  static inline __attribute__((always_inline)) void Rounds(__m512i& x0, __m512i& x1) {
    Round<kA>(x0, x1);
    Round<kB>(x0, x1);
    Round<kC>(x0, x1);
    Round<kD>(x0, x1);
  }

  template <int kBits>
  static inline __attribute__((always_inline)) void Round(__m512i& x0, __m512i& x1) {
    x0 = _mm512_add_epi32(x0, x1);
    x1 = _mm512_xor_si512(_mm512_rol_epi32(x1, kBits), x0);
  }

  inline __attribute__((always_inline)) void Inject(__m512i& x0, __m512i& x1, uint32_t number) const {
    x0 = _mm512_add_epi32(x0, Word(keys_[number % 3]));
    x1 = _mm512_add_epi32(x1, Word(keys_[(number + 1) % 3] + number));
  }

  uint32_t keys_[3];
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ATTENTION_MATH_H_
