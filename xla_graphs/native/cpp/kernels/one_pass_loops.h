// The loops of a pass, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything is in
// an unnamed namespace, so that no unit can be linked to another's code.
//
// A block of 512 elements goes through all steps before the next: its values stay in the L1 cache, at 2 KB each. Operands
// in f32 are read where they lie. Results are written when all steps are done, since they may lie over operands.

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

constexpr int kBlock = 512;
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

template <class F>
inline __attribute__((always_inline)) void Map1(const float* __restrict a, float* __restrict to, F f) {
  for (int i = 0; i < kBlock; ++i) to[i] = f(a[i]);
}

template <class F>
inline __attribute__((always_inline)) void Map2(const float* __restrict a, const float* __restrict b, float* __restrict to, F f) {
  for (int i = 0; i < kBlock; ++i) to[i] = f(a[i], b[i]);
}

inline void Compute(const Step& step, const float* a, const float* b, const float* c, float* to) {
  switch (step.kind) {
    case StepKind::kConstant:
      return;  // made once
    case StepKind::kRound:
      return Map1(a, to, [](float x) { return FromBits(Rounded(x)); });
    case StepKind::kSelect:
      for (int i = 0; i < kBlock; ++i) to[i] = a[i] != 0 ? b[i] : c[i];
      return;
    case StepKind::kNegate:
      return Map1(a, to, [](float x) { return -x; });
    case StepKind::kAbs:
      return Map1(a, to, [](float x) { return FromBits(Bits(x) & 0x7fffffff); });
    case StepKind::kSign:
      return Map1(a, to, [](float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; });
    case StepKind::kSqrt:
      return Map1(a, to, [](float x) { return std::sqrt(x); });
    case StepKind::kRsqrt:
      return Map1(a, to, [](float x) { return 1.0f / std::sqrt(x); });
    case StepKind::kAdd:
      return Map2(a, b, to, [](float x, float y) { return x + y; });
    case StepKind::kSubtract:
      return Map2(a, b, to, [](float x, float y) { return x - y; });
    case StepKind::kMultiply:
      return Map2(a, b, to, [](float x, float y) { return x * y; });
    case StepKind::kDivide:
      return Map2(a, b, to, [](float x, float y) { return x / y; });
    case StepKind::kMax:  // of a NaN and anything a NaN, as XLA's
      return Map2(a, b, to, [](float x, float y) { return x != x || x > y ? x : y; });
    case StepKind::kMin:
      return Map2(a, b, to, [](float x, float y) { return x != x || x < y ? x : y; });
  }
}

inline void Work(const OnePass& pass, std::atomic<int64_t>& next, double* sums) {
  const int64_t operands = pass.operands.size(), values = operands + pass.steps.size();
  // A place for each value. Those of steps are used again once nobody reads them: fewer of them stay nearer.
  std::vector<int64_t> last(values, -1);
  for (size_t s = 0; s < pass.steps.size(); ++s) {
    const Step& step = pass.steps[s];
    const int64_t reads[] = {step.a, step.b, step.c};
    for (int r = 0; r < Reads(step.kind); ++r) last[reads[r]] = s;
  }
  for (int64_t v = 0; v < operands; ++v) last[v] = pass.steps.size();
  for (size_t s = 0; s < pass.steps.size(); ++s) {
    if (pass.steps[s].kind == StepKind::kConstant) last[operands + s] = pass.steps.size();
  }
  for (const PassResult& result : pass.results) last[result.value] = pass.steps.size();
  std::vector<int64_t> place(values), free;
  int64_t places = 0;
  const auto take = [&] {
    if (free.empty()) return places++;
    const int64_t place = free.back();
    free.pop_back();
    return place;
  };
  for (int64_t v = 0; v < operands; ++v) place[v] = take();
  for (size_t s = 0; s < pass.steps.size(); ++s) {
    // Taken before its operands' places are free: the loops' arrays may not overlap.
    place[operands + s] = take();
    for (int64_t v = 0; v < operands + static_cast<int64_t>(s); ++v) {
      if (last[v] == static_cast<int64_t>(s)) free.push_back(place[v]);
    }
  }
  static thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < (places + 1) * kBlock) memory.resize((places + 1) * kBlock);
  float* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 % 16;
  std::vector<const float*> at(values);
  for (int64_t v = 0; v < values; ++v) at[v] = base + place[v] * kBlock;
  const auto fill = [&](int64_t v, float value) { std::fill_n(base + place[v] * kBlock, kBlock, value); };
  for (int64_t v = 0; v < operands; ++v) {
    if (pass.operands[v].is_scalar) fill(v, *static_cast<const float*>(pass.operands[v].data));
  }
  for (size_t s = 0; s < pass.steps.size(); ++s) {
    if (pass.steps[s].kind == StepKind::kConstant) fill(operands + s, FromBits(static_cast<uint32_t>(pass.steps[s].a)));
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
          at[v] = static_cast<const float*>(operand.data) + begin;
        } else {
          at[v] = here;
          std::memcpy(here, static_cast<const float*>(operand.data) + begin, count * 4);
        }
      }
      for (size_t s = 0; s < pass.steps.size(); ++s) {
        const Step& step = pass.steps[s];
        const auto read = [&](int r, int64_t v) { return r < Reads(step.kind) ? at[v] : nullptr; };
        Compute(step, read(0, step.a), read(1, step.b), read(2, step.c), base + place[operands + s] * kBlock);
      }
      for (size_t r = 0; r < pass.results.size(); ++r) {
        const PassResult& result = pass.results[r];
        const float* from = at[result.value];
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
