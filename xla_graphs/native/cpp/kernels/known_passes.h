// Passes that have a loop of their own, which one_pass_loops.h makes: what nearly every step calls. Constants may have any value.
//
// Written by the test `common_updates_have_loops_of_their_own` under XTRAIN_UPDATE_SNAPSHOTS=1, from a step's calls.

#ifndef XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_
#define XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_

#include "one_pass.h"

namespace xtrain::kernels {
namespace {

template <class... P>
struct Passes {};

// kScalars: which operands are scalars; all are f32. kResults: the values that are results, in f32; kSums: which of them are
// summed.

struct SumOfSquares {
  static constexpr bool kScalars[] = {false};
  static constexpr Step kSteps[] = {
      {StepKind::kMultiply, 0, 0},
  };
  static constexpr int64_t kResults[] = {1};
  static constexpr bool kSums[] = {true};
};

struct AdamW {
  static constexpr bool kScalars[] = {false, false, true, true, false, true, true, false};
  static constexpr Step kSteps[] = {
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kMultiply, 0, 8},
      {StepKind::kMultiply, 1, 2},
      {StepKind::kAdd, 12, 13},
      {StepKind::kMultiply, 1, 3},
      {StepKind::kMultiply, 4, 9},
      {StepKind::kMultiply, 15, 15},
      {StepKind::kMultiply, 17, 10},
      {StepKind::kAdd, 16, 18},
      {StepKind::kSqrt, 19},
      {StepKind::kMultiply, 20, 5},
      {StepKind::kAdd, 21, 11},
      {StepKind::kDivide, 14, 22},
      {StepKind::kMultiply, 23, 6},
      {StepKind::kSubtract, 7, 24},
  };
  static constexpr int64_t kResults[] = {14, 19, 25};
  static constexpr bool kSums[] = {false, false, false};
};

struct AdamWWithDecay {
  static constexpr bool kScalars[] = {false, false, true, true, false, true, false, true, true};
  static constexpr Step kSteps[] = {
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kConstant},
      {StepKind::kMultiply, 0, 9},
      {StepKind::kMultiply, 1, 2},
      {StepKind::kAdd, 13, 14},
      {StepKind::kMultiply, 1, 3},
      {StepKind::kMultiply, 4, 10},
      {StepKind::kMultiply, 16, 16},
      {StepKind::kMultiply, 18, 11},
      {StepKind::kAdd, 17, 19},
      {StepKind::kSqrt, 20},
      {StepKind::kMultiply, 21, 5},
      {StepKind::kAdd, 22, 12},
      {StepKind::kMultiply, 6, 7},
      {StepKind::kDivide, 15, 23},
      {StepKind::kMultiply, 25, 8},
      {StepKind::kSubtract, 24, 26},
  };
  static constexpr int64_t kResults[] = {15, 20, 27};
  static constexpr bool kSums[] = {false, false, false};
};

using KnownPasses = Passes<SumOfSquares, AdamW, AdamWWithDecay>;

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_
