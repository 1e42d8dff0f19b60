// Matmuls of the CPU plugin's own: C = A B over strided operands, on kernels that the processor has and XLA's dots do not
// use. No header of XLA's is needed here, so that kernels compile in seconds and a test can drive them alone.

#ifndef XTRAIN_CPP_KERNELS_MATMUL_H_
#define XTRAIN_CPP_KERNELS_MATMUL_H_

#include <atomic>
#include <cstdint>

#include "attention.h"

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
enum class Kernel : int64_t { kAmxBf16 = 0, kAvx512F32 = 1, kAvx512Bf16 = 2, kAvx2F32 = 3, kAmxF32 = 4, kAvx512WidenedBf16 = 5 };

// How a matmul is divided into parts that any thread may compute.
struct Plan {
  int64_t mt, nt;  // rows and columns of a part
  int64_t mc, kc;  // rows of A, and words of k, that are taken at a time
  int64_t m_parts, n_parts, parts;
  // An operand that several parts read is packed once for all of them, in pieces that any thread may pack; these are 0 for
  // one that each part packs for itself.
  int64_t a_pieces, b_pieces;
  int64_t a_words, b_words;  // of the packed operands, 4 bytes each
  int64_t sum_words;         // of the sums of each 16 words of k

  // What there is to claim: pieces, then parts.
  int64_t Claims() const { return a_pieces + b_pieces + parts; }
};

// What the threads of one call pack together.
struct Packed {
  uint32_t* words = nullptr;  // the plan's `a_words`, `b_words` and `sum_words`
  std::atomic<int64_t> pieces{0};  // that are there
};

// One kernel: `plan` for this many threads, then `work` on each thread, which claims pieces and parts from `next` until none is
// left.
// Attention is built on the same tile; without functions where a kernel has none.
struct Implementation {
  Plan (*plan)(const Matmul&, int threads);
  void (*work)(const Matmul&, const Plan&, Packed&, std::atomic<int64_t>& next);
  AttentionImplementation attention;
};

// The kernel, or null where this processor (or its operating system) cannot execute it.
const Implementation* Find(Kernel kernel);

// Whether this processor, which executes the kernel, has instructions for the next one of its type (CpuKernel::ALL) that do more.
bool IsSlow(Kernel kernel);

extern const Implementation kAmxBf16, kAmxF32, kAvx512F32, kAvx512Bf16, kAvx512WidenedBf16, kAvx2F32;

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_MATMUL_H_
