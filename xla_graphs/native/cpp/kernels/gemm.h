// The loops around a kernel, the same for each. Included by each kernel's own translation unit, after the packing of its
// instruction set (pack_avx512.h or pack_avx2.h).
//
// A part of C, mt x nt, belongs to one thread. Its loops, from the outside in:
//
//   k in steps of kc      B's block (kc x nt) is packed and stays in the L3 cache, or L2
//   m in blocks of mc     A's block (mc x kc) is packed and stays in the L2 cache
//   n in panels of kNr    one panel of B
//   k in steps of kStep   kStep words of that panel stay in the L1 cache
//   m in panels of kMr    the kernel: kMr x kNr of C in registers, over kStep, panels of A streaming from L2
//
// So a part packs each operand once. Between two steps of k, C's sums wait in f32 in a buffer, as the kernel stores its
// registers: those of a panel of B in L2, those of a part in L3. They resume exactly where they were, so that blocking
// changes no bit. The last step writes C.

#ifndef XTRAIN_CPP_KERNELS_GEMM_H_
#define XTRAIN_CPP_KERNELS_GEMM_H_

#include <cstring>

#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `size` in as few even pieces of at most `most` as possible, each a multiple of `unit`.
inline int64_t Even(int64_t size, int64_t most, int64_t unit) {
  const int64_t pieces = CeilDiv(size, std::max(most, unit));
  return CeilDiv(CeilDiv(size, pieces), unit) * unit;
}

// The lines of C that a kernel will write: asked for before its loop, they are here after it.
inline __attribute__((always_inline)) void ExpectRows(const Matmul& x, int64_t offset, int rows, int columns) {
  const int64_t width = x.c_bf16 ? 2 : 4;
  const char* at = static_cast<const char*>(x.c) + offset * width;
  for (int i = 0; i < rows; ++i, at += x.c_strides[2] * width) {
    __builtin_prefetch(at, 1);
    __builtin_prefetch(at + columns * width - 1, 1);
  }
}

// K: kMr, kNr, kPairs, Orders A and B, SumAt (where the sum of a row and column is, as the kernel stores its registers; 16
// columns from a multiple of 16 on lie side by side), the sizes kKc (words of k that are packed at a time), kStep (those that the kernel
// takes at a time, a multiple of 16 or kKc) and kAWords (what A's block may take of L2), and `Tile`, the kernel proper.
template <class K>
struct Gemm {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;
  // What B's block and C's sums may take of L3, each.
  static constexpr int64_t kPartWords = 1 << 20;

  static Plan MakePlan(const Matmul& x, int threads) {
    Plan plan;
    const int64_t words = CeilDiv(x.k, kPerWord);
    plan.kc = Even(words, K::kKc, 16);
    const bool resumes = plan.kc < words;
    const int64_t batches = x.batch[0] * x.batch[1];
    // The division of one matrix into parts that packs least: A is packed for each part of n, B for each part of m. Two parts
    // for every thread, if they are worth it, so that a thread which the system holds up is not waited for.
    const int64_t m_most = CeilDiv(x.m, K::kMr), n_most = CeilDiv(x.n, K::kNr);
    const int64_t wanted = CeilDiv(threads == 1 ? 1 : 2 * threads, batches);
    double least = 0;
    for (int64_t m_parts = 1, n_parts = 1; m_parts <= m_most; ++m_parts) {
      const int64_t mt = CeilDiv(m_most, m_parts) * K::kMr;
      n_parts = CeilDiv(wanted, m_parts);
      n_parts = std::max(n_parts, CeilDiv(x.n, std::max<int64_t>(kPartWords / plan.kc, K::kNr)));
      if (resumes) n_parts = std::max(n_parts, CeilDiv(x.n, std::max<int64_t>(kPartWords / mt, K::kNr)));
      n_parts = std::min(n_parts, n_most);
      const int64_t nt = CeilDiv(n_most, n_parts) * K::kNr;
      const double packed = static_cast<double>(CeilDiv(x.n, nt)) * x.m + static_cast<double>(CeilDiv(x.m, mt)) * x.n;
      // Fewer than wanted is worse than any packing.
      const double cost = packed / std::min(wanted, CeilDiv(x.n, nt) * CeilDiv(x.m, mt));
      if (m_parts == 1 || cost < least) least = cost, plan.mt = mt, plan.nt = nt;
      if (m_parts >= wanted && n_parts == 1) break;
    }
    plan.mc = Even(plan.mt, K::kAWords / plan.kc, K::kMr);
    plan.m_parts = CeilDiv(x.m, plan.mt);
    plan.n_parts = CeilDiv(x.n, plan.nt);
    plan.parts = batches * plan.m_parts * plan.n_parts;
    return plan;
  }

  // `is_bf16`: what is in memory.
  template <class O>
  static void PackAs(bool is_bf16, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to) {
    if constexpr (K::kPairs) {
      if (is_bf16) return Pack<O, true, true>(s, r0, panels, k0, words, to);
    }
    Pack<O, K::kPairs, false>(s, r0, panels, k0, words, to);
  }

  // C as the kernel stores its registers.
  static void LoadSums(const Matmul& x, int64_t at, int rows, int columns, float* sums) {
    const float* c = static_cast<const float*>(x.c) + at;
    for (int i = 0; i < rows; ++i, c += x.c_strides[2]) {
      for (int j = 0; j < columns; j += 16) std::memcpy(sums + K::SumAt(i, j), c + j, std::min(16, columns - j) * sizeof(float));
    }
  }

  static void Work(const Matmul& x, const Plan& plan, std::atomic<int64_t>& next) {
    static thread_local Scratch a_scratch, b_scratch, c_scratch;
    const int64_t words = CeilDiv(x.k, kPerWord);
    const int64_t m_panels = plan.mt / K::kMr, n_panels = plan.nt / K::kNr, block = plan.mc / K::kMr;
    uint32_t* a = a_scratch.Words(block * K::A::PanelWords(plan.kc));
    uint32_t* b = b_scratch.Words(n_panels * K::B::PanelWords(plan.kc));
    float* c = nullptr;
    const bool resumes = plan.kc < words;
    if (resumes || K::kStep < words || x.continues) c = reinterpret_cast<float*>(c_scratch.Words(plan.mt * (resumes ? plan.nt : K::kNr)));
    typename K::State state;
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
        PackAs<typename K::B>(x.b_bf16, sb, n0, b_panels, k0, kc, b);
        for (int64_t i0 = 0; i0 < a_panels; i0 += block) {
          const int64_t panels = std::min(block, a_panels - i0);
          PackAs<typename K::A>(x.a_bf16, sa, m0 + i0 * K::kMr, panels, k0, kc, a);
          for (int64_t j = 0; j < b_panels; ++j) {
            const int64_t n = n0 + j * K::kNr;
            const int columns = static_cast<int>(std::min<int64_t>(K::kNr, x.n - n));
            for (int64_t k = 0; k == 0 || k < kc; k += K::kStep) {
              const bool begins = first && k == 0, ends = last && k + K::kStep >= kc;
              for (int64_t i = i0; i < i0 + panels; ++i) {
                const int64_t m = m0 + i * K::kMr;
                const int rows = static_cast<int>(std::min<int64_t>(K::kMr, x.m - m));
                float* sums = c == nullptr ? nullptr : c + ((resumes ? j * m_panels : 0) + i) * K::kMr * K::kNr;
                const int64_t at = c0 + m * x.c_strides[2] + n;
                if (begins && x.continues) LoadSums(x, at, rows, columns, sums);
                K::Tile(x, a + (i - i0) * a_words + k * K::kMr, b + j * b_words + k * K::kNr, std::min(K::kStep, kc - k),
                        begins && !x.continues ? nullptr : sums, ends ? nullptr : sums, at, rows, columns);
              }
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
