// Which kernels this processor executes, and what its caches are.

#include "loops.h"
#include "matmul.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace xtrain::kernels {
namespace {

bool HasTiles() {
  unsigned eax, ebx, ecx, edx;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  const bool amx_bf16 = edx >> 22 & 1, amx_tile = edx >> 24 & 1;
  // Linux hands out the tiles' 8 KB of state only on request, once for a process: ARCH_REQ_XCOMP_PERM, XTILEDATA.
  return amx_bf16 && amx_tile && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

// Caches as the processor describes them: Intel's leaf 4, and AMD's of the same form.
Machine Described() {
  Machine machine;
  const unsigned leaf = __builtin_cpu_is("amd") ? 0x8000001d : 4;
  unsigned eax, ebx, ecx, edx;
  for (unsigned i = 0; i < 16 && __get_cpuid_count(leaf, i, &eax, &ebx, &ecx, &edx) != 0; ++i) {
    const unsigned type = eax & 31, level = eax >> 5 & 7;
    if (type == 0) break;
    if (type == 2) continue;  // of instructions
    const int64_t ways = (ebx >> 22) + 1, partitions = (ebx >> 12 & 0x3ff) + 1, line = (ebx & 0xfff) + 1, sets = static_cast<int64_t>(ecx) + 1;
    const int64_t bytes = ways * partitions * line * sets;
    if (level == 1) machine.l1 = bytes;
    if (level == 2) machine.l2 = bytes;
    if (level == 3) machine.l3 = bytes, machine.l3_threads = (eax >> 14 & 0xfff) + 1;
  }
  return machine;
}

}  // namespace

Machine Machine::This(int threads) {
  static const Machine described = Described();
  Machine machine = described;
  machine.threads = threads;
  return machine;
}

const Implementation* Find(Kernel kernel) {
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  static const bool has_pairs = has_avx512 && __builtin_cpu_supports("avx512bf16");
  static const bool has_tiles = has_pairs && HasTiles();
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  switch (kernel) {
    case Kernel::kAmxBf16:
      return has_tiles ? &kAmxBf16 : nullptr;
    case Kernel::kAmxF32:
      return has_tiles ? &kAmxF32 : nullptr;
    case Kernel::kAvx512F32:
      return has_avx512 ? &kAvx512F32 : nullptr;
    case Kernel::kAvx512Bf16:
      return has_pairs ? &kAvx512Bf16 : nullptr;
    case Kernel::kAvx512WidenedBf16:
      return has_avx512 ? &kAvx512WidenedBf16 : nullptr;
    case Kernel::kAvx2F32:
      return has_avx2 ? &kAvx2F32 : nullptr;
    case Kernel::kAvx2WidenedBf16:
      return has_avx2 ? &kAvx2WidenedBf16 : nullptr;
  }
  return nullptr;
}

const Loops& FindLoops() {
  static const Loops& best = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                     __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
                                 ? kLoopsAvx512
                             : __builtin_cpu_supports("avx2") ? kLoopsAvx2
                                                              : kLoopsBaseline;
  return best;
}

}  // namespace xtrain::kernels

#else

namespace xtrain::kernels {

const Implementation* Find(Kernel) { return nullptr; }

Machine Machine::This(int threads) {
  Machine machine;
  machine.threads = threads;
  return machine;
}

const Loops& FindLoops() { return kLoopsBaseline; }

}  // namespace xtrain::kernels

#endif
