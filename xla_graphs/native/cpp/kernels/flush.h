// Included by each kernel's own translation unit; everything is in an unnamed namespace, so that no unit can be linked to
// another's code.

#ifndef XTRAIN_CPP_KERNELS_FLUSH_H_
#define XTRAIN_CPP_KERNELS_FLUSH_H_

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace xtrain::kernels {
namespace {

// Subnormals count as zero while this lives, as in XLA's own loops: whichever thread works, the bits are the same, and
// moments that decay to nothing cost no more than others.
class FlushSubnormals {
#ifdef __SSE__
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushSubnormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
 public:
  FlushSubnormals() {}
#endif
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_FLUSH_H_
