// The cost model of matmuls: the blocks and parts into which one is divided, from the caches of the processor and the number of
// threads. What a kernel is, and what the machine is, are values: tests state machines that nobody has here. Results do not depend on
// any of it, since sums keep the order of k.
//
// A thread's blocks (gemm.h has the loops):
//
//   A's block, mc x kc       at most half of L2, where panels of B come past it
//   a panel of B, kNr x kc   at most a quarter of L2 (there are two: the next one is prefetched); of a kernel that says so, half of L1
//   B's block, kc x nt, and  at most a quarter of the thread's share of L3 each
//   C's sums, mt x nt
//   an operand that all      at most a quarter of L3 (in three pieces half of it), and 4 MB a thread (8 MB)
//   threads pack together
//
// and no more than the kernel's own limits, which are as measured. Parts: two for each thread, so that one that the system holds up is
// not waited for; of those divisions the one that packs least and leaves fewest threads idle. What is packed together is divided into
// two pieces for each thread, if that leaves 16 KB a piece, which take about 2 microseconds: less than it takes to wake a thread.

#ifndef XTRAIN_CPP_KERNELS_COST_MODEL_H_
#define XTRAIN_CPP_KERNELS_COST_MODEL_H_

#include <algorithm>
#include <cstdint>

namespace xtrain::kernels {

struct Matmul;

// Those of the machine that blocks and parts depend on. Without knowledge: a small server core's.
struct Machine {
  int64_t l1 = 32 << 10, l2 = 512 << 10;  // bytes of a core's data caches
  int64_t l3 = 16 << 20;                  // bytes of a cache that cores share
  int l3_threads = 8;                     // logical processors that share one
  int threads = 1;                        // that compute

  // This one, of whose processors as many as `threads` compute (find.cc).
  static Machine This(int threads);
};

// How an operand is packed: `rows` of it are a panel.
struct PanelShape {
  int64_t rows;
  int64_t per_k;   // words that a panel has for each word of k
  int64_t pieces;  // bf16 that an f32 is packed as, 1 for as it is
  bool is_tiles;   // k is padded to a multiple of 16 words

  int64_t Words(int64_t words) const;
};

// What plans depend on, of a kernel (gemm.h has the same as constants).
struct KernelShape {
  PanelShape a, b;
  int64_t per_word;  // elements of k in a word: 2 for pairs of bf16
  bool reads_rows;   // A's words may be anywhere, not only in panels
  bool b_in_l1;      // a panel of B is to stay in L1, not in L2
  int64_t kc, a_words;  // at most: words of k that are packed at a time, and words of A's block
};

// How a matmul is divided into parts that any thread may compute.
struct Plan {
  int64_t mt, nt;  // rows and columns of a part
  int64_t mc, kc;  // rows of A, and words of k, that are taken at a time
  int64_t m_parts, n_parts, parts;
  // An operand that several parts read is packed once for all of them, in pieces that any thread may pack, of about `piece` words; these
  // are 0 for one that each part packs for itself.
  int64_t piece, a_pieces, b_pieces;
  int64_t a_words, b_words;  // of the packed operands, 4 bytes each
  int64_t sum_words;         // of the sums of each 16 words of k

  // What there is to claim: pieces, then parts.
  int64_t Claims() const { return a_pieces + b_pieces + parts; }
};

// Words of k whose sums are kept apart, where sums along k are wanted.
constexpr int64_t kSumWords = 16;

// A whole operand that all threads pack together: for each step of kc along k, its panels. A piece is some words of k of some panels,
// of neighbours in memory as many as fit: words of a row, or rows of a word.
struct Whole {
  PanelShape shape;
  int64_t panels, words, kc;
  int64_t piece_panels, piece_words;

  // `piece`: about the words of a piece.
  Whole(const PanelShape& shape, int64_t rows, int64_t words, int64_t kc, int64_t k_stride, int64_t piece);

  int64_t Words() const;
  int64_t Pieces() const;
  // Where a panel of the step from k0 on is; all steps before it have kc words, a multiple of 16.
  int64_t At(int64_t panel, int64_t k0) const;
};

// What a plan may take of a machine's caches, in words of 4 bytes.
struct Blocks {
  int64_t kc;      // words of k at a time
  int64_t a;       // A's block
  int64_t part;    // B's block and C's sums, each
  int64_t shared;  // an operand that is packed once for all parts
};

Blocks BlocksOf(const KernelShape& kernel, const Machine& machine);

Plan MakePlan(const KernelShape& kernel, const Matmul& x, const Machine& machine);

// Whether the kernel reads A's rows where they are, up to word `words`: a last pair of which there is half is packed. Rows a multiple of
// 4 KB apart fall into the same lines of L1, which has 8 or 12 ways for them.
bool ReadsRows(const KernelShape& kernel, bool is_bf16, int64_t r_stride, int64_t k_stride, int64_t k_size, int64_t words);

// A copy for each unit that includes this, so that no unit can be linked to another's instructions.
namespace {

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `size` in as few even pieces of at most `most` as possible, each a multiple of `unit`.
inline int64_t Even(int64_t size, int64_t most, int64_t unit) {
  const int64_t pieces = CeilDiv(size, std::max(most, unit));
  return CeilDiv(CeilDiv(size, pieces), unit) * unit;
}

}  // namespace
}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_COST_MODEL_H_
