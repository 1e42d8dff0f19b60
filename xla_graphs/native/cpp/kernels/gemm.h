// The loops around a kernel, the same for each. Included by each kernel's own translation unit, after the packing of its
// instruction set (pack_avx512.h or pack_avx2.h).
//
// A part of C, mt x nt, belongs to one thread. Its loops, from the outside in:
//
//   k in steps of kc      B's block (kc x nt) is packed and stays in the L3 cache, or L2
//   m in blocks of mc     A's block (mc x kc) is packed and stays in the L2 cache
//   n in panels of kNr    one panel of B; the tiles prefetch the next one, from L3
//   k in steps of kStep   kStep words of that panel stay in the L1 cache
//   m in panels of kMr    the kernel: kMr x kNr of C in registers, over kStep, panels of A streaming from L2
//
// How large they are is the cost model's (cost_model.h).
//
// An operand that several parts read is packed before all of them, by all threads together, if L3 holds it: then the steps over
// k and m only choose what of it is read. So a part packs what no other reads, or what is too large. A's rows are not packed at
// all if they have in memory the words that the kernel reads: then only a last panel that has fewer rows than others is.
// Between two steps of k, C's sums wait in f32 in a buffer, as the kernel stores its registers: those of a panel of B in L2,
// those of a part in L3. They resume exactly where they were, so that blocking changes no bit. The last step writes C.

#ifndef XTRAIN_CPP_KERNELS_GEMM_H_
#define XTRAIN_CPP_KERNELS_GEMM_H_

#include <cstring>

#include "bits.h"
#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

// The lines of C that a kernel will write: asked for before its loop, they are here after it.
inline __attribute__((always_inline)) void ExpectRows(const Matmul& x, int64_t offset, int rows, int columns) {
  const int64_t width = x.c_bf16 ? 2 : 4;
  const char* at = static_cast<const char*>(x.c) + offset * width;
  for (int i = 0; i < rows; ++i, at += x.c_strides[2] * width) {
    __builtin_prefetch(at, 1);
    __builtin_prefetch(at + columns * width - 1, 1);
  }
}

template <class O>
constexpr PanelShape ShapeOf() {
  return {O::kRows, O::kPerK, O::kPieces, O::kIsTiles};
}

// K: kMr, kNr, kPairs, kTakesBf16 (whether operands may be bf16 in memory), kReadsRows (whether A's words may be anywhere, not only in
// panels of its Order), Orders A and B, SumAt (where the sum of a row and column is, as the kernel stores its registers; 16 columns from a
// multiple of 16 on lie side by side), the most of kKc (words of k that are packed at a time) and of kAWords (words of A's block), kBInL1
// (whether a panel of B is to stay in L1), kStep (words of k that the kernel takes at a time, a multiple of 16 or kKc), `Tile`, the kernel
// proper, and `Spin`, as Implementation has it. The plan is the cost model's (cost_model.h).
template <class K>
struct Gemm {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;

  static constexpr KernelShape kShape = {ShapeOf<typename K::A>(), ShapeOf<typename K::B>(), kPerWord, K::kReadsRows, K::kBInL1, K::kKc, K::kAWords};

  // Packs a piece of a whole operand. `sums`: as `PackSummed` has them.
  template <class O>
  static void PackPiece(const Whole& whole, bool is_bf16, const Source& s, int64_t piece, uint32_t* to, float* sums) {
    const int64_t of_panels = CeilDiv(whole.panels, whole.piece_panels), of_words = CeilDiv(whole.kc, whole.piece_words);
    const int64_t k0 = piece / (of_panels * of_words) * whole.kc, here = std::min(whole.kc, whole.words - k0);
    const int64_t panel = piece / of_words % of_panels * whole.piece_panels, k = piece % of_words * whole.piece_words;
    if (k >= here) return;
    const int64_t of_piece = std::min(whole.piece_panels, whole.panels - panel), k_words = std::min(whole.piece_words, here - k);
    // Where panels are rows one behind the other, words of k are neighbours.
    const int64_t at = KeepsRows<O>(s.k_stride) ? k : k * O::kPerK;
    PackSummed<O>(is_bf16, s, panel * O::kRows, of_piece, k0 + k, k_words, to + whole.At(panel, k0) + at, O::PanelWords(here), sums);
  }

  static int64_t Pitch(const Source& s, bool is_bf16) { return s.r_stride * (is_bf16 ? 2 : 4); }

  // Panels of A as the kernel reads them: the first `in_place` where they are, then those that are packed.
  struct PanelsOfA {
    const char* first;
    int64_t pitch, in_place;
    const uint32_t* packed;
    int64_t panel_words;
    bool has_rows;  // packed ones are rows, one behind the other

    Rows operator()(int64_t i) const {
      if (i < in_place) return {first + i * K::kMr * pitch, pitch, 4, false};
      const char* at = reinterpret_cast<const char*>(packed + (i - in_place) * panel_words);
      return has_rows ? Rows{at, panel_words / K::kMr * 4, 4, false} : Rows{at, 4, 4 * K::A::kPerK, false};
    }
  };

  template <class O = typename K::A>
  static bool KeepsRows(int64_t k_stride) {
    return O::kKeepsRows && k_stride == 1;
  }

  // `panels` of A from row r0 and word k0 on; what cannot be read in place is packed to `to`.
  static PanelsOfA MakePanels(bool is_bf16, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to,
                              float* sums = nullptr) {
    const int64_t pitch = Pitch(s, is_bf16);
    // Rows of one word lie along k and across it: they are packed if their sums are wanted.
    const bool reads_rows = sums == nullptr && ReadsRows(kShape, is_bf16, s.r_stride, s.k_stride, s.k_size, k0 + words);
    const int64_t in_place = reads_rows ? std::min(panels, (s.r_size - r0) / K::kMr) : 0;
    const PanelsOfA left = {static_cast<const char*>(s.data) + r0 * pitch + k0 * 4, pitch, in_place, to, K::A::PanelWords(words), KeepsRows(s.k_stride)};
    PackSummed<typename K::A>(is_bf16, s, r0 + in_place * K::kMr, panels - in_place, k0, words, to, left.panel_words, sums);
    return left;
  }

  // As `PackAs`; if `sums` is not null, what is packed is also added up along k while it is near: each 16 words, from a multiple of 16
  // on, to a row of `sums`, [k / 16, r].
  template <class O>
  static void PackSummed(bool is_bf16, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to,
                         int64_t panel_words, float* sums) {
    if (sums == nullptr) return PackAs<O>(is_bf16, s, r0, panels, k0, words, to, panel_words);
    for (int64_t k = 0; k < words; k += kSumWords) {
      const int64_t here = std::min(kSumWords, words - k);
      PackAs<O>(is_bf16, s, r0, panels, k0 + k, here, to + k * (KeepsRows<O>(s.k_stride) ? 1 : O::kPerK), panel_words);
      is_bf16 ? AddUp<uint16_t>(s, r0, panels * O::kRows, k0 + k, here, sums) : AddUp<float>(s, r0, panels * O::kRows, k0 + k, here, sums);
    }
  }

  // Of rows [r0, r0 + rows) the sums of up to 16 words from k0 on.
  template <class T>
  static void AddUp(const Source& s, int64_t r0, int64_t rows, int64_t k0, int64_t words, float* sums) {
    const int64_t count = std::min(rows, s.r_size - r0), end = std::min((k0 + words) * kPerWord, s.k_size);
    const auto row = [&](int64_t k) { return static_cast<const T*>(s.data) + k * s.k_stride + r0; };
    float* to = sums + k0 / kSumWords * s.r_size + r0;
    std::fill_n(to, count, 0.0f);
    int64_t k = k0 * kPerWord;
    for (; k + 4 <= end; k += 4) AddRows<4>(row(k), s.k_stride, count, to);
    for (; k < end; ++k) AddRows<1>(row(k), s.k_stride, count, to);
  }

  template <int kRows, class T>
  static void AddRows(const T* from, int64_t pitch, int64_t count, float* to) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      Lanes sum;
      std::memcpy(&sum, to + i, sizeof sum);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum += ReadLanes(from + r * pitch + i);
      std::memcpy(to + i, &sum, sizeof sum);
    }
    for (; i < count; ++i) {
      for (int r = 0; r < kRows; ++r) to[i] += Read(from[r * pitch + i]);
    }
  }

  // The sums of all words, of rows [r0, r0 + rows).
  static void Total(const Matmul& x, int64_t r0, int64_t rows, const float* sums) {
    const int64_t size = x.sums_of_b ? x.n : x.m, count = std::min(rows, size - r0), words = CeilDiv(x.k, kPerWord);
    std::fill_n(x.sums + r0, count, 0.0f);
    for (int64_t k = 0; k < words; k += kSumWords) AddRows<1>(sums + k / kSumWords * size + r0, size, count, x.sums + r0);
  }

  // `is_bf16`: what is in memory.
  template <class O>
  static void PackAs(bool is_bf16, const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to,
                     int64_t panel_words) {
    if constexpr (K::kTakesBf16) {
      if (is_bf16) return Pack<O, K::kPairs, true>(s, r0, panels, k0, words, to, panel_words);
    }
    Pack<O, K::kPairs, false>(s, r0, panels, k0, words, to, panel_words);
  }

  // C as the kernel stores its registers, 0 beyond its edges.
  static void LoadSums(const Matmul& x, int64_t at, int rows, int columns, float* sums) {
    if (rows < K::kMr || columns < K::kNr) std::fill_n(sums, K::kMr * K::kNr, 0.0f);
    const float* c = static_cast<const float*>(x.c) + at;
    for (int i = 0; i < rows; ++i, c += x.c_strides[2]) {
      for (int j = 0; j < columns; j += 16) std::memcpy(sums + K::SumAt(i, j), c + j, std::min(16, columns - j) * sizeof(float));
    }
  }

  // A bias as the kernel stores its registers.
  static void LoadBias(const float* bias, int columns, float* sums) {
    for (int i = 0; i < K::kMr; ++i) {
      for (int j = 0; j < columns; j += 16) std::memcpy(sums + K::SumAt(i, j), bias + j, std::min(16, columns - j) * sizeof(float));
    }
  }

  static void Work(const Matmul& x, const Plan& plan, Packed& packed, std::atomic<int64_t>& next) {
    static thread_local Scratch a_scratch, b_scratch, c_scratch;
    const int64_t words = CeilDiv(x.k, kPerWord);
    const int64_t m_panels = plan.mt / K::kMr, n_panels = plan.nt / K::kNr, block = plan.mc / K::kMr;
    uint32_t* a = plan.a_pieces > 0 ? nullptr : a_scratch.Words(block * K::A::PanelWords(plan.kc));
    uint32_t* b = plan.b_pieces > 0 ? nullptr : b_scratch.Words(n_panels * K::B::PanelWords(plan.kc));
    float* c = nullptr;
    const bool resumes = plan.kc < words;
    if (resumes || K::kStep < words || x.continues) c = reinterpret_cast<float*>(c_scratch.Words(plan.mt * (resumes ? plan.nt : K::kNr)));
    const Whole all_a(kShape.a, x.m, words, plan.kc, x.a_strides[3], plan.piece), all_b(kShape.b, x.n, words, plan.kc, x.b_strides[2], plan.piece);
    float* const sums = reinterpret_cast<float*>(packed.words + plan.a_words + plan.b_words);
    float *const a_sums = x.sums == nullptr || x.sums_of_b ? nullptr : sums, *const b_sums = x.sums != nullptr && x.sums_of_b ? sums : nullptr;
    const int64_t pieces = plan.a_pieces + plan.b_pieces;
    int64_t claim = next.fetch_add(1, std::memory_order_relaxed);
    if (pieces > 0) {
      const Source sa = {x.a, x.a_strides[2], x.a_strides[3], x.m, x.k}, sb = {x.b, x.b_strides[3], x.b_strides[2], x.n, x.k};
      for (; claim < pieces; claim = next.fetch_add(1, std::memory_order_relaxed)) {
        if (claim < plan.a_pieces) {
          PackPiece<typename K::A>(all_a, x.a_bf16, sa, claim, packed.words, a_sums);
        } else {
          PackPiece<typename K::B>(all_b, x.b_bf16, sb, claim - plan.a_pieces, packed.words + plan.a_words, b_sums);
        }
        packed.pieces.Done(pieces);
      }
      // Whoever claimed a piece is packing it.
      packed.pieces.Wait();
    }
    typename K::State state;
    alignas(64) float biased[K::kMr * K::kNr] = {};
    const float* const bias = x.bias == nullptr ? nullptr : biased;
    for (; claim < plan.Claims(); claim = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t part = claim - pieces;
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
        const uint32_t* right = packed.words + plan.a_words + all_b.At(n0 / K::kNr, k0);
        if (plan.b_pieces == 0) {
          PackSummed<typename K::B>(x.b_bf16, sb, n0, b_panels, k0, kc, b, b_words, m0 == 0 ? b_sums : nullptr);
          right = b;
        }
        for (int64_t i0 = 0; i0 < a_panels; i0 += block) {
          const int64_t panels = std::min(block, a_panels - i0);
          const PanelsOfA left = plan.a_pieces > 0 ? PanelsOfA{nullptr, 0, 0, packed.words + all_a.At(m0 / K::kMr + i0, k0), a_words, KeepsRows(sa.k_stride)}
                                              : MakePanels(x.a_bf16, sa, m0 + i0 * K::kMr, panels, k0, kc, a, n0 == 0 ? a_sums : nullptr);
          for (int64_t j = 0; j < b_panels; ++j) {
            const int64_t n = n0 + j * K::kNr;
            const int columns = static_cast<int>(std::min<int64_t>(K::kNr, x.n - n));
            if (first && x.bias != nullptr) LoadBias(x.bias + n, columns, biased);
            for (int64_t k = 0; k == 0 || k < kc; k += K::kStep) {
              const bool begins = first && k == 0, ends = last && k + K::kStep >= kc;
              for (int64_t i = i0; i < i0 + panels; ++i) {
                const int64_t m = m0 + i * K::kMr;
                const int rows = static_cast<int>(std::min<int64_t>(K::kMr, x.m - m));
                Rows panel = left(i - i0).From(k);
                panel.prefetches_next = j == 0 && i + 1 - i0 < left.in_place;
                if (j + 1 < b_panels) {
                  const int64_t tiles = panels * CeilDiv(kc, K::kStep), share = CeilDiv(b_words, 16 * tiles), before = (k / K::kStep * panels + i - i0) * share;
                  panel.ahead = reinterpret_cast<const char*>(right + (j + 1) * b_words + 16 * before);
                  panel.lines = std::min(share, b_words / 16 - before);
                }
                float* tile = c == nullptr ? nullptr : c + ((resumes ? j * m_panels : 0) + i) * K::kMr * K::kNr;
                const int64_t at = c0 + m * x.c_strides[2] + n;
                if (begins && x.continues) LoadSums(x, at, rows, columns, tile);
                K::Tile(x, panel, right + j * b_words + k * K::B::kPerK, std::min(K::kStep, kc - k),
                        begins && !x.continues ? bias : tile, ends ? nullptr : tile, at, rows, columns);
              }
            }
          }
        }
      }
      if (a_sums != nullptr && n0 == 0) Total(x, m0, m_size, a_sums);
      if (b_sums != nullptr && m0 == 0) Total(x, n0, n_size, b_sums);
    }
  }
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_GEMM_H_
