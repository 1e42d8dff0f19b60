// How fast each kernel is on this processor. Which one multiplies fastest does not follow from what a processor executes: an Intel core
// without AMX begins half as many products of pairs of bf16 a cycle as multiply-adds of f32, and AMD's as many, of twice the products; a
// hypervisor hides AMX and shows the others.
//
// Each kernel runs a matmul as a layer has it, on one thread, its operands in L2 and L3, and its instructions on registers alone. Kernels
// take turns, and the fastest run of each counts: whatever else the machine does slows runs, and a turn is shorter than a change of the
// clock's frequency. The clock is the thread's processor time.

#include <ctime>
#include <limits>
#include <vector>

#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

// Of each row, of which 252 are whole panels for every kernel.
constexpr int64_t kM = 252, kN = 512, kK = 512;
constexpr int64_t kSpin = 32 << 10;
// Turns, and seconds after which no other begins.
constexpr int kMost = 8;
constexpr double kEnough = 0.08;

}  // namespace

void MeasureKernels(Speed (&speeds)[kKernels]) {
  // bf16 or f32, whose bits are both small numbers.
  const std::vector<uint32_t> a(kM * kK, 0x3c003c00), b(kK * kN, 0x3c003c00);
  std::vector<float> c(kM * kN);
  Scratch scratch;
  const double begin = Seconds(CLOCK_MONOTONIC);
  for (int turn = 0; turn < kMost && (turn < 2 || Seconds(CLOCK_MONOTONIC) - begin < kEnough); ++turn) {
    for (int64_t number = 0; number < kKernels; ++number) {
      const Kernel kernel = static_cast<Kernel>(number);
      const Implementation* implementation = Find(kernel);
      if (implementation == nullptr) continue;
      const bool is_bf16 = kernel == Kernel::kAmxBf16 || kernel == Kernel::kAvx512Bf16 || kernel == Kernel::kAvx512WidenedBf16 || kernel == Kernel::kAvx2WidenedBf16;
      const Matmul x = {a.data(), b.data(), c.data(), is_bf16, is_bf16, is_bf16, {1, 1}, kM, kN, kK, {0, 0, kK, 1}, {0, 0, kN, 1}, {0, 0, kN, 1}};
      const Plan plan = MakePlan(implementation->shape, x, Machine::This(1));
      Packed packed;
      packed.words = scratch.Words(plan.a_words + plan.b_words + plan.sum_words);
      std::atomic<int64_t> next{0};
      const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
      implementation->work(x, plan, packed, next);
      const double middle = Seconds(CLOCK_THREAD_CPUTIME_ID), flop = implementation->spin(kSpin);
      const double end = Seconds(CLOCK_THREAD_CPUTIME_ID), least = std::numeric_limits<double>::min();
      Speed& speed = speeds[number];
      speed.gflops = std::max(speed.gflops, 2e-9 * kM * kN * kK / std::max(middle - start, least));
      speed.peak = std::max(speed.peak, 1e-9 * flop / std::max(end - middle, least));
    }
  }
}

}  // namespace xtrain::kernels
