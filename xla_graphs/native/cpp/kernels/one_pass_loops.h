// The loops of a pass, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything is in
// an unnamed namespace, so that no unit can be linked to another's code.
//
// A block of 256 elements goes through all steps before the next: its values stay in the L1 cache, at 1 KB each. Scalars and
// constants stay one number, and a product that only a sum reads is made with it: fewer loads and stores, and fewer loops
// to begin. Operands in f32 are read where they lie. Results are written when all steps are done, since they may lie over operands.

#ifndef XTRAIN_CPP_KERNELS_ONE_PASS_LOOPS_H_
#define XTRAIN_CPP_KERNELS_ONE_PASS_LOOPS_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "flush.h"
#include "one_pass.h"

namespace xtrain::kernels {
namespace {

constexpr int kBlock = 256;
constexpr int kLanes = 16;

inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// The upper half of the f32 is the bf16.
inline uint32_t Rounded(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  return value != value ? (bits | 0x400000) & 0xffff0000u : rounded;
}

// A value that a step reads: kBlock numbers, or one that stands for all of them.
struct Value {
  const float* at;
  bool is_one;
};

template <bool kOneA, bool kOneB, bool kOneC, class F>
inline __attribute__((always_inline)) void Loop(const float* __restrict a, const float* __restrict b, const float* __restrict c,
                                                float* __restrict to, F f) {
  const float x = *a, y = *b, z = *c;
  for (int i = 0; i < kBlock; ++i) to[i] = f(kOneA ? x : a[i], kOneB ? y : b[i], kOneC ? z : c[i]);
}

// `to` = f(a, b, c); f may ignore its last arguments.
template <class F>
inline __attribute__((always_inline)) void Map(const Value* v, float* to, F f) {
  const float *a = v[0].at, *b = v[1].at, *c = v[2].at;
  switch (v[0].is_one + 2 * v[1].is_one + 4 * v[2].is_one) {
    case 0:
      return Loop<false, false, false>(a, b, c, to, f);
    case 1:
      return Loop<true, false, false>(a, b, c, to, f);
    case 2:
      return Loop<false, true, false>(a, b, c, to, f);
    case 3:
      return Loop<true, true, false>(a, b, c, to, f);
    case 4:
      return Loop<false, false, true>(a, b, c, to, f);
    case 5:
      return Loop<true, false, true>(a, b, c, to, f);
    case 6:
      return Loop<false, true, true>(a, b, c, to, f);
    default:
      return Loop<true, true, true>(a, b, c, to, f);
  }
}

// Where a sum or difference has a product that nobody else reads: x * y and z then.
enum class Product { kNone, kFirst, kSecond };

// A step as it is executed, on values a, b, c to value `to`.
struct Move {
  StepKind kind;
  Product product;
  int64_t reads[3];
  int count;
  int64_t to;
};

// The steps, with products in the sums that alone read them.
inline std::vector<Move> Moves(const OnePass& pass) {
  const int64_t operands = pass.operands.size(), values = operands + pass.steps.size();
  std::vector<int> readers(values);
  for (const Step& step : pass.steps) {
    const int64_t reads[] = {step.a, step.b, step.c};
    for (int r = 0; r < Reads(step.kind); ++r) ++readers[reads[r]];
  }
  for (const PassResult& result : pass.results) ++readers[result.value];
  const auto is_product = [&](int64_t v) {
    return v >= operands && pass.steps[v - operands].kind == StepKind::kMultiply && readers[v] == 1;
  };
  std::vector<Move> moves;
  std::vector<char> inside(values);
  for (int64_t v = values - 1; v >= operands; --v) {
    const Step& step = pass.steps[v - operands];
    if (step.kind == StepKind::kConstant || inside[v]) continue;
    Move move = {step.kind, Product::kNone, {step.a, step.b, step.c}, Reads(step.kind), v};
    if (step.kind == StepKind::kAdd || step.kind == StepKind::kSubtract) {
      move.product = is_product(step.a) ? Product::kFirst : is_product(step.b) ? Product::kSecond : Product::kNone;
    }
    if (move.product != Product::kNone) {
      const bool is_first = move.product == Product::kFirst;
      const int64_t product = is_first ? step.a : step.b;
      const Step& of = pass.steps[product - operands];
      inside[product] = 1, move.count = 3;
      move.reads[0] = of.a, move.reads[1] = of.b, move.reads[2] = is_first ? step.b : step.a;
    }
    moves.push_back(move);
  }
  std::reverse(moves.begin(), moves.end());
  return moves;
}

inline void Compute(const Move& move, const Value* v, float* to) {
  switch (move.kind) {
    case StepKind::kConstant:
      return;  // made once
    case StepKind::kRound:
      return Map(v, to, [](float x, float, float) { return FromBits(Rounded(x)); });
    case StepKind::kSelect:
      return Map(v, to, [](float x, float y, float z) { return x != 0 ? y : z; });
    case StepKind::kNegate:
      return Map(v, to, [](float x, float, float) { return -x; });
    case StepKind::kAbs:
      return Map(v, to, [](float x, float, float) { return FromBits(Bits(x) & 0x7fffffff); });
    case StepKind::kSign:
      return Map(v, to, [](float x, float, float) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; });
    case StepKind::kSqrt:
      return Map(v, to, [](float x, float, float) { return std::sqrt(x); });
    case StepKind::kRsqrt:
      return Map(v, to, [](float x, float, float) { return 1.0f / std::sqrt(x); });
    case StepKind::kAdd:
      if (move.product == Product::kFirst) return Map(v, to, [](float x, float y, float z) { return x * y + z; });
      if (move.product == Product::kSecond) return Map(v, to, [](float x, float y, float z) { return z + x * y; });
      return Map(v, to, [](float x, float y, float) { return x + y; });
    case StepKind::kSubtract:
      if (move.product == Product::kFirst) return Map(v, to, [](float x, float y, float z) { return x * y - z; });
      if (move.product == Product::kSecond) return Map(v, to, [](float x, float y, float z) { return z - x * y; });
      return Map(v, to, [](float x, float y, float) { return x - y; });
    case StepKind::kMultiply:
      return Map(v, to, [](float x, float y, float) { return x * y; });
    case StepKind::kDivide:
      return Map(v, to, [](float x, float y, float) { return x / y; });
    case StepKind::kMax:  // of a NaN and anything a NaN, as XLA's
      return Map(v, to, [](float x, float y, float) { return x != x || x > y ? x : y; });
    case StepKind::kMin:
      return Map(v, to, [](float x, float y, float) { return x != x || x < y ? x : y; });
  }
}

inline void Work(const OnePass& pass, std::atomic<int64_t>& next, double* sums) {
  const int64_t operands = pass.operands.size(), values = operands + pass.steps.size();
  const std::vector<Move> moves = Moves(pass);
  // A place for each value. Those of steps are used again once nobody reads them: fewer of them stay nearer.
  std::vector<int64_t> last(values, -1);
  for (size_t s = 0; s < moves.size(); ++s) {
    for (int r = 0; r < moves[s].count; ++r) last[moves[s].reads[r]] = s;
  }
  for (int64_t v = 0; v < operands; ++v) last[v] = moves.size();
  for (int64_t v = operands; v < values; ++v) {
    if (pass.steps[v - operands].kind == StepKind::kConstant) last[v] = moves.size();
  }
  for (const PassResult& result : pass.results) last[result.value] = moves.size();
  std::vector<int64_t> place(values), free;
  int64_t places = 0;
  const auto take = [&] {
    if (free.empty()) return places++;
    const int64_t place = free.back();
    free.pop_back();
    return place;
  };
  for (int64_t v = 0; v < operands; ++v) place[v] = take();
  for (int64_t v = operands; v < values; ++v) {
    if (pass.steps[v - operands].kind == StepKind::kConstant) place[v] = take();
  }
  for (size_t s = 0; s < moves.size(); ++s) {
    // Taken before its operands' places are free: the loops' arrays may not overlap.
    place[moves[s].to] = take();
    for (int64_t v = 0; v < values; ++v) {
      if (last[v] == static_cast<int64_t>(s)) free.push_back(place[v]);
    }
  }
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < (places + 1) * kBlock) memory.resize((places + 1) * kBlock);
  float* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 % 16;
  std::vector<Value> at(values);
  for (int64_t v = 0; v < values; ++v) at[v] = {base + place[v] * kBlock, false};
  // Written out as well, for a result that is one of them.
  const auto fill = [&](int64_t v, float value) {
    std::fill_n(base + place[v] * kBlock, kBlock, value);
    at[v].is_one = true;
  };
  for (int64_t v = 0; v < operands; ++v) {
    if (pass.operands[v].is_scalar) fill(v, *static_cast<const float*>(pass.operands[v].data));
  }
  for (int64_t v = operands; v < values; ++v) {
    const Step& step = pass.steps[v - operands];
    if (step.kind == StepKind::kConstant) fill(v, FromBits(static_cast<uint32_t>(step.a)));
  }

  const FlushSubnormals flush;
  const int64_t chunks = PassChunks(pass);
  std::vector<float> lanes(pass.results.size() * kLanes);
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
    std::fill(lanes.begin(), lanes.end(), 0.0f);
    const int64_t end = std::min(pass.elements, (chunk + 1) * kPassChunk);
    for (int64_t begin = chunk * kPassChunk; begin < end; begin += kBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kBlock, end - begin));
      for (int64_t v = 0; v < operands; ++v) {
        const PassOperand& operand = pass.operands[v];
        if (operand.is_scalar) continue;
        float* here = base + place[v] * kBlock;
        if (operand.is_bf16) {
          const uint16_t* from = static_cast<const uint16_t*>(operand.data) + begin;
          if (count == kBlock) {
            for (int i = 0; i < kBlock; ++i) here[i] = FromBits(static_cast<uint32_t>(from[i]) << 16);
          } else {
            for (int i = 0; i < count; ++i) here[i] = FromBits(static_cast<uint32_t>(from[i]) << 16);
          }
        } else if (count == kBlock) {
          at[v].at = static_cast<const float*>(operand.data) + begin;
        } else {
          at[v].at = here;
          std::memcpy(here, static_cast<const float*>(operand.data) + begin, count * 4);
        }
      }
      for (const Move& move : moves) {
        Value v[3];
        // What is not read is one number that is there.
        for (int r = 0; r < 3; ++r) v[r] = r < move.count ? at[move.reads[r]] : Value{base, true};
        Compute(move, v, base + place[move.to] * kBlock);
      }
      for (size_t r = 0; r < pass.results.size(); ++r) {
        const PassResult& result = pass.results[r];
        const float* from = at[result.value].at;
        if (result.is_sum) {
          float sum[kLanes];
          std::copy_n(&lanes[r * kLanes], kLanes, sum);
          int i = 0;
          for (; i + kLanes <= count; i += kLanes) {
            for (int lane = 0; lane < kLanes; ++lane) sum[lane] += from[i + lane];
          }
          for (int lane = 0; i + lane < count; ++lane) sum[lane] += from[i + lane];
          std::copy_n(sum, kLanes, &lanes[r * kLanes]);
        } else if (result.is_bf16) {
          uint16_t* to = static_cast<uint16_t*>(result.data) + begin;
          if (count == kBlock) {
            for (int i = 0; i < kBlock; ++i) to[i] = static_cast<uint16_t>(Rounded(from[i]) >> 16);
          } else {
            for (int i = 0; i < count; ++i) to[i] = static_cast<uint16_t>(Rounded(from[i]) >> 16);
          }
        } else {
          std::memcpy(static_cast<float*>(result.data) + begin, from, count * 4);
        }
      }
    }
    for (size_t r = 0; r < pass.results.size(); ++r) {
      double sum = 0;
      for (int lane = 0; lane < kLanes; ++lane) sum += lanes[r * kLanes + lane];
      sums[r * chunks + chunk] = sum;
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ONE_PASS_LOOPS_H_
