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
// An operand that several parts read is packed before all of them, by all threads together, if L3 holds it: then the steps over
// k and m only choose what of it is read. So a part packs what no other reads, or what is too large. A's rows are not packed at
// all if they have in memory the words that the kernel reads: then only a last panel that has fewer rows than others is.
// Between two steps of k, C's sums wait in f32 in a buffer, as the kernel stores its registers: those of a panel of B in L2,
// those of a part in L3. They resume exactly where they were, so that blocking changes no bit. The last step writes C.

#ifndef XTRAIN_CPP_KERNELS_GEMM_H_
#define XTRAIN_CPP_KERNELS_GEMM_H_

#include <sched.h>

#include <cstring>

#include "bits.h"
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

// K: kMr, kNr, kPairs, kTakesBf16 (whether operands may be bf16 in memory), kReadsRows (whether A's words may be anywhere, not only in panels of its Order), Orders A and B, SumAt (where
// the sum of a row and column is, as the kernel stores its registers; 16 columns from a multiple of 16 on lie side by side), the sizes
// kKc (words of k that are packed at a time), kStep (those that the kernel takes at a time, a multiple of 16 or kKc) and kAWords (what
// A's block may take of L2), and `Tile`, the kernel proper.
template <class K>
struct Gemm {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;
  // What B's block and C's sums may take of L3, each.
  static constexpr int64_t kPartWords = 1 << 20;
  // What an operand may take of L3 that is packed once for all parts, and about what a piece of it has.
  static constexpr int64_t kSharedWords = (K::A::kPieces == 1 ? 2 : 4) << 20, kPieceWords = 48 << 10;

  static Plan MakePlan(const Matmul& x, int threads) {
    Plan plan = {};
    const int64_t words = CeilDiv(x.k, kPerWord);
    plan.kc = Even(words, K::kKc, 16);
    const bool resumes = plan.kc < words;
    const int64_t batches = x.batch[0] * x.batch[1];
    // The division of one matrix into parts that packs least: A is packed for each part of n, B for each part of m, if not once
    // for all, and what is packed is read as often, which costs less. Two parts for every thread, if they are worth it, so that a
    // thread which the system holds up is not waited for, and no part that one thread computes while the others have none.
    const int64_t m_most = CeilDiv(x.m, K::kMr), n_most = CeilDiv(x.n, K::kNr);
    const Whole<typename K::A> all_a(x.m, words, plan.kc, x.a_strides[3]);
    const Whole<typename K::B> all_b(x.n, words, plan.kc, x.b_strides[2]);
    const Source a = {x.a, x.a_strides[2], x.a_strides[3], x.m, x.k};
    // Where k is odd, its last step is packed by each part: little enough if it is one of many.
    const bool reads_rows = ReadsRows(a, x.a_bf16, words > 4 * plan.kc ? x.k / kPerWord : words);
    const bool shares_a = batches == 1 && !reads_rows && all_a.Words() <= kSharedWords;
    const bool shares_b = batches == 1 && all_b.Words() <= kSharedWords;
    const int64_t wanted = CeilDiv(threads == 1 ? 1 : 2 * threads, batches);
    double least = 0;
    for (int64_t m_parts = 1, n_parts = 1; m_parts <= m_most; ++m_parts) {
      const int64_t mt = CeilDiv(m_most, m_parts) * K::kMr;
      n_parts = CeilDiv(wanted, m_parts);
      const bool packs_b = !shares_b || mt >= x.m;
      if (packs_b) n_parts = std::max(n_parts, CeilDiv(x.n, std::max<int64_t>(kPartWords / (plan.kc * K::B::kPieces), K::kNr)));
      if (resumes) n_parts = std::max(n_parts, CeilDiv(x.n, std::max<int64_t>(kPartWords / mt, K::kNr)));
      // So many that no thread has one more than others, if it can be.
      for (int more = 1; more < threads && batches * m_parts * n_parts % threads != 0; ++more) ++n_parts;
      n_parts = std::min(n_parts, n_most);
      const int64_t nt = CeilDiv(n_most, n_parts) * K::kNr;
      const double a_reads = static_cast<double>(CeilDiv(x.n, nt)) * x.m, b_reads = static_cast<double>(CeilDiv(x.m, mt)) * x.n;
      // A that others pack comes from their caches, and a block of it that a thread packs for itself stays in its own.
      const double packed = (reads_rows ? 0 : shares_a && nt < x.n ? 2 * x.m : a_reads) + (shares_b ? x.n : b_reads) + 0.1 * (a_reads + b_reads);
      // Packing every row and column once takes about a tenth of a matmul. Fewer than wanted is worse than any packing.
      const int64_t parts = CeilDiv(x.m, mt) * CeilDiv(x.n, nt), rounds = CeilDiv(batches * parts, threads);
      const double idle = static_cast<double>(rounds * threads) / (batches * parts);
      const double cost = (10.0 * (x.m + x.n) + packed) * idle / std::min(wanted, parts);
      if (m_parts == 1 || cost < least) least = cost, plan.mt = mt, plan.nt = nt;
      if (m_parts >= wanted && n_parts == 1) break;
    }
    plan.mc = Even(plan.mt, K::kAWords / (plan.kc * K::A::kPieces), K::kMr);
    plan.m_parts = CeilDiv(x.m, plan.mt);
    plan.n_parts = CeilDiv(x.n, plan.nt);
    plan.parts = batches * plan.m_parts * plan.n_parts;
    if (shares_a && plan.n_parts > 1) plan.a_words = all_a.Words(), plan.a_pieces = all_a.Pieces();
    if (shares_b && plan.m_parts > 1) plan.b_words = all_b.Words(), plan.b_pieces = all_b.Pieces();
    if (x.sums != nullptr) plan.sum_words = CeilDiv(words, kSumWords) * (x.sums_of_b ? x.n : x.m);
    return plan;
  }

  // A whole operand, packed by all threads together: for each step of kc along k, its panels. A piece is some words of k of some
  // panels, of neighbours in memory as many as fit: words of a row, or rows of a word.
  template <class O>
  struct Whole {
    int64_t panels, words, kc;
    int64_t piece_panels, piece_words;

    Whole(int64_t rows, int64_t words, int64_t kc, int64_t k_stride) : panels(CeilDiv(rows, O::kRows)), words(words), kc(kc) {
      piece_panels = k_stride == 1 ? kPieceWords / O::PanelWords(kc) : kPieceWords / (16 * O::kPerK);
      piece_panels = std::min(std::max<int64_t>(piece_panels, 1), panels);
      piece_words = k_stride == 1 ? kc : std::max<int64_t>(kPieceWords / (piece_panels * O::kPerK * 16), 1) * 16;
    }

    int64_t Words() const { return panels * O::PanelWords(words); }

    int64_t Pieces() const { return CeilDiv(words, kc) * CeilDiv(panels, piece_panels) * CeilDiv(kc, piece_words); }

    // Where a panel of the step from k0 on is; all steps before it have kc words, a multiple of 16.
    int64_t At(int64_t panel, int64_t k0) const { return k0 * panels * O::kPerK + panel * O::PanelWords(std::min(kc, words - k0)); }

    // `sums`: as `PackSummed` has them.
    void Pack(bool is_bf16, const Source& s, int64_t piece, uint32_t* to, float* sums) const {
      const int64_t of_panels = CeilDiv(panels, piece_panels), of_words = CeilDiv(kc, piece_words);
      const int64_t k0 = piece / (of_panels * of_words) * kc, here = std::min(kc, words - k0);
      const int64_t panel = piece / of_words % of_panels * piece_panels, k = piece % of_words * piece_words;
      if (k >= here) return;
      const int64_t of_piece = std::min(piece_panels, panels - panel), k_words = std::min(piece_words, here - k);
      PackSummed<O>(is_bf16, s, panel * O::kRows, of_piece, k0 + k, k_words, to + At(panel, k0) + k * O::kPerK, O::PanelWords(here), sums);
    }
  };

  // Whether the kernel reads rows where they are, up to word `words`: a last pair of which there is half is packed. Rows a multiple
  // of 4 KB apart fall into the same lines of L1, which has 8 or 12 ways for them.
  static bool ReadsRows(const Source& s, bool is_bf16, int64_t words) {
    const bool are_words = s.k_stride == 1 && is_bf16 == K::kPairs && words * kPerWord <= s.k_size;
    return K::kReadsRows && are_words && Pitch(s, is_bf16) % 4096 != 0;
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
    const int64_t pitch = Pitch(s, is_bf16), in_place = ReadsRows(s, is_bf16, k0 + words) ? std::min(panels, (s.r_size - r0) / K::kMr) : 0;
    const PanelsOfA left = {static_cast<const char*>(s.data) + r0 * pitch + k0 * 4, pitch, in_place, to, K::A::PanelWords(words), KeepsRows(s.k_stride)};
    PackSummed<typename K::A>(is_bf16, s, r0 + in_place * K::kMr, panels - in_place, k0, words, to, left.panel_words, sums);
    return left;
  }

  // As `PackAs`; if `sums` is not null, what is packed is also added up along k while it is near: each 16 words, from a multiple of 16
  // on, to a row of `sums`, [k / 16, r].
  static constexpr int64_t kSumWords = 16;
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
    const Whole<typename K::A> all_a(x.m, words, plan.kc, x.a_strides[3]);
    const Whole<typename K::B> all_b(x.n, words, plan.kc, x.b_strides[2]);
    float* const sums = reinterpret_cast<float*>(packed.words + plan.a_words + plan.b_words);
    float *const a_sums = x.sums == nullptr || x.sums_of_b ? nullptr : sums, *const b_sums = x.sums != nullptr && x.sums_of_b ? sums : nullptr;
    const int64_t pieces = plan.a_pieces + plan.b_pieces;
    int64_t claim = next.fetch_add(1, std::memory_order_relaxed);
    if (pieces > 0) {
      const Source sa = {x.a, x.a_strides[2], x.a_strides[3], x.m, x.k}, sb = {x.b, x.b_strides[3], x.b_strides[2], x.n, x.k};
      for (; claim < pieces; claim = next.fetch_add(1, std::memory_order_relaxed)) {
        if (claim < plan.a_pieces) {
          all_a.Pack(x.a_bf16, sa, claim, packed.words, a_sums);
        } else {
          all_b.Pack(x.b_bf16, sb, claim - plan.a_pieces, packed.words + plan.a_words, b_sums);
        }
        packed.pieces.fetch_add(1, std::memory_order_release);
      }
      // Whoever claimed a piece is packing it.
      for (int spins = 0; packed.pieces.load(std::memory_order_acquire) < pieces; ++spins) {
        if (spins < 1000) {
          __builtin_ia32_pause();
        } else {
          sched_yield();
        }
      }
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
