#include "cross_entropy_loops.h"
#include "gemv_loops.h"
#include "loops.h"
#include "norm_loops.h"
#include "one_pass_loops.h"

namespace xtrain::kernels {

const Loops kLoopsAvx512 = {Work, LogSums, Gradients, Gemvs, ForwardNorm, BackwardNorm};

}  // namespace xtrain::kernels
