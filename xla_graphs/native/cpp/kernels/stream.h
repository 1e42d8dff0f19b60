// Results that are too large for the caches. A line that a plain store writes is fetched first and written back later; one that is
// stored as a whole past the caches is only written. Included by each kernel's own translation unit; everything is in an unnamed
// namespace, so that no unit can be linked to another's code.

#ifndef XTRAIN_CPP_KERNELS_STREAM_H_
#define XTRAIN_CPP_KERNELS_STREAM_H_

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace xtrain::kernels {
namespace {

// While this lives, a thread stores past the caches; afterwards others may read what it stored.
class Streaming {
 public:
  ~Streaming() {
#ifdef __SSE2__
    _mm_sfence();
#endif
  }

  // Copies what a loop left in L1. Lines that are not written as a whole are stored as others are.
  template <class T>
  static inline void Put(const T* from, int64_t count, T* to) {
#ifdef __SSE2__
    constexpr int64_t kLine = 64 / sizeof(T);
    const int64_t before = std::min<int64_t>(count, -(reinterpret_cast<uintptr_t>(to) / sizeof(T)) % kLine);
    std::memcpy(to, from, before * sizeof(T));
    for (from += before, to += before, count -= before; count >= kLine; from += kLine, to += kLine, count -= kLine) {
#if defined(__AVX512F__)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
#elif defined(__AVX__)
      for (int i = 0; i < 2; ++i) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i));
#else
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i));
#endif
    }
#endif
    std::memcpy(to, from, count * sizeof(T));
  }
};

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_STREAM_H_
