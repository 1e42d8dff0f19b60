// Plans of matmuls for machines of 2, 8, 32 and 64 threads and any caches: no part is empty, no thread has much more to do than others,
// none waits long for what another packs, and blocks fit the caches.

#include <cstdio>

#include "../../cpp/kernels/matmul.h"

using namespace xtrain::kernels;

namespace {

const char* Problem(const KernelShape& kernel, const Matmul& x, const Machine& machine) {
  const Plan plan = MakePlan(kernel, x, machine);
  const int64_t mr = kernel.a.rows, nr = kernel.b.rows, threads = machine.threads, batches = x.batch[0] * x.batch[1];
  if (plan.mt % mr != 0 || plan.nt % nr != 0 || plan.mc % mr != 0 || plan.kc % 16 != 0 || plan.kc < 16) return "parts are no whole panels";
  if (plan.m_parts * plan.mt < x.m || plan.n_parts * plan.nt < x.n) return "parts leave something out";
  if ((plan.m_parts - 1) * plan.mt >= x.m || (plan.n_parts - 1) * plan.nt >= x.n) return "a part is empty";
  if (plan.parts != batches * plan.m_parts * plan.n_parts) return "parts are miscounted";

  // Threads without work, while others have a part.
  const int64_t tiles = batches * CeilDiv(x.m, mr) * CeilDiv(x.n, nr), rounds = CeilDiv(plan.parts, threads);
  if (plan.parts < std::min(threads, tiles) && tiles >= 4 * threads) return "threads have no part";
  const double busiest = static_cast<double>(rounds) * plan.mt * plan.nt, fair = static_cast<double>(tiles) * mr * nr / threads;
  if (tiles >= 32 * threads && busiest > 1.6 * fair) return "one thread has more to do than others";

  // Blocks, in bytes.
  const int64_t words = CeilDiv(x.k, kernel.per_word), panel = 4 * kernel.b.Words(plan.kc), block = 4 * plan.mc / mr * kernel.a.Words(plan.kc);
  if (plan.kc > 16 && panel > (kernel.b_in_l1 ? machine.l1 / 2 : machine.l2 / 4)) return "a panel of B does not fit its cache";
  if (plan.mc > mr && block - 4 * kernel.a.Words(plan.kc) > machine.l2 / 2) return "A's block does not fit L2";
  const int64_t share = std::max(machine.l3 / std::min<int64_t>(threads, machine.l3_threads) / 4, machine.l2 / 4);
  if (plan.b_pieces == 0 && plan.nt > nr && 4 * plan.nt / nr * kernel.b.Words(plan.kc) > share) return "B's block does not fit L3";
  if (plan.kc < words && plan.nt > nr && 4 * plan.mt * plan.nt > share) return "C's sums do not fit L3";
  if (4 * std::max(plan.a_words, plan.b_words) > machine.l3 / (kernel.a.pieces == 1 ? 4 : 2)) return "what all pack does not fit L3";

  // What all pack before any begins.
  const int64_t pieces = plan.a_pieces + plan.b_pieces, packed = plan.a_words + plan.b_words;
  if ((pieces > 0) != (packed > 0)) return "pieces are miscounted";
  if (pieces > 0 && pieces < threads && packed / pieces > 8 << 10) return "threads wait for a piece";
  return nullptr;
}

}  // namespace

bool TestPlans() {
  constexpr Machine kMachines[] = {{32 << 10, 256 << 10, 8 << 20, 8},    // a desktop of 2015
                                   {32 << 10, 1 << 20, 32 << 20, 16},    // Zen 4
                                   {48 << 10, 2 << 20, 105 << 20, 112},  // Sapphire Rapids
                                   {48 << 10, 2 << 20, 260 << 20, 1},    // the same as a virtual machine may show it
                                   {64 << 10, 1 << 20, 4 << 20, 64}};    // cores that share little
  // p, m, n, k, and whether A and B lie along k.
  struct Shape {
    int64_t batch, m, n, k;
    bool a_along, b_along;
  };
  constexpr Shape kShapes[] = {{1, 512, 3072, 768, true, false},    {1, 512, 768, 3072, true, false},  {1, 512, 50257, 768, true, true}, {1, 50257, 768, 512, false, false},
                               {1, 2048, 2048, 2048, true, true},   {1, 64, 64, 4096, true, false},    {1, 33, 17, 5, true, true},       {1, 4096, 128, 256, false, true},
                               {1, 128, 4096, 1 << 16, true, true}, {96, 128, 128, 64, true, true},    {3, 100, 4000, 300, true, false}, {1, 1, 5000, 1, true, false},
                               {1, 16384, 4096, 4096, true, false}, {1, 100000, 64, 4096, true, true}, {1, 256, 256, 256, false, false}};
  const Implementation* const kKernelsOfAll[] = {&kAmxBf16, &kAmxF32, &kAvx512F32, &kAvx512Bf16, &kAvx512WidenedBf16, &kAvx2F32, &kAvx2WidenedBf16};
  int failed = 0;
  for (int64_t number = 0; number < kKernels; ++number) {
    const Implementation* const kernel = kKernelsOfAll[number];
    const bool is_bf16 = kernel == &kAmxBf16 || kernel == &kAvx512Bf16 || kernel == &kAvx512WidenedBf16 || kernel == &kAvx2WidenedBf16;
    for (const Shape& s : kShapes) {
      const Matmul x = {nullptr, nullptr, nullptr, is_bf16, is_bf16, false, {s.batch, 1}, s.m, s.n, s.k,
                        {s.m * s.k, 0, s.a_along ? s.k : 1, s.a_along ? 1 : s.m}, {s.n * s.k, 0, s.b_along ? 1 : s.n, s.b_along ? s.k : 1}, {s.m * s.n, 0, s.n, 1}};
      for (Machine machine : kMachines) {
        for (const int threads : {1, 2, 8, 32, 64}) {
          machine.threads = threads;
          const char* problem = Problem(kernel->shape, x, machine);
          if (problem == nullptr) continue;
          const Plan plan = MakePlan(kernel->shape, x, machine);
          std::printf("plan of kernel %ld, %ld x %ld x %ld x %ld, L2 %ld, L3 %ld of %d, %d threads: %s: %ld x %ld parts of %ld x %ld, mc %ld, kc %ld, %ld + %ld pieces\n",
                      long(number), long(s.batch), long(s.m), long(s.n), long(s.k), long(machine.l2), long(machine.l3), machine.l3_threads, threads, problem,
                      long(plan.m_parts), long(plan.n_parts), long(plan.mt), long(plan.nt), long(plan.mc), long(plan.kc), long(plan.a_pieces), long(plan.b_pieces));
          ++failed;
        }
      }
    }
  }
  return failed == 0;
}
