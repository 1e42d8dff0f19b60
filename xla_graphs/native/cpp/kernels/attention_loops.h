// The loops of attention around a matmul kernel's packing and tile, the same for each kernel. Included by each kernel's own
// translation unit.
//
// Scores stand as [keys][queries], 32 queries side by side, so that a softmax's maximum and sum run down columns, 16 queries in a
// vector, without a step across lanes. What the softmax computes is written as the words of B that the next matmul reads; its
// result stands turned, [D][queries], and is turned back when it is stored. Forward, 32 queries at a time over all keys that they see:
//
//   scores^T = K Q^T          rows: keys; Q is packed
//   P^T      = 2^(scores^T - the highest of a column)
//   out^T    = V^T P^T        divided by the columns' sums; V^T is packed once for all queries
//
// Backward, a block of queries over as many keys at a time as keep everything in L2. The highest scores and the sums are
// forward's, so that a probability is made where its score is, and its gradient with it:
//
//   dP^T = V dy^T      dS^T = P^T (dP^T - sum(dy out))      dq^T += K^T dS^T      dk += dS^T q      dv += P^T dy
//
// dq is summed over keys, dk and dv over blocks of queries, as the kernel stores its registers. Rows of keys and values are read where
// they are by a kernel that can. What a causal mask, a window or the beginning of an example hides from 32 queries is not computed.
//
// Source: Dao et al., FlashAttention (2022), for the blocking and for sum(dP P) = sum(dy out).

#ifndef XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_
#define XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_

#include <array>
#include <cfloat>

#include "attention.h"
#include "attention_math.h"
#include "flush.h"
#include "pack_avx512.h"

// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

constexpr float kLowest = -FLT_MAX;

// K: as in gemm.h.
template <class K>
struct AttentionLoops {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;
  static constexpr int kMr = K::kMr, kNr = K::kNr, kTile = kMr * kNr;
  static_assert(kNr == 32, "a panel of queries is two vectors");
  static_assert(kMr % (K::A::kIsTiles ? 32 : 2) == 0, "packed words can be entered where a panel of keys begins");
  // Whether sums as the kernel stores its registers are rows of 32 columns, one behind the other.
  static constexpr bool kSumsAreRows = K::SumAt(1, 0) == kNr && K::SumAt(0, 16) == 16;
  // Queries of a block, and keys that it takes at a time backward, at most (about).
  static constexpr int64_t kBlock = 128, kKeys = 256;

  using B = typename K::B;
  using PanelsOfA = typename Gemm<K>::PanelsOfA;

  // Keys at a time backward, whole panels.
  static int64_t Step(const Attention& x) { return Even(x.keys, kKeys, kMr); }

  static int64_t Words(int64_t k) { return CeilDiv(k, kPerWord); }

  static AttentionPlan Plan(const Attention& x) {
    AttentionPlan plan;
    plan.block = kNr;
    while (plan.block < kBlock && plan.block < x.queries) plan.block *= 2;
    plan.blocks = CeilDiv(x.queries, plan.block);
    const int64_t heads = x.batch * x.kv_heads, units = x.heads / x.kv_heads * plan.blocks;
    plan.chunks = std::max<int64_t>(1, std::min(units, CeilDiv(16, heads)));
    plan.parts = heads * plan.chunks;
    plan.sums = 2 * CeilDiv(x.keys, kMr) * CeilDiv(x.width, kNr) * kTile;
    return plan;
  }

  static void PackTo(bool is_bf16, const Source& source, int64_t panels, int64_t k_words, uint32_t* to) {
    Gemm<K>::template PackAs<B>(is_bf16, source, 0, panels, 0, k_words, to, B::PanelWords(k_words));
  }

  // A head's rows as an operand whose k is D, or (`Down`) whose k is the rows.
  static const char* At(const Attention& x, const Heads& heads, int64_t b, int64_t h, int64_t t) {
    const int64_t at = b * heads.strides[0] + h * heads.strides[1] + t * heads.strides[2];
    return static_cast<const char*>(heads.data) + at * (x.is_bf16 ? 2 : 4);
  }
  static Source Across(const Attention& x, const Heads& heads, int64_t b, int64_t h, int64_t t, int64_t rows) {
    return {At(x, heads, b, h, t), heads.strides[2], 1, rows, x.width};
  }
  static Source Down(const Attention& x, const Heads& heads, int64_t b, int64_t h, int64_t t, int64_t rows) {
    return {At(x, heads, b, h, t), 1, heads.strides[2], x.width, rows};
  }

  // All of a head of keys or values as A: its rows, or (`ByWidth`) its columns.
  static PanelsOfA ByRows(const Attention& x, const Heads& heads, int64_t b, int64_t kv, uint32_t* to) {
    return Gemm<K>::MakePanels(x.is_bf16, Across(x, heads, b, kv, 0, x.keys), 0, CeilDiv(x.keys, kMr), 0, Words(x.width), to);
  }
  static PanelsOfA ByWidth(const Attention& x, const Heads& heads, int64_t b, int64_t kv, uint32_t* to) {
    return Gemm<K>::MakePanels(x.is_bf16, Down(x, heads, b, kv, 0, x.keys), 0, CeilDiv(x.width, kMr), 0, Words(x.keys), to);
  }

  // Memory of a thread, cut into the arrays of a call.
  class Arena {
   public:
    explicit Arena(Scratch& scratch) : scratch_(scratch) {}
    // Twice over the same requests: the first time sizes are summed, then `Lay` makes room.
    uint32_t* Words(int64_t words) {
      uint32_t* at = base_ == nullptr ? nullptr : base_ + used_;
      used_ += CeilDiv(words, 16) * 16;
      return at;
    }
    void Lay() { base_ = scratch_.Words(used_), used_ = 0; }

   private:
    Scratch& scratch_;
    uint32_t* base_ = nullptr;
    int64_t used_ = 0;
  };

  // The head of b and kv that is the `nth`: of two batch entries in turn, so that two threads do not read and write the same pages.
  static int64_t Head(const Attention& x, int64_t nth) {
    const int64_t pair = nth / (2 * x.kv_heads) * 2, of_pair = nth - pair * x.kv_heads;
    return pair + 1 < x.batch ? (pair + of_pair % 2) * x.kv_heads + of_pair / 2 : nth;
  }

  // One thread's arrays.
  struct Memory {
    int32_t* counted;  // how many keys count, up to each
    int32_t* last;  // with `first`: of each key the last query that sees it
    uint32_t *k_rows, *across;  // keys by rows; queries as their B
    float* strip;  // scores of a panel, [keys][32 queries]
    uint32_t* words;  // P^T or dS^T, as B
    float *sums, *turned;  // of out^T or dq^T: as the kernel stores its registers; [D][32 queries], if that is something else
    uint32_t* by_width;  // V^T, backward K^T
    // Backward: dy as scores' B; queries and dy as B whose k is queries; scores' gradients.
    uint32_t *v_rows, *dy_across, *q_down, *dy_down;
    float* grad_strip;
    // Of P and dS, [keys][queries] as A reads rows; one of them packed.
    uint32_t *p_rows, *ds_rows, *packed;
    float *dk, *dv;

    Memory(const Attention& x, const AttentionPlan& plan, bool is_backward, Scratch& scratch) {
      Arena arena(scratch);
      Cut(x, plan, is_backward, arena);
      arena.Lay();
      Cut(x, plan, is_backward, arena);
    }

   private:
    void Cut(const Attention& x, const AttentionPlan& plan, bool is_backward, Arena& arena) {
      const int64_t key_panels = CeilDiv(x.keys, kMr), width_panels = CeilDiv(x.width, kMr), panels = plan.block / kNr;
      const int64_t width_words = AttentionLoops::Words(x.width), block_words = AttentionLoops::Words(plan.block);
      const int64_t across_words = panels * B::PanelWords(width_words);
      const int64_t down_words = CeilDiv(x.width, kNr) * B::PanelWords(block_words);
      const int64_t keys = is_backward ? Step(x) : key_panels * kMr;
      const auto floats = [&](int64_t words) { return reinterpret_cast<float*>(arena.Words(words)); };
      counted = reinterpret_cast<int32_t*>(arena.Words(x.keys + 1));
      last = x.first == nullptr ? nullptr : reinterpret_cast<int32_t*>(arena.Words(x.keys));
      k_rows = arena.Words(key_panels * K::A::PanelWords(width_words));
      across = arena.Words(across_words);
      strip = floats(keys * kNr);
      words = arena.Words(B::PanelWords(AttentionLoops::Words(keys)));
      sums = floats(panels * width_panels * kTile + 32 * kNr);
      turned = kSumsAreRows ? nullptr : floats((width_panels * kMr + 32) * kNr);
      by_width = arena.Words(width_panels * K::A::PanelWords(AttentionLoops::Words(x.keys)));
      if (!is_backward) return;
      v_rows = arena.Words(key_panels * K::A::PanelWords(width_words));
      dy_across = arena.Words(across_words);
      q_down = arena.Words(down_words);
      dy_down = arena.Words(down_words);
      grad_strip = floats(keys * kNr);
      p_rows = arena.Words(keys * block_words);
      ds_rows = arena.Words(keys * block_words);
      packed = arena.Words(keys / kMr * K::A::PanelWords(block_words));
      dk = floats(key_panels * CeilDiv(x.width, kNr) * kTile);
      dv = floats(key_panels * CeilDiv(x.width, kNr) * kTile);
    }
  };

  // Up to 32 queries of one head, and the keys that one of them sees: from the beginning of their first panel on.
  struct Panel {
    int64_t b, h, q0, queries;
    bool is_blind;  // a query sees no key: by the definition all keys then count
    int64_t begin, end;
    int64_t since;  // all queries see the keys from here on, as far as `first` goes
  };

  // Of a key: the queries [from, to) that see it by position.
  static int64_t From(const Attention& x, int64_t key) { return x.is_causal ? key : x.window == 0 ? 0 : key - x.window + 1; }
  static int64_t To(const Attention& x, int64_t key) { return x.window == 0 ? INT64_MAX / 2 : key + x.window; }
  // The keys that a query sees by position.
  static int64_t Oldest(const Attention& x, int64_t query) { return x.window == 0 ? 0 : std::max<int64_t>(0, query - x.window + 1); }
  static int64_t Newest(const Attention& x, int64_t query) {
    return std::min(x.keys - 1, x.is_causal ? query : x.window == 0 ? x.keys - 1 : query + x.window - 1);
  }

  static void Count(const Attention& x, int64_t b, int32_t* counted) {
    counted[0] = 0;
    for (int64_t key = 0; key < x.keys; ++key) {
      counted[key + 1] = counted[key] + (x.key_mask == nullptr || x.key_mask[b * x.keys + key] != 0);
    }
  }

  // The first key that a query sees by `first`. Bounds are kept whatever the operand holds.
  static int64_t First(const Attention& x, int64_t b, int64_t query) {
    return std::min<int64_t>(std::max<int64_t>(0, x.first[b * x.queries + query]), query);
  }

  static void FindLast(const Attention& x, int64_t b, int32_t* last) {
    if (x.first == nullptr) return;
    std::fill_n(last, x.keys, 0);
    // Later queries overwrite earlier ones.
    for (int64_t query = 0; query < x.queries; ++query) last[First(x, b, query)] = static_cast<int32_t>(query);
    for (int64_t key = 1; key < x.keys; ++key) last[key] = std::max(last[key], last[key - 1]);
  }

  static Panel At(const Attention& x, const int32_t* counted, int64_t b, int64_t h, int64_t q0) {
    Panel at = {b, h, q0, std::min<int64_t>(kNr, x.queries - q0)};
    int64_t first = x.first == nullptr ? 0 : q0;
    for (int64_t q = q0; x.first != nullptr && q < q0 + at.queries; ++q) {
      first = std::min(first, First(x, b, q)), at.since = std::max(at.since, First(x, b, q));
    }
    for (int64_t q = q0; x.key_mask != nullptr && q < q0 + at.queries; ++q) {
      at.is_blind |= counted[Newest(x, q) + 1] == counted[Oldest(x, q)];
    }
    at.begin = at.is_blind ? 0 : std::max(Oldest(x, q0), first) / kMr * kMr;
    at.end = at.is_blind ? x.keys : Newest(x, q0 + at.queries - 1) + 1;
    return at;
  }

  // to[key - base][query] = `rows` of a head times the panel's `across`, for keys [begin, end).
  static void Scores(const Attention& x, const PanelsOfA& rows, const uint32_t* across, int64_t base, int64_t begin, int64_t end, float* to) {
    Matmul c = {};
    c.c = to;
    c.c_strides[2] = kNr;
    for (int64_t key = begin; key < end; key += kMr) {
      const int64_t at = (key - base) * kNr;
      K::Tile(c, rows(key / kMr), across, Words(x.width), nullptr, kSumsAreRows ? to + at : nullptr, at,
              static_cast<int>(std::min<int64_t>(kMr, x.keys - key)), kNr);
    }
  }

  // Products of a panel's queries and a key as exponents of 2: scaled, capped and masked.
  class Scorer {
   public:
    Scorer(const Attention& x, const Panel& at)
        : x_(x),
          at_(at),
          has_positions_(x.is_causal || x.window != 0),
          scale_(_mm512_set1_ps(x.scale * kLog2E)),
          by_cap_(_mm512_set1_ps(x.soft_cap > 0 ? x.scale / x.soft_cap : 0)),
          cap_(_mm512_set1_ps(x.soft_cap * kLog2E)),
          once_(_mm512_set1_ps(x.window != 0 && x.key_mask != nullptr ? kLowest / 2 : kLowest)) {
      for (int v = 0; v < 2; ++v) {
        const __mmask16 queries = FirstBits(at.queries - 16 * v, 16);
        const int32_t* first = x.first + at.b * x.queries + at.q0 + 16 * v;
        first_[v] = x.first == nullptr || queries == 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi32(queries, first);
      }
    }

    inline __attribute__((always_inline)) bool Counts(int64_t key) const {
      return x_.key_mask == nullptr || x_.key_mask[at_.b * x_.keys + key] != 0;
    }

    // Whether all queries of the panel see the key by position.
    inline __attribute__((always_inline)) bool AllSee(int64_t key) const {
      return !has_positions_ || (From(x_, key) <= at_.q0 && To(x_, key) >= at_.q0 + kNr && key >= at_.since);
    }

    // The bits of the 16 queries of vector v that see the key by position.
    inline __attribute__((always_inline)) __mmask16 Sees(int64_t key, int v) const {
      const int64_t q = at_.q0 + 16 * v;
      const __mmask16 since = _mm512_cmple_epi32_mask(first_[v], _mm512_set1_epi32(static_cast<int32_t>(key)));
      return FirstBits(To(x_, key) - q, 16) & ~FirstBits(From(x_, key) - q, 16) & since;
    }

    // `tanh`: of a capped score.
    inline __attribute__((always_inline)) __m512 operator()(__m512 s, int64_t key, bool counts, bool all_see, int v, __m512& tanh) const {
      if (x_.soft_cap > 0) {
        tanh = Tanh(_mm512_mul_ps(s, by_cap_));
        s = _mm512_mul_ps(tanh, cap_);
      } else {
        s = _mm512_mul_ps(s, scale_);
      }
      if (!counts || !all_see) {
        // Causal counts as part of both masks: what it hides is hidden twice.
        const __mmask16 sees = all_see ? 0xffff : Sees(key, v);
        const __mmask16 is_past = x_.is_causal ? static_cast<__mmask16>(~FirstBits(key - at_.q0 - 16 * v, 16)) : 0xffff;
        const __mmask16 by_key = counts ? is_past : 0;
        s = _mm512_mask_blend_ps(sees & by_key, _mm512_mask_blend_ps(sees | by_key, _mm512_set1_ps(kLowest), once_), s);
      }
      return s;
    }

   private:
    const Attention& x_;
    const Panel& at_;
    const bool has_positions_;
    const __m512 scale_, by_cap_, cap_, once_;
    __m512i first_[2];  // of each query; 0 without `first`
  };

  // Which of 16 queries, those of vector v of a panel, keep their key. A row of the mask is a batch entry, or where that has more than
  // 2^32 elements a head, or a query.
  struct Keeper {
    const Threefry bits;
    __m512i rows, places, threshold;

    Keeper(const Attention& x, const Panel& at, int v) : bits(x.dropout), threshold(Each(x.dropout.threshold)) {
      constexpr int64_t kMost = int64_t{1} << 32;
      const int64_t of_head = x.queries * x.keys, entry = x.dropout.key[2] * x.batch + at.b, head = entry * x.heads + at.h;
      const int64_t query = at.q0 + 16 * v;
      const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const auto by_keys = [&](int64_t first) { return _mm512_mullo_epi32(_mm512_add_epi32(Each(first), lanes), Each(x.keys)); };
      if (of_head <= kMost / x.heads) {
        rows = Each(entry), places = by_keys(at.h * x.queries + query);
      } else if (of_head <= kMost) {
        rows = Each(head), places = by_keys(query);
      } else {
        rows = _mm512_add_epi32(Each(head * x.queries + query), lanes), places = _mm512_setzero_si512();
      }
    }

    // Modulo 2^32.
    static inline __attribute__((always_inline)) __m512i Each(int64_t x) {
      return _mm512_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(x)));
    }

    inline __attribute__((always_inline)) __mmask16 operator()(int64_t key) const {
      return _mm512_cmpge_epu32_mask(bits(rows, _mm512_add_epi32(places, Each(key))), threshold);
    }
  };

  // Rows of 32 values in registers.
  using Row = __m512[2];

  // The rows of one word's keys as word k of a panel of B.
  static inline __attribute__((always_inline)) void PutWord(const Row (&rows)[kPerWord], int64_t k, uint32_t* panel) {
    __m512i first, second;
    if constexpr (K::kPairs) {
#ifdef __AVX512BF16__
      const auto pair = [](const Row& row) { return ToBf16(row[0], row[1]); };
      Interleave<16>(pair(rows[0]), pair(rows[1]), first, second);
#endif
    } else {
      first = _mm512_castps_si512(rows[0][0]), second = _mm512_castps_si512(rows[0][1]);
    }
    uint32_t* at = panel + B::At(k);
    _mm512_storeu_si512(at, first);
    _mm512_storeu_si512(at + (B::kIsTiles ? 256 : 16), second);
  }

  // Zeros in the words behind `words` that the kernel reads all the same.
  static void PadWords(int64_t words, uint32_t* panel) {
    const Row none[kPerWord] = {};
    for (int64_t k = words; k < B::Padded(words); ++k) PutWord(none, k, panel);
  }

  // A row of 32 columns of an A that is read by rows.
  static inline __attribute__((always_inline)) void PutRow(const Row& row, uint32_t* to) {
    if constexpr (K::kPairs) {
      _mm512_storeu_si512(to, ToBf16(row[0], row[1]));
    } else {
      _mm512_storeu_ps(to, row[0]);
      _mm512_storeu_ps(to + 16, row[1]);
    }
  }

  // Adds to the sums of [D][32 queries]: `left`, from word k0 on, times `words` words of B. Sums begin at 0 in the first call of
  // several, and what the last returns holds them as rows.
  static const float* Turned(const Attention& x, const PanelsOfA& left, int64_t k0, int64_t words, const uint32_t* right, bool is_first,
                     bool is_last, float* sums, float* turned) {
    Matmul c = {};
    c.c = turned;
    c.c_strides[2] = kNr;
    for (int64_t k = 0; k < words; k += K::kStep) {
      const bool begins = is_first && k == 0, ends = is_last && k + K::kStep >= words;
      for (int64_t d = 0, i = 0; d < x.width; d += kMr, ++i) {
        float* tile = sums + i * kTile;
        K::Tile(c, left(i).From(k0 + k), right + k * kNr, std::min(K::kStep, words - k), begins ? nullptr : tile,
                ends && !kSumsAreRows ? nullptr : tile, d * kNr, static_cast<int>(std::min<int64_t>(kMr, x.width - d)), kNr);
      }
    }
    return kSumsAreRows ? sums : turned;
  }

  // Asks for a panel's rows, which are read soon.
  static void Expect(const Attention& x, const Panel& at, const Heads& heads) {
    const int64_t bytes = x.width * (x.is_bf16 ? 2 : 4);
    for (int64_t q = 0; q < at.queries; ++q) {
      const char* row = At(x, heads, at.b, at.h, at.q0 + q);
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line);
    }
  }

  // Whether rows of a head are whole lines: they are then stored past the caches, since what reads them next has more to read than
  // those hold, and a line that is not in a cache would be fetched before it is written.
  static bool AreLines(const Attention& x, const Heads& heads) {
    const int64_t size = x.is_bf16 ? 2 : 4;
    int64_t all = reinterpret_cast<intptr_t>(heads.data) | x.width * size;
    for (int64_t stride : heads.strides) all |= stride * size;
    return all % 64 == 0;
  }

  // 32 columns of a row.
  static inline __attribute__((always_inline)) void StoreLines(const Matmul& c, int64_t offset, int64_t columns, bool are_lines, __m512 left,
                                                               __m512 right) {
    if (!are_lines) {
      StoreRow(c, offset, FirstBits(columns, 16), left);
      StoreRow(c, offset + 16, FirstBits(columns - 16, 16), right);
    } else if (c.c_bf16) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(static_cast<uint16_t*>(c.c) + offset), ToBf16(left, right));
    } else {
      _mm512_stream_ps(static_cast<float*>(c.c) + offset, left);
      if (columns > 16) _mm512_stream_ps(static_cast<float*>(c.c) + offset + 16, right);
    }
  }

  // Stores what `Turned` left, each query's row times its factor.
  static void TurnBack(const Attention& x, const Panel& at, const float* turned, const Row& by, const Heads& to) {
    const bool are_lines = AreLines(x, to);
    const int64_t base = at.b * to.strides[0] + at.h * to.strides[1] + at.q0 * to.strides[2], pitch = to.strides[2], width = x.width;
    Matmul c = {};
    c.c = to.data, c.c_bf16 = x.is_bf16;
    alignas(64) float all[2][16][16];
    for (int v = 0; 16 * v < at.queries; ++v) {
      const int64_t queries = std::min<int64_t>(16, at.queries - 16 * v);
      for (int64_t d = 0; d < width; d += 32) {
        for (int half = 0; half < 2; ++half) {
          __m512i rows[16];
          const float* from = turned + (d + 16 * half) * kNr + 16 * v;
#pragma GCC unroll 16
          for (int i = 0; i < 16; ++i) rows[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(from + i * kNr), by[v]));
          Transpose16(rows);
#pragma GCC unroll 16
          for (int i = 0; i < 16; ++i) _mm512_store_ps(all[half][i], _mm512_castsi512_ps(rows[i]));
        }
        for (int64_t i = 0; i < queries; ++i) {
          StoreLines(c, base + (16 * v + i) * pitch + d, width - d, are_lines, _mm512_load_ps(all[0][i]), _mm512_load_ps(all[1][i]));
        }
      }
    }
  }

  // Where a panel's statistics are: the highest exponent of each query, and, `half` further on, one over its sum.
  static float* Statistics(const Attention& x, const Panel& at) { return x.statistics + (at.b * x.heads + at.h) * x.queries + at.q0; }
  static int64_t Half(const Attention& x) { return x.batch * x.heads * x.queries; }

  // Scores in the strip become P^T without its division, as words of B; `inverse` is what to multiply with.
  static void Softmax(const Attention& x, const Panel& at, Memory& memory, Row& inverse) {
    const Scorer score(x, at);
    float* strip = memory.strip - at.begin * kNr;
    Row most = {_mm512_set1_ps(kLowest), _mm512_set1_ps(kLowest)};
    for (int64_t key = at.begin; key < at.end; ++key) {
      const bool counts = score.Counts(key), all_see = score.AllSee(key);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512 tanh;
        float* row = strip + key * kNr + 16 * v;
        const __m512 s = score(_mm512_loadu_ps(row), key, counts, all_see, v, tanh);
        most[v] = _mm512_max_ps(most[v], s);
        _mm512_storeu_ps(row, s);
      }
    }
    const Keeper keepers[2] = {{x, at, 0}, {x, at, 1}};
    Row sum = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t key0 = at.begin, k = 0; key0 < at.end; key0 += kPerWord, ++k) {
      Row rows[kPerWord];
#pragma GCC unroll 2
      for (int p = 0; p < kPerWord; ++p) {
        const bool is_there = key0 + p < at.end;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const __m512 s = _mm512_loadu_ps(strip + (key0 + p) * kNr + 16 * v);
          __m512 e = _mm512_maskz_mov_ps(is_there ? 0xffff : 0, Exp2(_mm512_sub_ps(s, most[v])));
          sum[v] = _mm512_add_ps(sum[v], e);
          if (x.dropout.is_on) e = _mm512_maskz_mov_ps(keepers[v](key0 + p), e);
          rows[p][v] = e;
        }
      }
      PutWord(rows, k, memory.words);
    }
    PadWords(Words(at.end - at.begin), memory.words);
    const __m512 kept_scale = _mm512_set1_ps(x.dropout.is_on ? x.dropout.scale : 1.0f);
    for (int v = 0; v < 2; ++v) {
      const __mmask16 mask = FirstBits(at.queries - 16 * v, 16);
      float* to = Statistics(x, at) + 16 * v;
      inverse[v] = _mm512_div_ps(_mm512_set1_ps(1.0f), sum[v]);
      _mm512_mask_storeu_ps(to, mask, most[v]);
      _mm512_mask_storeu_ps(to + Half(x), mask, inverse[v]);
      inverse[v] = _mm512_mul_ps(inverse[v], kept_scale);
    }
  }

  static void Forward(const Attention& x, const AttentionPlan& plan, std::atomic<int64_t>& next) {
    static thread_local Scratch scratch;
    int64_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= plan.parts) return;
    const FlushSubnormals flush;
    Memory memory(x, plan, false, scratch);
    typename K::State state;
    const int64_t group = x.heads / x.kv_heads;
    for (; part < plan.parts; part = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t chunk = part % plan.chunks, head = Head(x, part / plan.chunks), kv = head % x.kv_heads, b = head / x.kv_heads;
      const PanelsOfA k_rows = ByRows(x, x.k, b, kv, memory.k_rows), values = ByWidth(x, x.v, b, kv, memory.by_width);
      Count(x, b, memory.counted);
      for (int64_t unit = chunk; unit < group * plan.blocks; unit += plan.chunks) {
        const int64_t h = kv * group + unit / plan.blocks, block = unit % plan.blocks * plan.block;
        for (int64_t q = block; q < std::min(block + plan.block, x.queries); q += kNr) {
          const Panel at = At(x, memory.counted, b, h, q);
          PackTo(x.is_bf16, Across(x, x.q, b, h, q, at.queries), 1, Words(x.width), memory.across);
          Scores(x, k_rows, memory.across, at.begin, at.begin, at.end, memory.strip);
          Row inverse;
          Softmax(x, at, memory, inverse);
          const float* turned =
              Turned(x, values, at.begin / kPerWord, Words(at.end - at.begin), memory.words, true, true, memory.sums, memory.turned);
          TurnBack(x, at, turned, inverse, x.out);
        }
      }
    }
    _mm_sfence();
  }

  // The sum of the products of two rows of a head.
  static float Dot(bool is_bf16, const char* a, const char* b, int64_t width) {
    __m512 sum = _mm512_setzero_ps();
    if constexpr (K::kPairs) {
#ifdef __AVX512BF16__
      for (int64_t d = 0; d < width; d += 32, a += 64, b += 64) {
        const __mmask32 mask = FirstBits(width - d, 32);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_maskz_loadu_epi16(mask, a), (__m512bh)_mm512_maskz_loadu_epi16(mask, b));
      }
#endif
    } else if (is_bf16) {
      for (int64_t d = 0; d < width; d += 16, a += 32, b += 32) {
        const __mmask16 mask = FirstBits(width - d, 16);
        sum = _mm512_fmadd_ps(Widened(_mm256_maskz_loadu_epi16(mask, a)), Widened(_mm256_maskz_loadu_epi16(mask, b)), sum);
      }
    } else {
      for (int64_t d = 0; d < width; d += 16, a += 64, b += 64) {
        const __mmask16 mask = FirstBits(width - d, 16);
        sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, a), _mm512_maskz_loadu_ps(mask, b), sum);
      }
    }
    return _mm512_reduce_add_ps(sum);
  }

  // What forward left of a panel's queries, and sum(dy out) of each; 0 where there is no query.
  struct Rests {
    Row most, inverse, projected;

    Rests() = default;
    Rests(const Attention& x, const Panel& at) {
      alignas(64) float products[kNr] = {};
      for (int64_t q = 0; q < at.queries; ++q) {
        const int64_t t = at.q0 + q;
        products[q] = Dot(x.is_bf16, AttentionLoops::At(x, x.dy, at.b, at.h, t), AttentionLoops::At(x, x.out, at.b, at.h, t), x.width);
      }
      for (int v = 0; v < 2; ++v) {
        const __mmask16 mask = FirstBits(at.queries - 16 * v, 16);
        const float* from = Statistics(x, at) + 16 * v;
        most[v] = _mm512_maskz_loadu_ps(mask, from);
        inverse[v] = _mm512_maskz_loadu_ps(mask, from + Half(x));
        projected[v] = _mm512_load_ps(products + 16 * v);
      }
    }
  };

  // Scores and dP of a panel's queries, for keys [begin, end) of those from `base` on, become what the gradients' matmuls read: P
  // after dropout and dS as rows of A, dS as words of B. `column`: of the panel in its block.
  static void Gradients(const Attention& x, const AttentionPlan& plan, const Panel& at, const Rests& rests, int64_t base, int64_t begin,
                        int64_t end, int64_t column, Memory& memory) {
    const Scorer score(x, at);
    const Keeper keepers[2] = {{x, at, 0}, {x, at, 1}};
    const __m512 kept_scale = _mm512_set1_ps(x.dropout.scale), scale = _mm512_set1_ps(x.scale), one = _mm512_set1_ps(1.0f);
    for (int64_t key0 = begin, k = 0; key0 < end; key0 += kPerWord, ++k) {
      Row ds[kPerWord];
#pragma GCC unroll 2
      for (int p = 0; p < kPerWord; ++p) {
        const int64_t key = key0 + p, row = (key - base) * kNr;
        if (key >= end) {
          ds[p][0] = ds[p][1] = _mm512_setzero_ps();
          continue;
        }
        const bool counts = score.Counts(key), all_see = score.AllSee(key);
        Row kept;
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          __m512 tanh;
          const __m512 s = score(_mm512_loadu_ps(memory.strip + row + 16 * v), key, counts, all_see, v, tanh);
          const __m512 probability = _mm512_mul_ps(Exp2(_mm512_sub_ps(s, rests.most[v])), rests.inverse[v]);
          __m512 grad = _mm512_loadu_ps(memory.grad_strip + row + 16 * v);
          kept[v] = probability;
          if (x.dropout.is_on) {
            const __mmask16 keep = keepers[v](key);
            grad = _mm512_maskz_mul_ps(keep, grad, kept_scale);
            kept[v] = _mm512_maskz_mul_ps(keep, probability, kept_scale);
          }
          grad = _mm512_mul_ps(_mm512_mul_ps(probability, scale), _mm512_sub_ps(grad, rests.projected[v]));
          if (x.soft_cap > 0) grad = _mm512_mul_ps(grad, _mm512_fnmadd_ps(tanh, tanh, one));
          // A row without a key is uniform whatever its scores are.
          if (at.is_blind) grad = _mm512_maskz_mov_ps(counts ? score.Sees(key, v) : 0, grad);
          ds[p][v] = grad;
        }
        const int64_t to = ((key - base) * plan.block + column) / kPerWord;
        PutRow(kept, memory.p_rows + to);
        PutRow(ds[p], memory.ds_rows + to);
      }
      PutWord(ds, k, memory.words);
    }
    PadWords(Words(end - begin), memory.words);
  }

  // Rows [from, to) of a panel's columns: no query of it sees these keys, but some of its block do.
  static void Clear(const AttentionPlan& plan, int64_t from, int64_t to, int64_t column, Memory& memory) {
    const Row none = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t row = from; row < to; ++row) {
      const int64_t at = (row * plan.block + column) / kPerWord;
      PutRow(none, memory.p_rows + at);
      PutRow(none, memory.ds_rows + at);
    }
  }

  // Adds to the sums of the rows of keys [first, end), whole panels, of those from `base` on: `rows` [keys][queries] times `down`
  // [queries][D]. The block's queries begin at q0; `is_blind`: one of them sees what it should not.
  static void ByKeys(const Attention& x, const AttentionPlan& plan, int64_t q0, int64_t queries, bool is_blind, int64_t base, int64_t first,
                     int64_t end, const uint32_t* rows, const uint32_t* down, float* sums, Memory& memory) {
    const int64_t words = Words(queries), b_words = B::PanelWords(words);
    const int64_t width_panels = CeilDiv(x.width, kNr), panels = (end - first) / kMr;
    const Source source = {rows + Words((first - base) * plan.block), plan.block, 1, end - first, plan.block};
    const PanelsOfA left = Gemm<K>::MakePanels(K::kPairs, source, 0, panels, 0, words, memory.packed);
    const Matmul c = {};
    for (int64_t d = 0; d < width_panels; ++d) {
      for (int64_t i = 0; i < panels; ++i) {
        // Queries before `from`, and from `to` on, see no key of the panel.
        const int64_t key = first + i * kMr;
        const int64_t from = is_blind ? 0 : std::max<int64_t>(0, From(x, key) - q0);
        int64_t to = is_blind ? queries : std::min(queries, To(x, key + kMr - 1) - q0);
        if (x.first != nullptr) to = std::min<int64_t>(to, memory.last[std::min(key + kMr, x.keys) - 1] + 1 - q0);
        const int64_t k = from / kNr * kNr / kPerWord, needed = std::min(words, CeilDiv(Words(to), 16) * 16);
        if (k >= needed) continue;
        float* tile = sums + ((key / kMr) * width_panels + d) * kTile;
        K::Tile(c, left(i).From(k), down + d * b_words + k * kNr, needed - k, tile, tile, 0, kMr, kNr);
      }
    }
  }

  // The sums of a head of keys, to where they belong.
  static void Finish(const Attention& x, int64_t b, int64_t kv, const float* sums, const Heads& to) {
    const int64_t width_panels = CeilDiv(x.width, kNr), base = b * to.strides[0] + kv * to.strides[1];
    const bool are_lines = AreLines(x, to);
    Matmul c = {};
    c.c = to.data, c.c_bf16 = x.is_bf16;
    for (int64_t key = 0; key < x.keys; ++key) {
      const int row = static_cast<int>(key % kMr);
      for (int64_t d = 0; d < width_panels; ++d) {
        const float* tile = sums + (key / kMr * width_panels + d) * kTile;
        StoreLines(c, base + key * to.strides[2] + d * kNr, x.width - d * kNr, are_lines, _mm512_loadu_ps(tile + K::SumAt(row, 0)),
                   _mm512_loadu_ps(tile + K::SumAt(row, 16)));
      }
    }
  }

  // A block of queries of one head: its dq, and what it adds to dk and dv.
  static void BlockGradients(const Attention& x, const AttentionPlan& plan, int64_t b, int64_t h, int64_t q0, const PanelsOfA& k_rows,
                             const PanelsOfA& v_rows, const PanelsOfA& keys, float* dk, float* dv, Memory& memory) {
    std::array<Panel, kBlock / kNr> of;
    const int64_t queries = std::min(plan.block, x.queries - q0), panels = CeilDiv(queries, kNr), words = Words(x.width);
    const int64_t width_panels = CeilDiv(x.width, kMr), across_words = B::PanelWords(words);
    for (int64_t j = 0; j < panels; ++j) {
      of[j] = At(x, memory.counted, b, h, q0 + j * kNr);
      Expect(x, of[j], x.out);
    }
    PackTo(x.is_bf16, Across(x, x.q, b, h, q0, queries), panels, words, memory.across);
    PackTo(x.is_bf16, Across(x, x.dy, b, h, q0, queries), panels, words, memory.dy_across);
    PackTo(x.is_bf16, Down(x, x.q, b, h, q0, queries), CeilDiv(x.width, kNr), Words(queries), memory.q_down);
    PackTo(x.is_bf16, Down(x, x.dy, b, h, q0, queries), CeilDiv(x.width, kNr), Words(queries), memory.dy_down);
    std::array<Rests, kBlock / kNr> rests;
    bool is_blind = false;
    int64_t first = INT64_MAX, end = 0;
    for (int64_t j = 0; j < panels; ++j) {
      rests[j] = Rests(x, of[j]);
      is_blind |= of[j].is_blind;
      first = std::min(first, of[j].begin), end = std::max(end, of[j].end);
    }
    const int64_t step = Step(x);
    for (int64_t base = first / step * step; base < end; base += step) {
      const int64_t from = std::max(first, base), to = std::min(CeilDiv(end, kMr) * kMr, base + step);
      for (int64_t j = 0; j < panels; ++j) {
        const Panel& at = of[j];
        const int64_t begin = std::max(at.begin, base), bottom = std::min(at.end, base + step), column = j * kNr;
        if (begin >= bottom) {
          Clear(plan, from - base, to - base, column, memory);
          continue;
        }
        Scores(x, k_rows, memory.across + j * across_words, base, begin, bottom, memory.strip);
        Scores(x, v_rows, memory.dy_across + j * across_words, base, begin, bottom, memory.grad_strip);
        Clear(plan, from - base, begin - base, column, memory);
        Gradients(x, plan, at, rests[j], base, begin, bottom, column, memory);
        Clear(plan, bottom - base, to - base, column, memory);
        const bool is_last = bottom == at.end;
        const float* turned = Turned(x, keys, begin / kPerWord, Words(bottom - begin), memory.words, begin == at.begin, is_last,
                                     memory.sums + j * width_panels * kTile, memory.turned);
        const Row as_is = {_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f)};
        if (is_last) TurnBack(x, at, turned, as_is, x.dq);
      }
      ByKeys(x, plan, q0, queries, is_blind, base, from, to, memory.p_rows, memory.dy_down, dv, memory);
      ByKeys(x, plan, q0, queries, is_blind, base, from, to, memory.ds_rows, memory.q_down, dk, memory);
    }
  }

  static void Backward(const Attention& x, const AttentionPlan& plan, AttentionSums& shared, std::atomic<int64_t>& next) {
    static thread_local Scratch scratch;
    int64_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= plan.parts) return;
    const FlushSubnormals flush;
    Memory memory(x, plan, true, scratch);
    typename K::State state;
    const int64_t group = x.heads / x.kv_heads, half = plan.sums / 2;
    for (; part < plan.parts; part = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t head = Head(x, part / plan.chunks), chunk = part % plan.chunks, kv = head % x.kv_heads, b = head / x.kv_heads;
      const PanelsOfA k_rows = ByRows(x, x.k, b, kv, memory.k_rows), v_rows = ByRows(x, x.v, b, kv, memory.v_rows);
      const PanelsOfA keys = ByWidth(x, x.k, b, kv, memory.by_width);
      Count(x, b, memory.counted);
      FindLast(x, b, memory.last);
      float* dk = plan.chunks == 1 ? memory.dk : shared.sums.data() + (head * plan.chunks + chunk) * plan.sums;
      float* dv = plan.chunks == 1 ? memory.dv : dk + half;
      std::fill_n(dk, half, 0.0f);
      std::fill_n(dv, half, 0.0f);
      for (int64_t unit = chunk; unit < group * plan.blocks; unit += plan.chunks) {
        BlockGradients(x, plan, b, kv * group + unit / plan.blocks, unit % plan.blocks * plan.block, k_rows, v_rows, keys, dk, dv, memory);
      }
      if (plan.chunks > 1) {
        // Whoever is last adds up, in the order of the chunks.
        if (shared.done[head].fetch_add(1, std::memory_order_acq_rel) + 1 < plan.chunks) continue;
        dk = shared.sums.data() + head * plan.chunks * plan.sums, dv = dk + half;
        for (int64_t other = 1; other < plan.chunks; ++other) {
          for (int64_t i = 0; i < plan.sums; ++i) dk[i] += dk[other * plan.sums + i];
        }
      }
      Finish(x, b, kv, dk, x.dk);
      Finish(x, b, kv, dv, x.dv);
    }
    _mm_sfence();
  }
};

// A kernel's matmul, and attention by the tile of the same or another.
template <class K, class OfAttention = K>
constexpr Implementation Implement() {
  using Loops = AttentionLoops<OfAttention>;
  return {Gemm<K>::kShape, Gemm<K>::Work, K::Spin, {Loops::Plan, Loops::Forward, Loops::Backward}};
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_
