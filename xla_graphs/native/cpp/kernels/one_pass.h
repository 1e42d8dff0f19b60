// Element-wise steps over arrays of one size, and sums over all their elements, in one pass: each array is read once and
// each result written once, where a fusion for each result reads all that it needs again. What an optimizer does to a
// parameter is such a pass, and so are a layer's activations, gates and rotations with their gradients; memory's speed is all
// that it costs.
//
// No header of XLA's is needed here.

#ifndef XTRAIN_CPP_KERNELS_ONE_PASS_H_
#define XTRAIN_CPP_KERNELS_ONE_PASS_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace xtrain::kernels {

// What a step computes. The numbers are part of compiled executables: append only.
enum class StepKind : int64_t {
  kConstant = 0,  // of the f32 whose bits are `a`
  kRound = 1,     // to bf16, to nearest even
  kSelect = 2,    // a != 0 ? b : c
  kNegate = 3,
  kAbs = 4,
  kSign = 5,
  kSqrt = 6,
  kRsqrt = 7,
  kAdd = 8,
  kSubtract = 9,
  kMultiply = 10,
  kDivide = 11,
  kMax = 12,
  kMin = 13,
  // Numbers in 8 bits (block_codes.h): a, codes or values, and b, scales.
  kDecodeSigned = 14,
  kDecodeUnsigned = 15,
  kEncodeSigned = 16,
  kEncodeUnsigned = 17,
  kScale = 18,  // the largest |a| of a block, or the f32 whose bits are `b` if that is larger
  kLogistic = 19,
  // The Gaussian error linear unit (gelu.h), exact and by tanh, and their derivatives.
  kGelu = 20,
  kGeluTanh = 21,
  kGeluSlope = 22,
  kGeluTanhSlope = 23,
};
constexpr int64_t kStepKinds = 24;

// How many values a step reads.
inline int Reads(StepKind kind) {
  if (kind >= StepKind::kScale) return 1;
  return kind == StepKind::kConstant ? 0 : kind == StepKind::kSelect ? 3 : kind >= StepKind::kAdd ? 2 : 1;
}

// a, b, c: values, the operands first, then the steps in order. Each value is f32; nothing is contracted.
struct Step {
  StepKind kind;
  int64_t a, b, c;
};

// What the memory of an operand or result holds.
enum class Form {
  kF32,
  kBf16,
  kCodes,   // u8
  kBlocks,  // f32, one for each block
  kOne,     // f32[], of a result the sum of the value's elements
};

// `strides`: of an array in f32 or bf16 the distances of its elements along each of the pass's sizes but the last, in which neighbours are
// neighbours in memory; none: it lies in order.
struct PassOperand {
  const void* data;
  Form form;
  std::vector<int64_t> strides = {};
};

struct PassResult {
  int64_t value;
  void* data;
  Form form;
  std::vector<int64_t> strides = {};
};

struct OnePass {
  int64_t elements;
  std::vector<PassOperand> operands;
  std::vector<Step> steps;
  std::vector<PassResult> results;
  std::vector<int64_t> sizes = {};  // whose product `elements` is, where something has strides
};

// Sizes of a pass, at most.
constexpr int kMostSizes = 8;

// Elements that go through all steps together, and that have a scale where they are codes.
constexpr int kBlock = 256;

// Elements that a thread claims at a time, and of which sums are made; they add up in the order of the chunks, so that the
// number of threads changes no bit.
constexpr int64_t kPassChunk = 1 << 14;

inline int64_t PassChunks(const OnePass& pass) { return (pass.elements + kPassChunk - 1) / kPassChunk; }

// Claims chunks from `next` until none is left. `sums` has a place for each chunk of each result, result by result. An
// operand may lie where a result does.
using PassWork = void (*)(const OnePass& pass, std::atomic<int64_t>& next, double* sums);

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_ONE_PASS_H_
