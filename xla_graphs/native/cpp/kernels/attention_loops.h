// The loops of attention around a matmul kernel's packing and tile, the same for each kernel. Included by each kernel's own
// translation unit.
//
// A block of queries of one head goes through all keys that it sees before the next. Its scores stand as [keys][queries] in
// a scratch that stays in L2, so that a softmax's maximum and sum run down columns, 16 queries in a vector, without a step
// across lanes:
//
//   scores^T = K Q^T                      rows: keys; K is packed once for all queries
//   P^T      = softmax down each column   masks by position are bits of a row, made from two numbers
//   out      = P V                        the columns of P^T are the rows that packing reads
//
// Backward, with P made again instead of kept:
//
//   dP^T = V dy^T      dS^T = P^T (dP^T - sum(dP P))      dq = dS K      dk += dS^T q      dv += P^T dy
//
// Rows of keys and values, and P^T and dS^T by rows of keys, are read where they are by a kernel that can.
// dk and dv are summed over blocks of queries as the kernel stores its registers. What a causal mask or a window hides from
// a whole panel of queries is not computed.
//
// Source: Dao et al., FlashAttention (2022), for the blocking; its running maximum is not needed, since a strip of scores as
// long as all keys fits the cache.

#ifndef XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_
#define XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_

#include <cfloat>
#include <cmath>

#include "attention.h"
#include "flush.h"
#include "pack_avx512.h"

// After the packing.
#include "gemm.h"

namespace xtrain::kernels {
namespace {

constexpr float kLowest = -FLT_MAX;

// e^x, within 1 ulp or so; 0 for what is far below 0. Source: Cephes (Moshier), expf.
inline __attribute__((always_inline)) __m512 Exp(__m512 x) {
  // In this order a NaN stays.
  x = _mm512_max_ps(_mm512_set1_ps(-200.0f), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 0x08);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
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
  const __m512 e = Exp(_mm512_mul_ps(size, _mm512_set1_ps(-2.0f))), one = _mm512_set1_ps(1.0f);
  const __m512 far = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
  const __m512 signed_far = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(far), sign));
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_GE_OQ), p, signed_far);
}

// The first word of Threefry-2x32 with 13 rounds for 16 counters, as `nn/dropout.rs` writes it in XLA's operations.
class Threefry {
 public:
  explicit Threefry(const AttentionDropout& dropout) : stream_(dropout.stream) {
    keys_[0] = dropout.key[0], keys_[1] = dropout.key[1];
    keys_[2] = keys_[0] ^ keys_[1] ^ 0x1bd11bdau;
  }

  inline __attribute__((always_inline)) __m512i operator()(__m512i counters) const {
    __m512i x0 = _mm512_add_epi32(counters, Word(keys_[0]));
    __m512i x1 = Word(keys_[1] + stream_);
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

  uint32_t keys_[3], stream_;
};

// K: as in gemm.h.
template <class K>
struct AttentionLoops {
  static constexpr int64_t kPerWord = K::kPairs ? 2 : 1;
  static constexpr int kMr = K::kMr, kNr = K::kNr, kTile = kMr * kNr;
  static_assert(kNr == 32, "a panel of queries is two vectors");
  // What the strips of scores may take of L2, in f32.
  static constexpr int64_t kStripWords = 128 << 10;
  // Keys begin at a multiple of this, so that any kernel's packed words can be entered there.
  static constexpr int64_t kKeyUnit = 32;

  using PanelsOfA = typename Gemm<K>::PanelsOfA;

  static int64_t Words(int64_t k) { return CeilDiv(k, kPerWord); }

  static AttentionPlan Plan(const Attention& x, bool is_backward) {
    AttentionPlan plan;
    const int64_t strips = is_backward ? 2 : 1;
    plan.block = kNr;
    for (const int64_t block : {64, 128}) {
      const int64_t seen = x.window == 0 ? x.keys : std::min(x.keys, (x.is_causal ? 1 : 2) * x.window + block);
      if (block < x.queries + kNr && seen * block * strips <= kStripWords) plan.block = block;
    }
    plan.blocks = CeilDiv(x.queries, plan.block);
    const int64_t heads = x.batch * x.kv_heads, units = x.heads / x.kv_heads * plan.blocks;
    plan.chunks = std::max<int64_t>(1, std::min(units, CeilDiv(16, heads)));
    plan.parts = heads * plan.chunks;
    plan.sums = 2 * CeilDiv(x.keys, kMr) * CeilDiv(x.width, kNr) * kTile;
    return plan;
  }

  template <class O>
  static void PackTo(bool is_bf16, const Source& source, int64_t r0, int64_t panels, int64_t k_words, uint32_t* to) {
    Gemm<K>::template PackAs<O>(is_bf16, source, r0, panels, 0, k_words, to, O::PanelWords(k_words));
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

  // All rows of a head of keys or values as A.
  static PanelsOfA ByRows(const Attention& x, const Heads& heads, int64_t b, int64_t kv, uint32_t* to) {
    return Gemm<K>::MakePanels(x.is_bf16, Across(x, heads, b, kv, 0, x.keys), 0, CeilDiv(x.keys, kMr), 0, Words(x.width), to);
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

  // One thread's arrays.
  struct Memory {
    // Of a head of keys and values: rows as A, D as k; rows as k, D as columns.
    uint32_t *k_rows, *v_rows, *k_down, *v_down;
    // Of a block of queries.
    uint32_t *q_across, *dy_across, *q_down, *dy_down;
    uint32_t* p;  // P or dS, packed as A
    float *strip, *grad_strip, *tanh_strip;
    float *sums;  // of a tile's rows between steps of k
    float *dk, *dv;
    uint16_t* kept;
    int32_t* counted;  // how many keys count, up to each

    Memory(const Attention& x, const AttentionPlan& plan, bool is_backward, Scratch& scratch) {
      Arena arena(scratch);
      Cut(x, plan, is_backward, arena);
      arena.Lay();
      Cut(x, plan, is_backward, arena);
    }

   private:
    void Cut(const Attention& x, const AttentionPlan& plan, bool is_backward, Arena& arena) {
      const int64_t key_panels = CeilDiv(x.keys, kMr), width_panels = CeilDiv(x.width, kNr);
      const int64_t width_words = Words(x.width), key_words = Words(x.keys), block_words = Words(plan.block);
      const int64_t across = plan.block / kNr * K::B::PanelWords(width_words), down = width_panels * K::B::PanelWords(block_words);
      const int64_t strip = (CeilDiv(x.keys, kMr) + 1) * kMr * plan.block;
      const auto floats = [&](int64_t words) { return reinterpret_cast<float*>(arena.Words(words)); };
      k_rows = arena.Words(key_panels * K::A::PanelWords(width_words));
      q_across = arena.Words(across);
      strip_words = strip;
      this->strip = floats(strip);
      const int64_t by_queries = CeilDiv(plan.block, kMr) * K::A::PanelWords(key_words + kKeyUnit);
      const int64_t by_keys = (key_panels + 1) * K::A::PanelWords(block_words);
      p = arena.Words(is_backward ? std::max(by_queries, by_keys) : by_queries);
      sums = floats(CeilDiv(plan.block, kMr) * kTile);
      counted = reinterpret_cast<int32_t*>(arena.Words(x.keys + 1));
      const int64_t v_down_words = width_panels * K::B::PanelWords(key_words);
      if (!is_backward) {
        v_down = arena.Words(v_down_words);
        return;
      }
      k_down = arena.Words(v_down_words);
      v_rows = arena.Words(key_panels * K::A::PanelWords(width_words));
      dy_across = arena.Words(across);
      q_down = arena.Words(down);
      dy_down = arena.Words(down);
      grad_strip = floats(strip);
      tanh_strip = x.soft_cap > 0 ? floats(strip) : nullptr;
      kept = reinterpret_cast<uint16_t*>(arena.Words(strip / 32 + 1));
      dk = floats(key_panels * width_panels * kTile);
      dv = floats(key_panels * width_panels * kTile);
    }

   public:
    int64_t strip_words;
  };

  // A block of queries of one head, and the keys that it sees.
  struct Block {
    int64_t b, h, q0, queries, columns;  // `columns`: rounded up to panels
    bool is_blind;                       // a query sees no key: by the definition all keys then count
    int64_t first_panel, first, begin, end;  // panel of kMr keys, its first key; keys [begin, end) are seen
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

  static Block At(const Attention& x, const AttentionPlan& plan, const int32_t* counted, int64_t b, int64_t h, int64_t block) {
    Block at;
    at.b = b, at.h = h, at.q0 = block * plan.block;
    at.queries = std::min(plan.block, x.queries - at.q0);
    at.columns = CeilDiv(at.queries, kNr) * kNr;
    at.is_blind = false;
    for (int64_t q = at.q0; x.key_mask != nullptr && q < at.q0 + at.queries; ++q) {
      at.is_blind |= counted[Newest(x, q) + 1] == counted[Oldest(x, q)];
    }
    const int64_t oldest = at.is_blind ? 0 : Oldest(x, at.q0);
    at.begin = oldest / kKeyUnit * kKeyUnit;
    at.end = at.is_blind ? x.keys : Newest(x, at.q0 + at.queries - 1) + 1;
    at.first_panel = at.begin / kMr;
    at.first = at.first_panel * kMr;
    return at;
  }

  // Where the keys of a panel of queries (from column j on) end: the rest of the block's keys none of them sees.
  static int64_t End(const Attention& x, const Block& at, int64_t j) {
    return at.is_blind ? at.end : std::min(at.end, Newest(x, at.q0 + std::min(j + kNr, at.queries) - 1) + 1);
  }

  // strip[key - first][query] = rows of a head times the block's `across`, for all keys that are seen.
  static void Scores(const Attention& x, const AttentionPlan& plan, const Block& at, const PanelsOfA& rows, const uint32_t* across,
                     float* strip) {
    const int64_t words = Words(x.width), b_words = K::B::PanelWords(words);
    Matmul c = {};
    c.c = strip;
    c.c_strides[2] = plan.block;
    for (int64_t j = 0; j < at.columns; j += kNr) {
      const int64_t end = End(x, at, j);
      for (int64_t key = at.first, i = at.first_panel; key < end; key += kMr, ++i) {
        K::Tile(c, rows(i), across + j / kNr * b_words, words, nullptr, nullptr, (key - at.first) * plan.block + j,
                static_cast<int>(std::min<int64_t>(kMr, x.keys - key)), kNr);
      }
    }
  }

  // The bits of the 16 queries from q on that see the key by position.
  static inline __mmask16 Sees(const Attention& x, int64_t key, int64_t q) {
    const int64_t from = From(x, key) - q, to = To(x, key) - q;
    return FirstBits(to, 16) & ~FirstBits(from, 16);
  }

  // Scores of two vectors of queries in column j become exponentials; the normalizers are returned in `inverse`.
  static void Softmax(const Attention& x, const AttentionPlan& plan, const Block& at, int64_t j, float* strip, float* tanh_strip,
                      __m512 (&inverse)[2]) {
    const int64_t end = End(x, at, j);
    const __m512 scale = _mm512_set1_ps(x.scale), cap = _mm512_set1_ps(x.soft_cap), lowest = _mm512_set1_ps(kLowest);
    const __m512 once = _mm512_set1_ps(x.window != 0 && x.key_mask != nullptr ? kLowest / 2 : kLowest);
    const __m512 by_cap = _mm512_set1_ps(x.soft_cap > 0 ? x.scale / x.soft_cap : 0);
    // Keys that all queries of the panel see by position.
    const int64_t last_q = at.q0 + j + kNr - 1;
    const bool has_positions = x.is_causal || x.window != 0;
    __m512 most[2] = {lowest, lowest};
    for (int64_t key = at.first; key < end; ++key) {
      const bool counts = x.key_mask == nullptr || x.key_mask[at.b * x.keys + key] != 0;
      const bool all_see = !has_positions || (From(x, key) <= at.q0 + j && To(x, key) > last_q);
      float* row = strip + (key - at.first) * plan.block + j;
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        __m512 s = _mm512_loadu_ps(row + 16 * v);
        if (x.soft_cap > 0) {
          const __m512 t = Tanh(_mm512_mul_ps(s, by_cap));
          if (tanh_strip != nullptr) _mm512_storeu_ps(tanh_strip + (key - at.first) * plan.block + j + 16 * v, t);
          s = _mm512_mul_ps(t, cap);
        } else {
          s = _mm512_mul_ps(s, scale);
        }
        if (!counts || !all_see) {
          // Causal counts as part of both masks: what it hides is hidden twice.
          const __mmask16 sees = all_see ? 0xffff : Sees(x, key, at.q0 + j + 16 * v);
          const __mmask16 is_past = x.is_causal ? static_cast<__mmask16>(~FirstBits(key - at.q0 - j - 16 * v, 16)) : 0xffff;
          const __mmask16 by_key = counts ? is_past : 0;
          s = _mm512_mask_blend_ps(sees & by_key, _mm512_mask_blend_ps(sees | by_key, lowest, once), s);
        }
        most[v] = _mm512_max_ps(most[v], s);
        _mm512_storeu_ps(row + 16 * v, s);
      }
    }
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t key = at.first; key < end; ++key) {
      float* row = strip + (key - at.first) * plan.block + j;
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const __m512 e = Exp(_mm512_sub_ps(_mm512_loadu_ps(row + 16 * v), most[v]));
        sum[v] = _mm512_add_ps(sum[v], e);
        _mm512_storeu_ps(row + 16 * v, e);
      }
    }
    for (int v = 0; v < 2; ++v) inverse[v] = _mm512_div_ps(_mm512_set1_ps(1.0f), sum[v]);
  }

  // Which of the 16 queries from column j on keep their key.
  struct Keeper {
    const Attention& x;
    const Threefry bits;
    __m512i counters;
    __m512i threshold;

    Keeper(const Attention& x, const Block& at, int64_t j)
        : x(x), bits(x.dropout), threshold(_mm512_set1_epi32(static_cast<int32_t>(x.dropout.threshold))) {
      const uint32_t rows = static_cast<uint32_t>((at.b * x.heads + at.h) * x.queries + at.q0 + j);
      const uint32_t shard = x.dropout.key[2] * static_cast<uint32_t>(x.batch * x.heads * x.queries);
      const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      counters = _mm512_mullo_epi32(_mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(rows + shard)), lanes),
                                    _mm512_set1_epi32(static_cast<int32_t>(x.keys)));
    }

    inline __attribute__((always_inline)) __mmask16 operator()(int64_t key) const {
      const __m512i words = bits(_mm512_add_epi32(counters, _mm512_set1_epi32(static_cast<int32_t>(key))));
      return _mm512_cmpge_epu32_mask(words, threshold);
    }
  };

  // Rows from `end` to the block's own end as zeros: nobody of the panel sees them, but packing reads them.
  static void Clear(const AttentionPlan& plan, const Block& at, int64_t j, int64_t end, float* strip) {
    for (int64_t key = end; key < at.end; ++key) {
      float* row = strip + (key - at.first) * plan.block + j;
      _mm512_storeu_ps(row, _mm512_setzero_ps());
      _mm512_storeu_ps(row + 16, _mm512_setzero_ps());
    }
  }

  // rows x D of the block: `strip` (as [queries, keys]) times `down` [keys, D], to `c`.
  static void ByQueries(const Attention& x, const AttentionPlan& plan, const Block& at, const float* strip, const uint32_t* down,
                        const Heads& to, Memory& memory) {
    const int64_t keys = at.end - at.begin, words = Words(keys);
    const int64_t b_words = K::B::PanelWords(Words(x.keys)), skipped = at.begin / kPerWord;
    const Source source = {strip + (at.begin - at.first) * plan.block, 1, plan.block, at.queries, keys};
    const int64_t panels = CeilDiv(at.queries, kMr);
    const PanelsOfA left = Gemm<K>::MakePanels(false, source, 0, panels, 0, words, memory.p);
    Matmul c = {};
    c.c = to.data, c.c_bf16 = x.is_bf16;
    c.c_strides[2] = to.strides[2];
    const int64_t base = at.b * to.strides[0] + at.h * to.strides[1] + at.q0 * to.strides[2];
    const bool resumes = K::kStep < words;
    for (int64_t d = 0; d < x.width; d += kNr) {
      const uint32_t* panel = down + d / kNr * b_words + skipped * kNr;
      for (int64_t k = 0; k < words; k += K::kStep) {
        for (int64_t i = 0; i < panels; ++i) {
          const int rows = static_cast<int>(std::min<int64_t>(kMr, at.queries - i * kMr));
          // The last key that one of the rows sees.
          const int64_t end = at.is_blind ? at.end : std::min(at.end, Newest(x, at.q0 + i * kMr + rows - 1) + 1);
          const int64_t needed = std::min(words, CeilDiv(Words(end - at.begin), 16) * 16);
          if (k >= needed) continue;
          float* sums = resumes ? memory.sums + i * kTile : nullptr;
          K::Tile(c, left(i).From(k), panel + k * kNr, std::min(K::kStep, needed - k), k == 0 ? nullptr : sums,
                  k + K::kStep >= needed ? nullptr : sums, base + i * kMr * to.strides[2] + d, rows,
                  static_cast<int>(std::min<int64_t>(kNr, x.width - d)));
        }
      }
    }
  }

  // Adds to the sums of each key's row: `strip` [keys, queries] times `down` [queries, D].
  static void ByKeys(const Attention& x, const AttentionPlan& plan, const Block& at, const float* strip, const uint32_t* down,
                     float* sums, Memory& memory) {
    const int64_t words = Words(at.queries), b_words = K::B::PanelWords(words);
    const int64_t width_panels = CeilDiv(x.width, kNr), keys = at.end - at.first, panels = CeilDiv(keys, kMr);
    Source source = {strip, plan.block, 1, keys, at.queries};
    uint32_t* to = memory.p;
    constexpr bool kRounds = K::kPairs && K::kReadsRows;
    if constexpr (kRounds) {
      // Rounded, its rows are words as they stand.
      source.data = to, source.k_size = at.columns;
      for (int64_t key = 0; key < keys; ++key, to += plan.block / 2) {
        for (int64_t q = 0; q < at.columns; q += 32) RoundRow(strip + key * plan.block + q, at.queries - q, to + q / 2);
      }
    }
    const PanelsOfA left = Gemm<K>::MakePanels(kRounds, source, 0, panels, 0, words, to);
    const Matmul c = {};
    for (int64_t d = 0; d < width_panels; ++d) {
      for (int64_t i = 0; i < panels; ++i) {
        // Queries before the first key of the panel do not see it.
        const int64_t from = at.is_blind ? 0 : std::max<int64_t>(0, From(x, at.first + i * kMr) - at.q0);
        const int64_t k = from / kPerWord / 16 * 16;
        if (k >= words) continue;
        float* tile = sums + ((at.first_panel + i) * width_panels + d) * kTile;
        K::Tile(c, left(i).From(k), down + d * b_words + k * kNr, words - k, tile, tile, 0, kMr, kNr);
      }
    }
  }

  static void Forward(const Attention& x, const AttentionPlan& plan, std::atomic<int64_t>& next) {
    static thread_local Scratch scratch;
    int64_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= plan.parts) return;
    const FlushSubnormals flush;
    Memory memory(x, plan, false, scratch);
    typename K::State state;
    const int64_t group = x.heads / x.kv_heads, width_panels = CeilDiv(x.width, kNr);
    for (; part < plan.parts; part = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t chunk = part % plan.chunks, kv = part / plan.chunks % x.kv_heads, b = part / plan.chunks / x.kv_heads;
      const PanelsOfA k_rows = ByRows(x, x.k, b, kv, memory.k_rows);
      PackTo<typename K::B>(x.is_bf16, Down(x, x.v, b, kv, 0, x.keys), 0, width_panels, Words(x.keys), memory.v_down);
      Count(x, b, memory.counted);
      for (int64_t unit = chunk; unit < group * plan.blocks; unit += plan.chunks) {
        const int64_t h = kv * group + unit / plan.blocks;
        const Block at = At(x, plan, memory.counted, b, h, unit % plan.blocks);
        const Source q = Across(x, x.q, b, h, at.q0, at.queries);
        PackTo<typename K::B>(x.is_bf16, q, 0, at.columns / kNr, Words(x.width), memory.q_across);
        Scores(x, plan, at, k_rows, memory.q_across, memory.strip);
        for (int64_t j = 0; j < at.columns; j += kNr) {
          const int64_t end = End(x, at, j);
          __m512 inverse[2];
          Softmax(x, plan, at, j, memory.strip, nullptr, inverse);
          const __m512 kept_scale = _mm512_set1_ps(x.dropout.is_on ? x.dropout.scale : 1.0f);
          for (int v = 0; v < 2; ++v) {
            const Keeper keeper(x, at, j + 16 * v);
            const __m512 by = _mm512_mul_ps(inverse[v], kept_scale);
            float* column = memory.strip + j + 16 * v;
            for (int64_t key = at.first; key < end; ++key) {
              float* row = column + (key - at.first) * plan.block;
              const __mmask16 keep = x.dropout.is_on ? keeper(key) : 0xffff;
              _mm512_storeu_ps(row, _mm512_maskz_mul_ps(keep, _mm512_loadu_ps(row), by));
            }
          }
          Clear(plan, at, j, end, memory.strip);
        }
        ByQueries(x, plan, at, memory.strip, memory.v_down, x.out, memory);
      }
    }
  }

  // Exponentials and dP become what the gradients' matmuls read: P after dropout, and dS.
  static void Gradients(const Attention& x, const AttentionPlan& plan, const Block& at, int64_t j, Memory& memory) {
    const int64_t end = End(x, at, j);
    __m512 inverse[2];
    Softmax(x, plan, at, j, memory.strip, memory.tanh_strip, inverse);
    const __m512 kept_scale = _mm512_set1_ps(x.dropout.is_on ? x.dropout.scale : 1.0f), scale = _mm512_set1_ps(x.scale);
    for (int v = 0; v < 2; ++v) {
      const Keeper keeper(x, at, j + 16 * v);
      float *p = memory.strip + j + 16 * v, *dp = memory.grad_strip + j + 16 * v;
      uint16_t* kept = memory.kept;
      __m512 projected = _mm512_setzero_ps();
      for (int64_t key = at.first; key < end; ++key, p += plan.block, dp += plan.block) {
        const __m512 probability = _mm512_mul_ps(_mm512_loadu_ps(p), inverse[v]);
        __m512 grad = _mm512_loadu_ps(dp);
        if (x.dropout.is_on) {
          const __mmask16 keep = keeper(key);
          *kept++ = keep;
          grad = _mm512_maskz_mul_ps(keep, grad, kept_scale);
          _mm512_storeu_ps(dp, grad);
        }
        projected = _mm512_fmadd_ps(grad, probability, projected);
        _mm512_storeu_ps(p, probability);
      }
      p = memory.strip + j + 16 * v, dp = memory.grad_strip + j + 16 * v;
      kept = memory.kept;
      const float* tanh = memory.tanh_strip == nullptr ? nullptr : memory.tanh_strip + j + 16 * v;
      for (int64_t key = at.first; key < end; ++key, p += plan.block, dp += plan.block) {
        const __m512 probability = _mm512_loadu_ps(p);
        __m512 grad = _mm512_mul_ps(_mm512_mul_ps(probability, scale), _mm512_sub_ps(_mm512_loadu_ps(dp), projected));
        if (tanh != nullptr) {
          const __m512 t = _mm512_loadu_ps(tanh + (key - at.first) * plan.block);
          grad = _mm512_mul_ps(grad, _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1.0f)));
        }
        if (at.is_blind) {
          // A row without a key is uniform whatever its scores are.
          const bool counts = x.key_mask[at.b * x.keys + key] != 0;
          grad = _mm512_maskz_mov_ps(counts ? Sees(x, key, at.q0 + j + 16 * v) : 0, grad);
        }
        _mm512_storeu_ps(dp, grad);
        if (x.dropout.is_on) _mm512_storeu_ps(p, _mm512_maskz_mul_ps(*kept++, probability, kept_scale));
      }
    }
    Clear(plan, at, j, end, memory.strip);
    Clear(plan, at, j, end, memory.grad_strip);
  }

  // The sums of a head of keys, to where they belong.
  static void Finish(const Attention& x, int64_t b, int64_t kv, const float* sums, const Heads& to) {
    const int64_t width_panels = CeilDiv(x.width, kNr);
    Matmul c = {};
    c.c = to.data, c.c_bf16 = x.is_bf16;
    c.c_strides[2] = to.strides[2];
    const int64_t base = b * to.strides[0] + kv * to.strides[1];
    for (int64_t key = 0, i = 0; key < x.keys; key += kMr, ++i) {
      for (int64_t d = 0; d < width_panels; ++d) {
        K::Tile(c, Rows{}, nullptr, 0, sums + (i * width_panels + d) * kTile, nullptr, base + key * to.strides[2] + d * kNr,
                static_cast<int>(std::min<int64_t>(kMr, x.keys - key)), static_cast<int>(std::min<int64_t>(kNr, x.width - d * kNr)));
      }
    }
  }

  static void Backward(const Attention& x, const AttentionPlan& plan, AttentionSums& shared, std::atomic<int64_t>& next) {
    static thread_local Scratch scratch;
    int64_t part = next.fetch_add(1, std::memory_order_relaxed);
    if (part >= plan.parts) return;
    const FlushSubnormals flush;
    Memory memory(x, plan, true, scratch);
    typename K::State state;
    const int64_t group = x.heads / x.kv_heads, width_panels = CeilDiv(x.width, kNr);
    const int64_t half = plan.sums / 2;
    for (; part < plan.parts; part = next.fetch_add(1, std::memory_order_relaxed)) {
      const int64_t head = part / plan.chunks, chunk = part % plan.chunks, kv = head % x.kv_heads, b = head / x.kv_heads;
      const PanelsOfA k_rows = ByRows(x, x.k, b, kv, memory.k_rows), v_rows = ByRows(x, x.v, b, kv, memory.v_rows);
      PackTo<typename K::B>(x.is_bf16, Down(x, x.k, b, kv, 0, x.keys), 0, width_panels, Words(x.keys), memory.k_down);
      Count(x, b, memory.counted);
      float* dk = plan.chunks == 1 ? memory.dk : shared.sums.data() + part * plan.sums;
      float* dv = plan.chunks == 1 ? memory.dv : dk + half;
      std::fill_n(dk, half, 0.0f);
      std::fill_n(dv, half, 0.0f);
      for (int64_t unit = chunk; unit < group * plan.blocks; unit += plan.chunks) {
        const int64_t h = kv * group + unit / plan.blocks;
        const Block at = At(x, plan, memory.counted, b, h, unit % plan.blocks);
        const int64_t panels = at.columns / kNr, words = Words(x.width), block_words = Words(at.queries);
        PackTo<typename K::B>(x.is_bf16, Across(x, x.q, b, h, at.q0, at.queries), 0, panels, words, memory.q_across);
        PackTo<typename K::B>(x.is_bf16, Across(x, x.dy, b, h, at.q0, at.queries), 0, panels, words, memory.dy_across);
        PackTo<typename K::B>(x.is_bf16, Down(x, x.q, b, h, at.q0, at.queries), 0, width_panels, block_words, memory.q_down);
        PackTo<typename K::B>(x.is_bf16, Down(x, x.dy, b, h, at.q0, at.queries), 0, width_panels, block_words, memory.dy_down);
        Scores(x, plan, at, k_rows, memory.q_across, memory.strip);
        Scores(x, plan, at, v_rows, memory.dy_across, memory.grad_strip);
        for (int64_t j = 0; j < at.columns; j += kNr) Gradients(x, plan, at, j, memory);
        ByQueries(x, plan, at, memory.grad_strip, memory.k_down, x.dq, memory);
        ByKeys(x, plan, at, memory.strip, memory.dy_down, dv, memory);
        ByKeys(x, plan, at, memory.grad_strip, memory.q_down, dk, memory);
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
  }
};

// A kernel's matmul and attention.
template <class K>
constexpr Implementation Implement() {
  return {Gemm<K>::MakePlan, Gemm<K>::Work, {AttentionLoops<K>::Plan, AttentionLoops<K>::Forward, AttentionLoops<K>::Backward}};
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ATTENTION_LOOPS_H_
