// Matmul of f32 on AMX's tiles, which multiply bf16 only: an f32 is the sum of three bf16 exactly, and of the nine products of two such
// sums six are added up. The three that are left out, and the rest of each f32's mantissa that they would hold, are below 2^-24 of the
// product: the error is that of sums in f32, as with AVX-512. Intel from Sapphire Rapids on.
//
// Registers: as amx_bf16.cc has them; a step of 32 along k loads 14 tiles and multiplies 24 times, 16 cycles each, so that panels
// of both operands may come from L2. Peak: 1/6 of bf16's, 2.5 times that of AVX-512's multiply-adds.
// Caches: words of k are three times as large as others', 12 bytes a pair. A's block takes up to 768 KB of the L2's 2 MB; a panel of B, 32
// columns x 384 pairs, 147 KB.
//
// Sources: Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations
// (2019); XLA's dot algorithm BF16_BF16_F32_X6, which is f32 on TPUs.
// Subnormals count as zero, in operands, in their pieces and in sums; so an operand below 2^-110 has fewer bits. Where a sum is not finite,
// pieces say less than what they are of (infinity less infinity is a NaN): it is computed again from whole f32, and others stay.

#include "amx_tiles.h"
#include "flush.h"
// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

struct AmxOfThree : Tiles {
  static constexpr bool kTakesBf16 = false;
  using A = Order<kMr, true, true, 3>;
  using B = Order<kNr, true, false, 3>;
  static constexpr int64_t kKc = 384, kStep = 384, kAWords = 192 << 10;

  static double Spin(int64_t words) { return SpinOf<6>(words); }

  // Where the second and third pieces of a panel's 16 words are.
  static constexpr int kSecond = 512, kThird = 1024;

  static void Tile(const Matmul& x, Rows panel, const uint32_t* right, int64_t words, const float* from, float* to, int64_t at, int rows,
                   int columns) {
    const uint32_t* const left = reinterpret_cast<const uint32_t*>(panel.at);
    if (to == nullptr) ExpectRows(x, at, rows, columns);
    Begin(from);
    // A few at a time: as many as lines can be on their way. If there are none, some that are here.
    const char *ahead = panel.lines > 0 ? panel.ahead : reinterpret_cast<const char*>(right), *const end = ahead + 64 * panel.lines;
    const auto prefetch = [&] {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) Prefetch(ahead + 64 * i);
      ahead += ahead < end ? 256 : 0;
    };
    const uint32_t *a = left, *b = right;
    for (int64_t k = 0; k < words; k += 16, a += A::kPerK * 16, b += B::kPerK * 16) {
      // First of A, third of B; the smallest products first. Tiles are loaded as soon as they are free.
      tiles::Load<6>(b + kThird, 64);
      tiles::Load<4>(a, 64);
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::Load<7>(b + kThird + 256, 64);
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::Load<5>(a + 256, 64);
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::Load<6>(b + kSecond, 64);
      tiles::MultiplyAdd<3, 5, 7>();
      tiles::Load<7>(b + kSecond + 256, 64);
      prefetch();
      // First, second.
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::Load<6>(b, 64);
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::MultiplyAdd<3, 5, 7>();
      tiles::Load<7>(b + 256, 64);
      prefetch();
      // First, first.
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::Load<4>(a + kThird, 64);
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::MultiplyAdd<3, 5, 7>();
      tiles::Load<5>(a + kThird + 256, 64);
      prefetch();
      // Third, first.
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::Load<4>(a + kSecond, 64);
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::MultiplyAdd<3, 5, 7>();
      tiles::Load<5>(a + kSecond + 256, 64);
      prefetch();
      // Second, first.
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::Load<6>(b + kSecond, 64);
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::MultiplyAdd<3, 5, 7>();
      tiles::Load<7>(b + kSecond + 256, 64);
      prefetch();
      // Second, second.
      tiles::MultiplyAdd<0, 4, 6>();
      tiles::MultiplyAdd<1, 4, 7>();
      tiles::MultiplyAdd<2, 5, 6>();
      tiles::MultiplyAdd<3, 5, 7>();
      prefetch();
    }
    alignas(64) float sums[kMr * kNr];
    Store(sums);
    if (!AreFinite(sums)) Mend(left, right, words, from, sums);
    if (to == nullptr) {
      Write(x, sums, at, rows, columns);
    } else {
      std::memcpy(to, sums, sizeof sums);
    }
  }

 private:
  static inline __attribute__((always_inline)) bool AreFinite(const float* sums) {
    __m512i most = _mm512_setzero_si512();
    for (int i = 0; i < kMr * kNr; i += 16) {
      most = _mm512_max_epu32(most, _mm512_slli_epi32(_mm512_load_si512(sums + i), 1));
    }
    return _mm512_cmpge_epu32_mask(most, _mm512_set1_epi32(static_cast<int>(0xff000000u))) == 0;
  }

  // Of 16 words of one piece and those of the other two: the f32, of neighbours along k the first (kIsOdd false) or the second.
  template <bool kIsOdd>
  static __m512 Joined(const uint32_t* words) {
    const auto piece = [words](int at) {
      const __m512i both = _mm512_load_si512(words + at);
      return _mm512_castsi512_ps(kIsOdd ? _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u))) : _mm512_slli_epi32(both, 16));
    };
    const __m512 first = piece(0), all = _mm512_add_ps(_mm512_add_ps(first, piece(kSecond)), piece(kThird));
    return _mm512_mask_mov_ps(all, _mm512_fpclass_ps_mask(first, kNanOrInfinity), first);
  }

  // Sums that are not finite, of whole f32.
  static __attribute__((noinline)) void Mend(const uint32_t* a, const uint32_t* b, int64_t words, const float* from, float* sums) {
    const FlushSubnormals flush;
    alignas(64) float whole[kMr * kNr] = {}, left[kMr][32], right[32][kNr];
    if (from != nullptr) std::memcpy(whole, from, sizeof whole);
    for (int64_t k = 0; k < words; k += 16, a += A::kPerK * 16, b += B::kPerK * 16) {
      for (int i = 0; i < 32; ++i) {
        const int at = i / 16 * 256 + i % 16 * 16;
        // Of a row of A 32 along k, those in even places first; of B a pair of neighbours along k in 16 columns.
        _mm512_store_ps(&left[i][0], Joined<false>(a + at));
        _mm512_store_ps(&left[i][16], Joined<true>(a + at));
        _mm512_store_ps(&right[i % 16][i / 16 * 16], Joined<false>(b + at));
        _mm512_store_ps(&right[16 + i % 16][i / 16 * 16], Joined<true>(b + at));
      }
      for (int i = 0; i < kMr; ++i) {
        float* const row = whole + SumAt(i, 0);
        __m512 low = _mm512_load_ps(row), high = _mm512_load_ps(row + 256);
        for (int j = 0; j < 32; ++j) {
          const __m512 value = _mm512_set1_ps(left[i][j]);
          low = _mm512_fmadd_ps(value, _mm512_load_ps(&right[j][0]), low);
          high = _mm512_fmadd_ps(value, _mm512_load_ps(&right[j][16]), high);
        }
        _mm512_store_ps(row, low), _mm512_store_ps(row + 256, high);
      }
    }
    for (int i = 0; i < kMr * kNr; i += 16) {
      const __mmask16 mended = _mm512_fpclass_ps_mask(_mm512_load_ps(sums + i), kNanOrInfinity);
      _mm512_mask_store_ps(sums + i, mended, _mm512_load_ps(whole + i));
    }
  }
};

}  // namespace

// Its attention would be that of AVX-512.
const Implementation kAmxF32 = {Gemm<AmxOfThree>::kShape, Gemm<AmxOfThree>::Work, AmxOfThree::Spin, {}};

}  // namespace xtrain::kernels
