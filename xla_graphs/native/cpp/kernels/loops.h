// Loops in plain C++, compiled once for each instruction set. All give the same bits.

#ifndef XTRAIN_CPP_KERNELS_LOOPS_H_
#define XTRAIN_CPP_KERNELS_LOOPS_H_

#include "cross_entropy.h"
#include "gemv.h"
#include "norm.h"
#include "one_pass.h"

namespace xtrain::kernels {

struct Loops {
  PassWork one_pass;
  LogSumsWork log_sums;
  LogitGradientsWork logit_gradients;
  GemvWork gemv;
  NormForwardWork norm_forward;
  NormBackwardWork norm_backward;
};

extern const Loops kLoopsBaseline, kLoopsAvx2, kLoopsAvx512;

// The best for this processor.
const Loops& FindLoops();

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_LOOPS_H_
