// Matmuls of the CPU plugin's own: C = A B over strided operands, on kernels that the processor has and XLA's dots do not
// use. No header of XLA's is needed here, so that kernels compile in seconds and a test can drive them alone.

#ifndef XTRAIN_CPP_KERNELS_MATMUL_H_
#define XTRAIN_CPP_KERNELS_MATMUL_H_

#include <atomic>
#include <cstdint>

#include "attention.h"
#include "cost_model.h"
#include "wait.h"

namespace xtrain::kernels {

// C[p, q, m, n] = sum over k of A[p, q, m, k] B[p, q, k, n], accumulated in f32 in the order of k whatever the blocking and
// the number of threads: the bits do not depend on either.
struct Matmul {
  const void* a;
  const void* b;
  void* c;
  // Element types: bf16, or else f32.
  bool a_bf16, b_bf16, c_bf16;
  int64_t batch[2];
  int64_t m, n, k;
  // Distances of neighbours along p, q and the operand's own two dimensions, in elements. One of an operand's own two is 1;
  // of C it is the last.
  int64_t a_strides[4];  // p, q, m, k
  int64_t b_strides[4];  // p, q, k, n
  int64_t c_strides[4];  // p, q, m, n
  // The sums begin with what C holds, f32, instead of 0: as if its terms stood before those of A and B along k.
  bool continues;
  // Or with this, f32[n], in every row, if it is not null.
  const float* bias = nullptr;
  // Where the sums along k of A's rows go, f32[m], or (`sums_of_b`) of B's columns, f32[n], if it is not null: those of what a bias was
  // added to give the bias's gradient. There is one batch, and the operand does not lie along k. They are made of the sums of each 16
  // words, in order.
  float* sums = nullptr;
  bool sums_of_b = false;
};

// The numbers are part of compiled executables (`kernel` in their calls): append only.
enum class Kernel : int64_t { kAmxBf16 = 0, kAvx512F32 = 1, kAvx512Bf16 = 2, kAvx2F32 = 3, kAmxF32 = 4, kAvx512WidenedBf16 = 5, kAvx2WidenedBf16 = 6 };
constexpr int64_t kKernels = 7;

// What the threads of one call pack together.
struct Packed {
  uint32_t* words = nullptr;  // the plan's `a_words`, `b_words` and `sum_words`
  Countdown pieces;           // of the plan, until all are packed
};

// One kernel: a plan (`MakePlan`), then `work` on each thread, which claims pieces and parts from `next` until none is left.
// Attention is built on the same tile; its functions are null where a kernel has none.
// `spin` runs the kernel's instructions on registers alone, for this many words of k, and returns how many FLOP of the kernel's own type
// that is: a kernel that never waited for operands would take as long.
struct Implementation {
  KernelShape shape;
  void (*work)(const Matmul&, const Plan&, Packed&, std::atomic<int64_t>& next);
  double (*spin)(int64_t words);
  AttentionImplementation attention;
};

// The kernel, or null where this processor (or its operating system) cannot execute it.
const Implementation* Find(Kernel kernel);

// What a kernel reaches on one core of this processor, and what its instructions reach on registers alone.
struct Speed {
  double gflops = 0, peak = 0;
};

// Measures all kernels that this processor executes on the calling thread, in 0.1 s or, on a slow core, at most 0.3 s; the others stay 0.
void MeasureKernels(Speed (&speeds)[kKernels]);

extern const Implementation kAmxBf16, kAmxF32, kAvx512F32, kAvx512Bf16, kAvx512WidenedBf16, kAvx2F32, kAvx2WidenedBf16;

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_MATMUL_H_
