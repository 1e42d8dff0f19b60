// Which kernels this processor executes.

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

}  // namespace

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
  }
  return nullptr;
}

// An Intel core begins half as many VDPBF16PS a cycle as multiply-adds of f32, and each takes another microoperation; AMD's begin as
// many, of twice the products.
bool IsSlow(Kernel kernel) { return kernel == Kernel::kAvx512Bf16 && __builtin_cpu_is("intel"); }

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

bool IsSlow(Kernel) { return false; }

const Loops& FindLoops() { return kLoopsBaseline; }

}  // namespace xtrain::kernels

#endif
