#include "cost_model.h"

#include "matmul.h"

namespace xtrain::kernels {
namespace {

// Of a piece that threads pack together, words: enough that claiming it costs nothing, and few enough that no thread waits long.
constexpr int64_t kLeastPiece = 4 << 10, kMostPiece = 48 << 10;

}  // namespace

int64_t PanelShape::Words(int64_t words) const { return per_k * (is_tiles ? CeilDiv(words, 16) * 16 : words); }

int64_t Whole::Words() const { return panels * shape.Words(words); }

int64_t Whole::Pieces() const { return CeilDiv(words, kc) * CeilDiv(panels, piece_panels) * CeilDiv(kc, piece_words); }

int64_t Whole::At(int64_t panel, int64_t k0) const { return k0 * panels * shape.per_k + panel * shape.Words(std::min(kc, words - k0)); }

Whole::Whole(const PanelShape& shape, int64_t rows, int64_t words, int64_t kc, int64_t k_stride, int64_t piece)
    : shape(shape), panels(CeilDiv(rows, shape.rows)), words(words), kc(kc) {
  // Words of a row lie side by side, or rows of a word: of 16 words then at least.
  piece_panels = k_stride == 1 ? piece / shape.Words(kc) : piece / (16 * shape.per_k);
  piece_panels = std::min(std::max<int64_t>(piece_panels, 1), panels);
  piece_words = std::min(std::max<int64_t>(piece / (piece_panels * shape.per_k * 16), 1) * 16, CeilDiv(kc, 16) * 16);
}

Blocks BlocksOf(const KernelShape& kernel, const Machine& machine) {
  const int64_t l1 = machine.l1 / 4, l2 = machine.l2 / 4, l3 = machine.l3 / 4;
  const int64_t threads = std::max(machine.threads, 1), sharers = std::min<int64_t>(threads, std::max(machine.l3_threads, 1));
  const auto whole_16 = [](int64_t words) { return std::max<int64_t>(words / 16, 1) * 16; };
  Blocks blocks;
  const int64_t panel = kernel.b_in_l1 ? l1 / 2 : l2 / 4;
  blocks.kc = std::min(kernel.kc, whole_16(panel / kernel.b.per_k));
  blocks.a = std::min(kernel.a_words, l2 / 2);
  blocks.part = std::min<int64_t>(1 << 20, std::max(l3 / sharers / 4, l2 / 4));
  const int64_t pieces = kernel.a.pieces;
  blocks.shared = std::min(l3 / (pieces == 1 ? 4 : 2), std::max<int64_t>(threads, 2) * (pieces == 1 ? 1 : 2) << 20);
  return blocks;
}

bool ReadsRows(const KernelShape& kernel, bool is_bf16, int64_t r_stride, int64_t k_stride, int64_t k_size, int64_t words) {
  const bool are_words = k_stride == 1 && is_bf16 == (kernel.per_word == 2) && words * kernel.per_word <= k_size;
  return kernel.reads_rows && are_words && r_stride * (is_bf16 ? 2 : 4) % 4096 != 0;
}

Plan MakePlan(const KernelShape& kernel, const Matmul& x, const Machine& machine) {
  Plan plan = {};
  const int threads = machine.threads;
  const int64_t mr = kernel.a.rows, nr = kernel.b.rows, words = CeilDiv(x.k, kernel.per_word);
  const Blocks blocks = BlocksOf(kernel, machine);
  plan.kc = Even(words, blocks.kc, 16);
  const bool resumes = plan.kc < words;
  const int64_t batches = x.batch[0] * x.batch[1];
  // The division of one matrix into parts that packs least: A is packed for each part of n, B for each part of m, if not once
  // for all, and what is packed is read as often, which costs less. Two parts for every thread, if they are worth it, so that a
  // thread which the system holds up is not waited for, and no part that one thread computes while the others have none.
  const int64_t m_most = CeilDiv(x.m, mr), n_most = CeilDiv(x.n, nr);
  const int64_t a_whole = m_most * kernel.a.Words(words), b_whole = n_most * kernel.b.Words(words);
  // Where k is odd, its last step is packed by each part: little enough if it is one of many.
  const bool reads_rows = ReadsRows(kernel, x.a_bf16, x.a_strides[2], x.a_strides[3], x.k, words > 4 * plan.kc ? x.k / kernel.per_word : words);
  const bool shares_a = batches == 1 && !reads_rows && a_whole <= blocks.shared;
  const bool shares_b = batches == 1 && b_whole <= blocks.shared;
  const int64_t wanted = CeilDiv(threads == 1 ? 1 : 2 * threads, batches);
  const int64_t most_rows = resumes ? blocks.part / nr : x.m + mr;
  double least = 0;
  for (int64_t m_parts = 1, n_parts = 1, before = 0; m_parts <= m_most; ++m_parts) {
    const int64_t mt = CeilDiv(m_most, m_parts) * mr;
    // The same parts as with fewer; sums of a panel of B that do not fit L3.
    if (mt == before || (mt > most_rows && mt > mr)) continue;
    before = mt;
    n_parts = CeilDiv(wanted, m_parts);
    const bool packs_b = !shares_b || mt >= x.m;
    const auto limit = [&](int64_t columns) { n_parts = std::max(n_parts, CeilDiv(n_most, std::max<int64_t>(columns / nr, 1))); };
    if (packs_b) limit(blocks.part / (plan.kc * kernel.b.pieces));
    if (resumes) limit(blocks.part / mt);
    // So many that no thread has one more than others, if it can be.
    for (int more = 1; more < threads && batches * m_parts * n_parts % threads != 0; ++more) ++n_parts;
    n_parts = std::min(n_parts, n_most);
    const int64_t nt = CeilDiv(n_most, n_parts) * nr;
    const double a_reads = static_cast<double>(CeilDiv(x.n, nt)) * x.m, b_reads = static_cast<double>(CeilDiv(x.m, mt)) * x.n;
    // A that others pack comes from their caches, and a block of it that a thread packs for itself stays in its own.
    const double packed = (reads_rows ? 0 : shares_a && nt < x.n ? 2 * x.m : a_reads) + (shares_b ? x.n : b_reads) + 0.1 * (a_reads + b_reads);
    // Packing every row and column once takes about a tenth of a matmul. Fewer than wanted is worse than any packing.
    const int64_t parts = CeilDiv(x.m, mt) * CeilDiv(x.n, nt), rounds = CeilDiv(batches * parts, threads);
    const double idle = static_cast<double>(rounds * threads) / (batches * parts);
    const double cost = (10.0 * (x.m + x.n) + packed) * idle / std::min(wanted, parts);
    if (least == 0 || cost < least) least = cost, plan.mt = mt, plan.nt = nt;
    if (m_parts >= wanted && n_parts == 1) break;
  }
  plan.mc = Even(plan.mt, blocks.a / (plan.kc * kernel.a.pieces), mr);
  plan.m_parts = CeilDiv(x.m, plan.mt);
  plan.n_parts = CeilDiv(x.n, plan.nt);
  plan.parts = batches * plan.m_parts * plan.n_parts;
  const bool packs_a = shares_a && plan.n_parts > 1, packs_b = shares_b && plan.m_parts > 1;
  plan.a_words = packs_a ? a_whole : 0, plan.b_words = packs_b ? b_whole : 0;
  plan.piece = std::min(std::max((plan.a_words + plan.b_words) / (2 * threads), kLeastPiece), kMostPiece);
  if (packs_a) plan.a_pieces = Whole(kernel.a, x.m, words, plan.kc, x.a_strides[3], plan.piece).Pieces();
  if (packs_b) plan.b_pieces = Whole(kernel.b, x.n, words, plan.kc, x.b_strides[2], plan.piece).Pieces();
  if (x.sums != nullptr) plan.sum_words = CeilDiv(words, kSumWords) * (x.sums_of_b ? x.n : x.m);
  return plan;
}

}  // namespace xtrain::kernels
