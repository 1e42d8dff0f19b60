// The loops around a kernel, the same for each. Included by each kernel's own translation unit, as pack_avx512.h is.
//
// A part of C, mt x nt, belongs to one thread. Its loops, from the outside in:
//
//   k in steps of kc      A's block (mt x kc) is packed and stays in the L2 cache
//   n in groups           B's block (kc x a few panels) is packed, read once and used mt / kMr times
//   n in panels of kNr    one panel of B stays in the L1 cache
//   m in panels of kMr    the kernel: kMr x kNr of C in registers, over kc, panels of A streaming from L2
//
// Between two steps of k, C's sums wait in f32 in a buffer in L2, as the kernel stores its registers; they resume exactly
// where they were, so that blocking changes no bit. The last step writes C.

#ifndef XTRAIN_CPP_KERNELS_GEMM_H_
#define XTRAIN_CPP_KERNELS_GEMM_H_

#include "matmul.h"
#include "pack_avx512.h"

namespace xtrain::kernels {
namespace {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `size` in as few even pieces of at most `most` as possible, each a multiple of `unit`.
inline int64_t Even(int64_t size, int64_t most, int64_t unit) {
  const int64_t pieces = CeilDiv(size, std::max(most, unit));
  return CeilDiv(CeilDiv(size, pieces), unit) * unit;
}

// Stores 16 columns of a row of C.
inline __attribute__((always_inline)) void StoreRow(const Matmul& x, int64_t offset, __mmask16 mask, __m512 value) {
  if (x.c_bf16) {
#ifdef __AVX512BF16__
    uint16_t* to = static_cast<uint16_t*>(x.c) + offset;
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(value));
#endif
  } else {
    _mm512_mask_storeu_ps(static_cast<float*>(x.c) + offset, mask, value);
  }
}

// K: kMr, kNr, kPairs, Orders A and B, the sizes kKc (words of k at a time), kAWords and kCWords (what a part's blocks may
// take of L2), kGroup (columns of B packed at a time), and `Tile`, the kernel proper.
template <class K>
struct Gemm {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;

  static Plan MakePlan(const Matmul& x, int threads) {
    Plan plan;
    const int64_t words = CeilDiv(x.k, kPerWord);
    plan.kc = Even(words, K::kKc, 16);
    const bool resumes = plan.kc < words;
    const int64_t most_m = std::max<int64_t>(K::kAWords / plan.kc, K::kMr);
    plan.mt = Even(x.m, most_m, K::kMr);
    const int64_t most_n = resumes ? K::kCWords / plan.mt : K::kMostN;
    plan.nt = Even(x.n, most_n, K::kNr);
    // Enough parts for every thread: of an even number each while there are few.
    const int64_t batches = x.batch[0] * x.batch[1];
    auto parts = [&] { return batches * CeilDiv(x.m, plan.mt) * CeilDiv(x.n, plan.nt); };
    while (threads > 1 && parts() < 4 * threads && parts() % threads != 0) {
      if (plan.nt > 4 * K::kNr && plan.nt >= plan.mt) {
        plan.nt = CeilDiv(CeilDiv(plan.nt, 2), K::kNr) * K::kNr;
      } else if (plan.mt > 2 * K::kMr) {
        plan.mt = CeilDiv(CeilDiv(plan.mt, 2), K::kMr) * K::kMr;
      } else if (plan.nt > K::kNr) {
        plan.nt = CeilDiv(CeilDiv(plan.nt, 2), K::kNr) * K::kNr;
      } else {
        break;
      }
    }
    plan.m_parts = CeilDiv(x.m, plan.mt);
    plan.n_parts = CeilDiv(x.n, plan.nt);
    plan.parts = batches * plan.m_parts * plan.n_parts;
    return plan;
  }

  static void PackA(const Matmul& x, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to) {
    if (K::kPairs && x.a_bf16) {
      Pack<typename K::A, K::kPairs, true>(s, r0, panels, k0, words, to);
    } else {
      Pack<typename K::A, K::kPairs, false>(s, r0, panels, k0, words, to);
    }
  }

  static void PackB(const Matmul& x, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to) {
    if (K::kPairs && x.b_bf16) {
      Pack<typename K::B, K::kPairs, true>(s, r0, panels, k0, words, to);
    } else {
      Pack<typename K::B, K::kPairs, false>(s, r0, panels, k0, words, to);
    }
  }

  static void Work(const Matmul& x, const Plan& plan, std::atomic<int64_t>& next) {
    static thread_local Scratch a_scratch, b_scratch, c_scratch;
    const int64_t words = CeilDiv(x.k, kPerWord);
    const int64_t m_panels = plan.mt / K::kMr, n_panels = plan.nt / K::kNr;
    const int64_t group = std::min<int64_t>(K::kGroup, n_panels);
    uint32_t* a = a_scratch.Words(m_panels * K::A::PanelWords(plan.kc));
    uint32_t* b = b_scratch.Words(group * K::B::PanelWords(plan.kc));
    float* c = nullptr;
    if (plan.kc < words) c = reinterpret_cast<float*>(c_scratch.Words(plan.mt * plan.nt));
    typename K::State state;
    int64_t packed = -1;  // the block of A that is packed, if k is not divided
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < plan.parts;) {
      const int64_t of_m = part / plan.n_parts;
      const int64_t batch = of_m / plan.m_parts;
      const int64_t p = batch / x.batch[1], q = batch % x.batch[1];
      const int64_t m0 = of_m % plan.m_parts * plan.mt, n0 = part % plan.n_parts * plan.nt;
      const int64_t m_size = std::min(plan.mt, x.m - m0), n_size = std::min(plan.nt, x.n - n0);
      const int64_t a_panels = CeilDiv(m_size, K::kMr), b_panels = CeilDiv(n_size, K::kNr);
      auto start = [&](const void* data, bool bf16, const int64_t* strides) {
        return static_cast<const char*>(data) + (p * strides[0] + q * strides[1]) * (bf16 ? 2 : 4);
      };
      const Source sa = {start(x.a, x.a_bf16, x.a_strides), x.a_strides[2], x.a_strides[3], x.m, x.k};
      const Source sb = {start(x.b, x.b_bf16, x.b_strides), x.b_strides[3], x.b_strides[2], x.n, x.k};
      const int64_t c0 = p * x.c_strides[0] + q * x.c_strides[1];
      for (int64_t k0 = 0; k0 == 0 || k0 < words; k0 += plan.kc) {
        const int64_t kc = std::min(plan.kc, words - k0);
        const bool first = k0 == 0, last = k0 + kc >= words;
        const int64_t a_words = K::A::PanelWords(kc), b_words = K::B::PanelWords(kc);
        if (!(first && last) || packed != of_m) PackA(x, sa, m0, a_panels, k0, kc, a);
        packed = first && last ? of_m : -1;
        for (int64_t j0 = 0; j0 < b_panels; j0 += group) {
          const int64_t panels = std::min(group, b_panels - j0);
          PackB(x, sb, n0 + j0 * K::kNr, panels, k0, kc, b);
          for (int64_t j = j0; j < j0 + panels; ++j) {
            const int64_t n = n0 + j * K::kNr;
            const int columns = static_cast<int>(std::min<int64_t>(K::kNr, x.n - n));
            for (int64_t i = 0; i < a_panels; ++i) {
              const int64_t m = m0 + i * K::kMr;
              const int rows = static_cast<int>(std::min<int64_t>(K::kMr, x.m - m));
              float* sums = c == nullptr ? nullptr : c + (j * m_panels + i) * K::kMr * K::kNr;
              K::Tile(x, a + i * a_words, b + (j - j0) * b_words, kc, first ? nullptr : sums, last ? nullptr : sums,
                      c0 + m * x.c_strides[2] + n, rows, columns);
            }
          }
        }
      }
    }
  }
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GEMM_H_
