// The loops of a pass, compiled once for each instruction set: plain C++ that a compiler makes vectors of. Everything is in
// an unnamed namespace, so that no unit can be linked to another's code.
//
// A block of 256 elements goes through all steps before the next: its values stay in the L1 cache, at 1 KB each. Scalars and
// constants stay one number, and a product that only a sum reads is made with it: fewer loads and stores, and fewer loops
// to begin. Operands in f32 are read where they lie. Results are written when all steps are done, since they may lie over operands.
//
// What has strides is gathered into a block and scattered from one, row by row.
//
// Passes that most runs execute (known_passes.h) are one loop each, whose values stay in registers: a third of the time.

#ifndef XTRAIN_CPP_KERNELS_ONE_PASS_LOOPS_H_
#define XTRAIN_CPP_KERNELS_ONE_PASS_LOOPS_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "bits.h"
#include "block_codes.h"
#include "flush.h"
#include "gelu.h"
#include "known_passes.h"
#include "one_pass.h"

namespace xtrain::kernels {
namespace {

// What a step computes of the values that it reads; the others are ignored.
template <StepKind kKind>
struct Of {
  inline __attribute__((always_inline)) float operator()(float x, float y, float z) const {
    using K = StepKind;
    static_assert(kKind != K::kConstant && (kKind < K::kDecodeSigned || kKind > K::kScale), "made once, or for a block");
    if constexpr (kKind == K::kRound) return FromBits(Rounded(x));
    if constexpr (kKind == K::kSelect) return x != 0 ? y : z;
    if constexpr (kKind == K::kNegate) return -x;
    if constexpr (kKind == K::kAbs) return FromBits(Bits(x) & 0x7fffffff);
    if constexpr (kKind == K::kSign) return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
    if constexpr (kKind == K::kSqrt) return std::sqrt(x);
    if constexpr (kKind == K::kRsqrt) return 1.0f / std::sqrt(x);
    if constexpr (kKind == K::kAdd) return x + y;
    if constexpr (kKind == K::kSubtract) return x - y;
    if constexpr (kKind == K::kMultiply) return x * y;
    if constexpr (kKind == K::kDivide) return x / y;
    // Of a NaN and anything a NaN, as XLA's.
    if constexpr (kKind == K::kMax) return x != x || x > y ? x : y;
    if constexpr (kKind == K::kMin) return x != x || x < y ? x : y;
    if constexpr (kKind == K::kLogistic) return Logistic(x);
    if constexpr (kKind == K::kGelu) return GeluOf<false>(x);
    if constexpr (kKind == K::kGeluTanh) return GeluOf<true>(x);
    if constexpr (kKind == K::kGeluSlope) return GeluSlope<false>(x);
    if constexpr (kKind == K::kGeluTanhSlope) return GeluSlope<true>(x);
  }
};

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

// A block's codes as numbers; 0 past the first `count`, since entries are looked up for all.
inline void ReadCodes(const uint8_t* __restrict from, int count, float* __restrict to) {
  uint8_t codes[kBlock] = {};
  std::memcpy(codes, from, count);
  for (int i = 0; i < kBlock; ++i) to[i] = codes[i];
}

inline void WriteCodes(const float* __restrict from, int count, uint8_t* __restrict to) {
  uint8_t codes[kBlock];
  for (int i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(static_cast<int32_t>(from[i]));
  std::memcpy(to, codes, count);
}

// The largest |x| of a block's first `count`, at least `floor`.
inline float Scale(const Value& x, int count, float floor) {
  typedef int32_t Words __attribute__((vector_size(4 * kLanes)));
  if (x.is_one) return std::max(floor, std::fabs(*x.at));
  Lanes largest = Lanes{} + floor;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes size = reinterpret_cast<Lanes>(reinterpret_cast<Words>(ReadLanes(x.at + i)) & 0x7fffffff);
    largest = largest > size ? largest : size;
  }
  float scale = floor;
  for (int lane = 0; lane < kLanes; ++lane) scale = std::max(scale, largest[lane]);
  for (; i < count; ++i) scale = std::max(scale, std::fabs(x.at[i]));
  return scale;
}

inline void Compute(const Move& move, const Value* v, float* to) {
  using K = StepKind;
  switch (move.kind) {
    case K::kConstant:
      return;  // made once
    case K::kRound:
      return Map(v, to, Of<K::kRound>());
    case K::kSelect:
      return Map(v, to, Of<K::kSelect>());
    case K::kNegate:
      return Map(v, to, Of<K::kNegate>());
    case K::kAbs:
      return Map(v, to, Of<K::kAbs>());
    case K::kSign:
      return Map(v, to, Of<K::kSign>());
    case K::kSqrt:
      return Map(v, to, Of<K::kSqrt>());
    case K::kRsqrt:
      return Map(v, to, Of<K::kRsqrt>());
    case K::kAdd:
      if (move.product == Product::kFirst) return Map(v, to, [](float x, float y, float z) { return x * y + z; });
      if (move.product == Product::kSecond) return Map(v, to, [](float x, float y, float z) { return z + x * y; });
      return Map(v, to, Of<K::kAdd>());
    case K::kSubtract:
      if (move.product == Product::kFirst) return Map(v, to, [](float x, float y, float z) { return x * y - z; });
      if (move.product == Product::kSecond) return Map(v, to, [](float x, float y, float z) { return z - x * y; });
      return Map(v, to, Of<K::kSubtract>());
    case K::kMultiply:
      return Map(v, to, Of<K::kMultiply>());
    case K::kDivide:
      return Map(v, to, Of<K::kDivide>());
    case K::kMax:
      return Map(v, to, Of<K::kMax>());
    case K::kMin:
      return Map(v, to, Of<K::kMin>());
    case K::kDecodeSigned:
      return Map(v, to, [](float code, float scale, float) { return kEntriesOf<true>.at[static_cast<int>(code)] * scale; });
    case K::kDecodeUnsigned:
      return Map(v, to, [](float code, float scale, float) { return kEntriesOf<false>.at[static_cast<int>(code)] * scale; });
    case K::kEncodeSigned:
      return Map(v, to, [](float x, float scale, float) { return Code<true>(x, scale); });
    case K::kEncodeUnsigned:
      return Map(v, to, [](float x, float scale, float) { return Code<false>(x, scale); });
    case K::kScale:
      return;  // of a block, not of elements
    case K::kLogistic:
      return Map(v, to, Of<K::kLogistic>());
    case K::kGelu:
      return Map(v, to, Of<K::kGelu>());
    case K::kGeluTanh:
      return Map(v, to, Of<K::kGeluTanh>());
    case K::kGeluSlope:
      return Map(v, to, Of<K::kGeluSlope>());
    case K::kGeluTanhSlope:
      return Map(v, to, Of<K::kGeluTanhSlope>());
  }
}

// A value of a pass P that is known: that of a step, of values before it.
template <class P, size_t kStep, size_t kValues>
inline __attribute__((always_inline)) float Made(const float (&v)[kValues], const float* constants) {
  constexpr Step step = P::kSteps[kStep];
  if constexpr (step.kind == StepKind::kConstant) {
    return constants[kStep];
  } else {
    return Of<step.kind>()(v[step.a], v[step.b], v[step.c]);
  }
}

// P over elements [begin, end), all values in registers; `lanes` gets what the sums add up to, as Work has it.
template <class P, size_t... kOperand, size_t... kStep, size_t... kResult>
inline __attribute__((always_inline)) void FuseSteps(const OnePass& pass, int64_t begin, int64_t end, float* lanes, std::index_sequence<kOperand...>,
                                                 std::index_sequence<kStep...>, std::index_sequence<kResult...>) {
  constexpr size_t kOperands = sizeof...(kOperand);
  const float* const read[] = {static_cast<const float*>(pass.operands[kOperand].data)...};
  const float scalars[] = {(P::kScalars[kOperand] ? *read[kOperand] : 0.0f)...};
  const float constants[] = {FromBits(static_cast<uint32_t>(pass.steps[kStep].a))...};
  float* const to[] = {static_cast<float*>(pass.results[kResult].data)...};
  float sums[sizeof...(kResult)][kLanes] = {};
  const auto at = [&](int64_t i, int lane) __attribute__((always_inline)) {
    float v[kOperands + sizeof...(kStep)];
    ((v[kOperand] = P::kScalars[kOperand] ? scalars[kOperand] : read[kOperand][i + lane]), ...);
    ((v[kOperands + kStep] = Made<P, kStep>(v, constants)), ...);
    ((P::kSums[kResult] ? sums[kResult][lane] += v[P::kResults[kResult]] : to[kResult][i + lane] = v[P::kResults[kResult]]), ...);
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    // A result may lie over an operand, element over element.
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) at(i, lane);
  }
  for (int lane = 0; i + lane < end; ++lane) at(i, lane);
  std::memcpy(lanes, sums, sizeof(sums));
}

using FusedLoop = void (*)(const OnePass& pass, int64_t begin, int64_t end, float* lanes);

template <class P>
void Fused(const OnePass& pass, int64_t begin, int64_t end, float* lanes) {
  FuseSteps<P>(pass, begin, end, lanes, std::make_index_sequence<std::size(P::kScalars)>(), std::make_index_sequence<std::size(P::kSteps)>(),
           std::make_index_sequence<std::size(P::kResults)>());
}

// Whether a pass is P.
template <class P>
bool Is(const OnePass& pass) {
  if (pass.operands.size() != std::size(P::kScalars) || pass.steps.size() != std::size(P::kSteps) || pass.results.size() != std::size(P::kResults)) {
    return false;
  }
  for (size_t i = 0; i < pass.operands.size(); ++i) {
    const PassOperand& operand = pass.operands[i];
    if (operand.form != (P::kScalars[i] ? Form::kOne : Form::kF32) || !operand.strides.empty()) return false;
  }
  for (size_t i = 0; i < pass.steps.size(); ++i) {
    const Step &step = pass.steps[i], &known = P::kSteps[i];
    const int64_t reads[] = {step.a, step.b, step.c}, knows[] = {known.a, known.b, known.c};
    if (step.kind != known.kind || !std::equal(reads, reads + Reads(step.kind), knows)) return false;
  }
  for (size_t i = 0; i < pass.results.size(); ++i) {
    const PassResult& result = pass.results[i];
    if (result.value != P::kResults[i] || result.form != (P::kSums[i] ? Form::kOne : Form::kF32) || !result.strides.empty()) return false;
  }
  return true;
}

// The loop of its own that a pass has, or null.
template <class... P>
FusedLoop FindFused(const OnePass& pass, Passes<P...>) {
  FusedLoop found = nullptr;
  ((Is<P>(pass) ? void(found = Fused<P>) : void()), ...);
  return found;
}

// Where a block begins: the row, by its place along each of a pass's sizes but the last, and the column.
class Place {
 public:
  Place(const std::vector<int64_t>& sizes, int64_t element) : sizes_(sizes), rows_(static_cast<int>(sizes.size()) - 1) {
    if (rows_ < 0) return;
    column_ = element % sizes[rows_];
    element /= sizes[rows_];
    for (int d = rows_ - 1; d >= 0; --d) at_[d] = element % sizes[d], element /= sizes[d];
  }

  // Calls `row(first, offset, count)` for the parts of rows of which `count` elements from here on are made.
  template <class F>
  inline __attribute__((always_inline)) void Each(const std::vector<int64_t>& strides, int count, F row) const {
    int64_t at[kMostSizes], offset = 0, column = column_;
    for (int d = 0; d < rows_; ++d) at[d] = at_[d], offset += at[d] * strides[d];
    for (int first = 0; first < count; column = 0) {
      const int here = static_cast<int>(std::min<int64_t>(sizes_[rows_] - column, count - first));
      row(first, offset + column, here);
      first += here;
      for (int d = rows_ - 1; d >= 0; --d) {
        offset += strides[d];
        if (++at[d] < sizes_[d]) break;
        offset -= at[d] * strides[d], at[d] = 0;
      }
    }
  }

 private:
  const std::vector<int64_t>& sizes_;
  const int rows_;
  int64_t at_[kMostSizes] = {}, column_ = 0;
};

template <class T>
inline __attribute__((always_inline)) void ReadRow(const T* __restrict from, int count, float* __restrict to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes values = ReadLanes(from + i);
    std::memcpy(to + i, &values, sizeof values);
  }
  for (; i < count; ++i) to[i] = Read(from[i]);
}

template <class T>
inline __attribute__((always_inline)) void WriteRow(const float* __restrict from, int count, T* __restrict to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) Write(from[i + lane], to + i + lane);
  }
  for (; i < count; ++i) Write(from[i], to + i);
}

// A pass in blocks, step after step.
class Blocks {
 public:
  explicit Blocks(const OnePass& pass) : pass_(pass), operands_(pass.operands.size()), moves_(Moves(pass)) {
    const int64_t values = operands_ + pass.steps.size();
    // A place for each value. Those of steps are used again once nobody reads them: fewer of them stay nearer.
    std::vector<int64_t> last(values, -1);
    for (size_t s = 0; s < moves_.size(); ++s) {
      for (int r = 0; r < moves_[s].count; ++r) last[moves_[s].reads[r]] = s;
    }
    for (int64_t v = 0; v < values; ++v) {
      if (v < operands_ || IsConstant(v)) last[v] = moves_.size();
    }
    for (const PassResult& result : pass.results) last[result.value] = moves_.size();
    std::vector<int64_t> place(values), free;
    int64_t places = 0;
    const auto take = [&] {
      if (free.empty()) return places++;
      const int64_t place = free.back();
      free.pop_back();
      return place;
    };
    for (int64_t v = 0; v < values; ++v) {
      if (v < operands_ || IsConstant(v)) place[v] = take();
    }
    for (size_t s = 0; s < moves_.size(); ++s) {
      // Taken before its operands' places are free: the loops' arrays may not overlap.
      place[moves_[s].to] = take();
      for (int64_t v = 0; v < values; ++v) {
        if (last[v] == static_cast<int64_t>(s)) free.push_back(place[v]);
      }
    }
    static thread_local std::vector<float> memory;
    if (static_cast<int64_t>(memory.size()) < (places + 1) * kBlock) memory.resize((places + 1) * kBlock);
    float* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) / 4 % 16;
    for (int64_t v = 0; v < values; ++v) here_.push_back(base + place[v] * kBlock), at_.push_back({here_[v], false});
    to_ = here_;
    for (int64_t v = 0; v < values; ++v) {
      if (IsScale(v)) at_[v].is_one = true;
      if (v < operands_ ? pass.operands[v].form == Form::kOne : IsConstant(v)) {
        const float one = v < operands_ ? *static_cast<const float*>(pass.operands[v].data) : FromBits(static_cast<uint32_t>(pass.steps[v - operands_].a));
        // Written out as well, for a result that is one of them.
        std::fill_n(here_[v], kBlock, one);
        at_[v].is_one = true;
      }
    }
    for (const PassResult& result : pass.results) {
      const auto is_over = [&](const PassOperand& operand) { return operand.data == result.data; };
      const auto is_direct = [&](const Direct& direct) { return direct.value == result.value; };
      const bool is_computed = result.value >= operands_ && !at_[result.value].is_one, lies_in_order = result.form == Form::kF32 && result.strides.empty();
      if (is_computed && lies_in_order && std::none_of(pass.operands.begin(), pass.operands.end(), is_over) &&
          std::none_of(direct_.begin(), direct_.end(), is_direct)) {
        direct_.push_back({result.value, static_cast<float*>(result.data)});
      }
    }
  }

  // Elements [begin, end). Sums add up in `lanes`, of kLanes for each result.
  void operator()(int64_t begin, int64_t end, float* lanes) {
    for (; begin < end; begin += kBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kBlock, end - begin));
      Read(begin, count);
      for (const Direct& direct : direct_) {
        at_[direct.value].at = to_[direct.value] = count == kBlock ? direct.data + begin : here_[direct.value];
      }
      for (const Move& move : moves_) {
        Value v[3];
        // What is not read is one number that is there.
        for (int r = 0; r < 3; ++r) v[r] = r < move.count ? at_[move.reads[r]] : Value{to_[move.to], true};
        if (move.kind == StepKind::kScale) {
          // Written out as well, as every result is.
          const float floor = FromBits(static_cast<uint32_t>(pass_.steps[move.to - operands_].b));
          std::fill_n(here_[move.to], kBlock, Scale(v[0], count, floor));
        } else {
          Compute(move, v, to_[move.to]);
        }
      }
      Write(begin, count, lanes);
    }
  }

 private:
  // A value that is computed where a result in f32 lies: no operand is there.
  struct Direct {
    int64_t value;
    float* data;
  };

  bool IsScale(int64_t v) const { return v >= operands_ && pass_.steps[v - operands_].kind == StepKind::kScale; }

  bool IsConstant(int64_t v) const { return v >= operands_ && pass_.steps[v - operands_].kind == StepKind::kConstant; }

  void Read(int64_t begin, int count) {
    const Place place(pass_.sizes, begin);
    for (int64_t v = 0; v < operands_; ++v) {
      const PassOperand& operand = pass_.operands[v];
      if (operand.form == Form::kOne) continue;
      float* here = here_[v];
      // The instructions of a block are many, which leaves few loads of the next in flight.
      if (operand.form <= Form::kBf16 && operand.strides.empty()) {
        const int64_t size = operand.form == Form::kF32 ? 4 : 2;
        const char* next = static_cast<const char*>(operand.data) + (begin + kBlock) * size;
        for (int64_t line = 0; line < kBlock * size; line += 64) __builtin_prefetch(next + line);
      }
      if (!operand.strides.empty()) {
        place.Each(operand.strides, count, [&](int first, int64_t offset, int count) __attribute__((always_inline)) {
          if (operand.form == Form::kBf16) {
            ReadRow(static_cast<const uint16_t*>(operand.data) + offset, count, here + first);
          } else if (count == kBlock) {
            at_[v].at = static_cast<const float*>(operand.data) + offset;
          } else {
            ReadRow(static_cast<const float*>(operand.data) + offset, count, here + first);
            at_[v].at = here;
          }
        });
      } else if (operand.form == Form::kBlocks) {
        at_[v] = {static_cast<const float*>(operand.data) + begin / kBlock, true};
      } else if (operand.form == Form::kCodes) {
        ReadCodes(static_cast<const uint8_t*>(operand.data) + begin, count, here);
      } else if (operand.form == Form::kBf16) {
        const uint16_t* from = static_cast<const uint16_t*>(operand.data) + begin;
        if (count == kBlock) {
          for (int i = 0; i < kBlock; ++i) here[i] = FromBits(static_cast<uint32_t>(from[i]) << 16);
        } else {
          for (int i = 0; i < count; ++i) here[i] = FromBits(static_cast<uint32_t>(from[i]) << 16);
        }
      } else if (count == kBlock) {
        at_[v].at = static_cast<const float*>(operand.data) + begin;
      } else {
        at_[v].at = here;
        std::memcpy(here, static_cast<const float*>(operand.data) + begin, count * 4);
      }
    }
  }

  void Write(int64_t begin, int count, float* lanes) const {
    const Place place(pass_.sizes, begin);
    for (const PassResult& result : pass_.results) {
      const float* from = at_[result.value].at;
      if (!result.strides.empty()) {
        place.Each(result.strides, count, [&](int first, int64_t offset, int count) __attribute__((always_inline)) {
          if (result.form == Form::kBf16) {
            WriteRow(from + first, count, static_cast<uint16_t*>(result.data) + offset);
          } else {
            WriteRow(from + first, count, static_cast<float*>(result.data) + offset);
          }
        });
      } else if (result.form == Form::kBlocks) {
        static_cast<float*>(result.data)[begin / kBlock] = *from;
      } else if (result.form == Form::kCodes) {
        WriteCodes(from, count, static_cast<uint8_t*>(result.data) + begin);
      } else if (result.form == Form::kOne) {
        float sum[kLanes];
        std::copy_n(lanes, kLanes, sum);
        int i = 0;
        for (; i + kLanes <= count; i += kLanes) {
          for (int lane = 0; lane < kLanes; ++lane) sum[lane] += from[i + lane];
        }
        for (int lane = 0; i + lane < count; ++lane) sum[lane] += from[i + lane];
        std::copy_n(sum, kLanes, lanes);
      } else if (result.form == Form::kBf16) {
        uint16_t* to = static_cast<uint16_t*>(result.data) + begin;
        if (count == kBlock) {
          for (int i = 0; i < kBlock; ++i) to[i] = static_cast<uint16_t>(Rounded(from[i]) >> 16);
        } else {
          for (int i = 0; i < count; ++i) to[i] = static_cast<uint16_t>(Rounded(from[i]) >> 16);
        }
      } else if (from != static_cast<float*>(result.data) + begin) {
        std::memcpy(static_cast<float*>(result.data) + begin, from, count * 4);
      }
      lanes += kLanes;
    }
  }

  const OnePass& pass_;
  const int64_t operands_;
  const std::vector<Move> moves_;
  std::vector<float*> here_;  // the place of each value
  std::vector<float*> to_;    // where each is computed: there, or where a result lies
  std::vector<Direct> direct_;
  std::vector<Value> at_;     // where each value is: there, or where an operand lies
};

inline void Work(const OnePass& pass, std::atomic<int64_t>& next, double* sums) {
  const FlushSubnormals flush;
  const FusedLoop fused = FindFused(pass, KnownPasses());
  std::optional<Blocks> blocks;
  if (fused == nullptr) blocks.emplace(pass);
  const int64_t chunks = PassChunks(pass);
  std::vector<float> lanes(pass.results.size() * kLanes);
  for (int64_t chunk; (chunk = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
    const int64_t begin = chunk * kPassChunk, end = std::min(pass.elements, begin + kPassChunk);
    std::fill(lanes.begin(), lanes.end(), 0.0f);
    if (fused != nullptr) {
      fused(pass, begin, end, lanes.data());
    } else {
      (*blocks)(begin, end, lanes.data());
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
