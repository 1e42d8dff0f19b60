// AMX's tiles in plain code, for processors without them: `build.sh` compiles amx_bf16.cc and amx_f32.cc a second time with this in
// front, so that their packing, plans, tails and sums are tested wherever their other instructions are (AVX512_BF16).
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TILELOADD, TILESTORED, TDPBF16PS.

#ifndef XTRAIN_TESTS_KERNELS_EMULATED_TILES_H_
#define XTRAIN_TESTS_KERNELS_EMULATED_TILES_H_

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

// All of 16 rows x 64 bytes, as the kernel configures them.
struct Tile {
  alignas(64) uint32_t rows[16][16];
};

// A thread's own, garbage before the first load, and only between `Configure` and `Release`.
inline Tile& At(int number) {
  static thread_local Tile tiles[8];
  return tiles[number];
}

inline bool& IsConfigured() {
  static thread_local bool is_configured = false;
  return is_configured;
}

inline void Need(bool what) {
  if (!what) std::abort();
}

}  // namespace emulated

// In place of those of amx_tiles.h.
#define XTRAIN_EMULATES_TILES
namespace xtrain::kernels {
namespace {
namespace tiles {

using emulated::At;
using emulated::IsConfigured;
using emulated::Need;
using emulated::Tile;

inline void Configure(const void* shapes) {
  const uint8_t* bytes = static_cast<const uint8_t*>(shapes);
  Need(bytes[0] == 1 && bytes[1] == 0);
  for (int tile = 0; tile < 8; ++tile) {
    uint16_t columns;
    std::memcpy(&columns, bytes + 16 + 2 * tile, 2);
    Need(columns == 64 && bytes[48 + tile] == 16);
    std::memset(&At(tile), 0, sizeof(Tile));
  }
  IsConfigured() = true;
}

inline void Release() { IsConfigured() = false; }

template <int kTo>
void Zero() {
  Need(IsConfigured());
  std::memset(&At(kTo), 0, sizeof(Tile));
}

template <int kTo>
void Load(const void* from, int64_t stride) {
  Need(IsConfigured());
  for (int row = 0; row < 16; ++row) std::memcpy(At(kTo).rows[row], static_cast<const char*>(from) + row * stride, 64);
}

template <int kFrom>
void Store(void* to, int64_t stride) {
  Need(IsConfigured());
  for (int row = 0; row < 16; ++row) std::memcpy(static_cast<char*>(to) + row * stride, At(kFrom).rows[row], 64);
}

// sums += a b: the products of even and of odd places along k are summed apart, and the two are added last. Subnormals count as
// zero, whatever the thread's own mode is.
template <int kSums, int kA, int kB>
void MultiplyAdd() {
  Need(IsConfigured());
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);  // all exceptions masked, to nearest, flush to zero, subnormals are zero
  for (int m = 0; m < 16; ++m) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < 16; ++k) {
      const uint32_t pair = At(kA).rows[m][k];
      const __m512i words = _mm512_load_si512(At(kB).rows[k]);
      const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
      const auto number = [](uint32_t bits) { return _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits))); };
      even = _mm512_fmadd_ps(number(pair << 16), _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)), even);
      odd = _mm512_fmadd_ps(number(pair & 0xffff0000u), _mm512_castsi512_ps(_mm512_and_si512(words, high)), odd);
    }
    float* row = reinterpret_cast<float*>(At(kSums).rows[m]);
    _mm512_store_ps(row, _mm512_add_ps(_mm512_load_ps(row), _mm512_add_ps(even, odd)));
  }
  _mm_setcsr(mode);
}

}  // namespace tiles
}  // namespace
}  // namespace xtrain::kernels

// Beside the kernels that the processor executes.
#define kAmxBf16 kAmxBf16Emulated
#define kAmxF32 kAmxF32Emulated

#endif  // XTRAIN_TESTS_KERNELS_EMULATED_TILES_H_
