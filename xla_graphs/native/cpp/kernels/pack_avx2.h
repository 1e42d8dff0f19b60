// Packing for AVX2: f32 only. Loops that a compiler makes vectors of, along the dimension that is contiguous. Included by the
// kernel's own translation unit.

#ifndef XTRAIN_CPP_KERNELS_PACK_AVX2_H_
#define XTRAIN_CPP_KERNELS_PACK_AVX2_H_

#include <cstring>

#include "matmul.h"
#include "pack.h"

namespace xtrain::kernels {
namespace {

// A panel has kR rows for each word of k, one word after the other.
template <int kR>
struct Order {
  static constexpr int kRows = kR, kPieces = 1;
  static constexpr bool kKeepsRows = false;
  static constexpr int64_t kPerK = kR;
  static int64_t PanelWords(int64_t words) { return kR * words; }
};

// Packs `panels` panels from row r0 on, words [k0, k0 + words) of k, each `panel_words` behind the one before; what is not
// there is zero.
template <class O, bool kPairs, bool kBf16>
void Pack(const Source& s, int64_t r0, int64_t panels, int64_t k0, int64_t words, uint32_t* to, int64_t panel_words) {
  static_assert(!kPairs && !kBf16, "f32 only");
  constexpr int kR = O::kRows;
  const uint32_t* from = static_cast<const uint32_t*>(s.data);
  for (int64_t p = 0; p < panels; ++p, to += panel_words) {
    const int64_t r = r0 + p * kR, rows = std::min<int64_t>(kR, s.r_size - r);
    const uint32_t* panel = from + r * s.r_stride + k0 * s.k_stride;
    const int64_t there = std::max<int64_t>(0, std::min(words, s.k_size - k0));
    if (rows < kR || there < words) std::memset(to, 0, O::PanelWords(words) * sizeof(uint32_t));
    if (s.r_stride == 1 && rows == kR) {
      for (int64_t k = 0; k < there; ++k) std::memcpy(to + k * kR, panel + k * s.k_stride, kR * sizeof(uint32_t));
    } else if (s.r_stride == 1) {
      for (int64_t k = 0; k < there; ++k) std::memcpy(to + k * kR, panel + k * s.k_stride, rows * sizeof(uint32_t));
    } else {
      // Eight words of each row at a time: a line of `to` is written while it is near.
      for (int64_t k = 0; k < there; k += 8) {
        const int64_t end = std::min(there, k + 8);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t at = k; at < end; ++at) to[at * kR + i] = panel[i * s.r_stride + at * s.k_stride];
        }
      }
    }
  }
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_PACK_AVX2_H_
