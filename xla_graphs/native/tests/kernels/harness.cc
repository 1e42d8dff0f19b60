// The kernels alone, without XLA.
//
//   harness test CASES SIDE   generated matmuls of up to SIDE per side against f64 (10 x SIDE along k in every seventh): all
//                             transpositions, batches, strides, f32 and bf16; NaN, infinities, subnormals, -0; the same bits
//                             with 1 to 8 threads and for any caches; nothing written outside of the result; plans for 2 to 64 threads
//                             (plans.cc). Emulated tiles have at most 150 a side
//   harness measure           what MeasureKernels says of this processor, and how long that takes
//   harness bench THREADS     GFLOP/s of typical shapes, from the processor's time

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../cpp/kernels/known_passes.h"
#include "../../cpp/kernels/matmul.h"
#include "../../cpp/kernels/loops.h"
#include "../../cpp/kernels/pack.h"

namespace xtrain::kernels {
extern const Implementation kAmxBf16Emulated, kAmxF32Emulated;  // on emulated_tiles.h
}

using namespace xtrain::kernels;

bool TestPlans();  // plans.cc

namespace {

struct Named {
  Kernel kernel;
  const char* name;
  bool is_bf16;
  bool flushes = is_bf16;  // subnormal operands count as zero
};
constexpr Named kAll[] = {{Kernel::kAmxBf16, "amx-bf16", true}, {Kernel::kAvx512Bf16, "avx512-bf16", true}, {Kernel::kAvx512WidenedBf16, "avx512-widened-bf16", true}, {Kernel::kAmxF32, "amx-f32", false, true}, {Kernel::kAvx512F32, "avx512-f32", false}, {Kernel::kAvx2WidenedBf16, "avx2-widened-bf16", true}, {Kernel::kAvx2F32, "avx2-f32", false}};

uint16_t ToBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float FromBf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

void Run(const Implementation& kernel, const Matmul& x, const Machine& machine) {
  const int threads = machine.threads;
  const Plan plan = MakePlan(kernel.shape, x, machine);
  static Scratch scratch;
  Packed packed;
  packed.words = scratch.Words(plan.a_words + plan.b_words + plan.sum_words);
  std::atomic<int64_t> next{0};
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back([&] { kernel.work(x, plan, packed, next); });
  kernel.work(x, plan, packed, next);
  for (std::thread& helper : helpers) helper.join();
}

void Run(const Implementation& kernel, const Matmul& x, int threads) { Run(kernel, x, Machine::This(threads)); }

// One that nobody has.
Machine AnyMachine(std::mt19937& random, int threads) {
  const auto some = [&random](int64_t least, int shifts) { return least << random() % shifts; };
  return {some(8 << 10, 4), some(64 << 10, 6), some(512 << 10, 8), static_cast<int>(1 + random() % 16), threads};
}

// Numbers as an operand holds them, and the same as the kernel takes them.
struct Operand {
  std::vector<float> numbers;
  std::vector<char> bytes;
};

Operand Numbers(std::mt19937& random, int64_t size, bool stored_bf16, const Named& named, bool special) {
  Operand operand;
  std::normal_distribution<float> normal;
  operand.numbers.resize(size);
  for (float& x : operand.numbers) x = normal(random);
  if (special) {
    const float all[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                         -std::numeric_limits<float>::infinity(), 1e-40f, -1e-40f, -0.0f, 0.0f, 1e30f};
    for (int i = 0; i < 6; ++i) operand.numbers[random() % size] = all[random() % 8];
  }
  operand.bytes.resize(size * (stored_bf16 ? 2 : 4));
  for (int64_t i = 0; i < size; ++i) {
    const uint16_t low = ToBf16(operand.numbers[i]);
    if (stored_bf16) std::memcpy(&operand.bytes[2 * i], &low, 2);
    if (!stored_bf16) std::memcpy(&operand.bytes[4 * i], &operand.numbers[i], 4);
    if (named.is_bf16) operand.numbers[i] = FromBf16(low);
    // As the instruction has it.
    if (named.flushes && std::fpclassify(operand.numbers[i]) == FP_SUBNORMAL) operand.numbers[i] = 0;
  }
  return operand;
}

constexpr int64_t kGuard = 64;
constexpr char kUntouched = 0x55;

// Strides of a rows x columns matrix for each of P x Q, and how many elements that is.
int64_t Lay(std::mt19937& random, const Matmul& x, int64_t rows, int64_t columns, bool transposed, bool interleaved,
            int64_t* strides) {
  if (transposed) std::swap(rows, columns);
  int64_t pitch = columns + (random() % 2 ? 0 : 3), q = rows * pitch, p = x.batch[1] * q;
  if (interleaved) pitch = x.batch[1] * columns, q = columns, p = rows * pitch;
  strides[0] = p, strides[1] = q, strides[2] = transposed ? 1 : pitch, strides[3] = transposed ? pitch : 1;
  return x.batch[0] * p;
}

bool TestOne(const Named& named, const Implementation& kernel, std::mt19937& random, int number, int side) {
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(1 + random() % most); };
  Matmul x;
  x.a_bf16 = named.is_bf16 && random() % 2, x.b_bf16 = named.is_bf16 && random() % 2, x.c_bf16 = named.is_bf16 && random() % 2;
  for (int64_t& batch : x.batch) batch = number % 3 == 0 ? up_to(3) : 1;
  x.continues = !x.c_bf16 && number % 2 == 0;
  x.m = up_to(number % 5 == 0 ? 40 : side), x.n = up_to(side), x.k = up_to(number % 7 == 0 ? 10 * side : side);
  // Rows of one word lie along k and across it.
  if (number % 11 == 3) x.k = 1;
  const bool interleaved = random() % 2;
  const int64_t a_size = Lay(random, x, x.m, x.k, random() % 2, interleaved, x.a_strides);
  const int64_t b_size = Lay(random, x, x.k, x.n, random() % 2, interleaved, x.b_strides);
  const int64_t c_size = Lay(random, x, x.m, x.n, false, interleaved, x.c_strides);
  const Operand a = Numbers(random, a_size, x.a_bf16, named, number % 4 == 1);
  const Operand b = Numbers(random, b_size, x.b_bf16, named, number % 8 == 1);
  const int64_t width = x.c_bf16 ? 2 : 4;
  std::vector<char> c((c_size + kGuard) * width, kUntouched);
  std::vector<float> before(c_size);
  std::normal_distribution<float> normal;
  // What the sums begin with, where they do not begin with 0.
  const auto each_of_c = [&x](auto then) {
    for (int64_t i = 0; i < x.batch[0] * x.batch[1] * x.m * x.n; ++i) {
      const int64_t n = i % x.n, m = i / x.n % x.m, q = i / (x.n * x.m) % x.batch[1], p = i / (x.n * x.m * x.batch[1]);
      then(p, q, m, n, p * x.c_strides[0] + q * x.c_strides[1] + m * x.c_strides[2] + n);
    }
  };
  if (x.continues) {
    each_of_c([&](int64_t, int64_t, int64_t, int64_t, int64_t at) {
      before[at] = normal(random);
      std::memcpy(&c[at * 4], &before[at], 4);
    });
  }
  std::vector<float> bias(x.n);
  const bool is_biased = !x.continues && number % 3 == 0;
  if (is_biased) {
    for (float& value : bias) value = normal(random);
    x.bias = bias.data();
    each_of_c([&](int64_t, int64_t, int64_t, int64_t n, int64_t at) { before[at] = bias[n]; });
  }
  // The sums along k of an operand that lies the other way.
  std::vector<float> sums(std::max(x.m, x.n) + 1, -1), sums_again = sums;
  const bool lies[] = {x.a_strides[2] == 1, x.b_strides[3] == 1};
  x.sums_of_b = lies[0] && lies[1] ? random() % 2 : lies[1];
  const bool is_as_stored = (x.sums_of_b ? x.b_bf16 : x.a_bf16) == named.is_bf16;
  const bool is_summed = is_as_stored && lies[x.sums_of_b] && x.batch[0] * x.batch[1] == 1 && !x.continues;
  if (is_summed) x.sums = sums.data();
  std::vector<char> again = c, in_two = c;
  x.a = a.bytes.data(), x.b = b.bytes.data(), x.c = c.data();
  const int threads = static_cast<int>(up_to(8)), others = 1 + threads % 8;
  Run(kernel, x, threads);

  double worst = 0;
  std::vector<char> touched(c_size + kGuard);
  // A large result is checked by a random sample of its elements, of about 2^28 products.
  const int64_t step = 1 + (x.batch[0] * x.batch[1] * x.m * x.n * x.k >> 28);
  int64_t skipped = 0;
  each_of_c([&](int64_t p, int64_t q, int64_t m, int64_t n, int64_t at) {
    touched[at] = 1;
    if (skipped-- > 0) return;
    skipped = random() % (2 * step - 1);
    const float* row = &a.numbers[p * x.a_strides[0] + q * x.a_strides[1] + m * x.a_strides[2]];
    const float* column = &b.numbers[p * x.b_strides[0] + q * x.b_strides[1] + n * x.b_strides[3]];
    double want = before[at], sizes = std::fabs(want);
    for (int64_t k = 0; k < x.k; ++k) {
      const double product = static_cast<double>(row[k * x.a_strides[3]]) * column[k * x.b_strides[2]];
      want += product, sizes += std::fabs(product);
    }
    float got;
    uint16_t low;
    std::memcpy(&got, &c[at * width], 4 * (width == 4));
    if (width == 2) std::memcpy(&low, &c[at * width], 2), got = FromBf16(low);
    if (std::isnan(want) != std::isnan(got) && !(sizes > 1e37 && std::isfinite(sizes))) worst = 1e9;
    if (std::isinf(want) && got != want) worst = 1e9;
    if (!std::isfinite(want) || sizes > 1e37) return;  // the latter may overflow on the way
    // Rounding of each sum, and of a bf16 result; subnormals may count as zero.
    const double allowed = sizes * 1e-7 * std::sqrt(static_cast<double>(x.k)) + (x.c_bf16 ? std::fabs(want) / 256 : 0) + 1e-30;
    worst = std::max(worst, std::isfinite(got) ? std::fabs(got - want) / allowed : 1e9);
  });
  const int64_t summed = !is_summed ? 0 : x.sums_of_b ? x.n : x.m;
  for (int64_t i = 0; i < summed; ++i) {
    const float* of = x.sums_of_b ? &b.numbers[i * x.b_strides[3]] : &a.numbers[i * x.a_strides[2]];
    double want = 0, sizes = 0;
    for (int64_t k = 0; k < x.k; ++k) {
      const double term = of[k * (x.sums_of_b ? x.b_strides[2] : x.a_strides[3])];
      want += term, sizes += std::fabs(term);
    }
    if (std::isnan(want) != std::isnan(sums[i]) || (std::isinf(want) && sums[i] != want)) worst = 1e9;
    if (std::isfinite(sizes)) worst = std::max(worst, std::fabs(sums[i] - want) / (sizes * 1e-6 + 1e-30));
  }
  bool ok = worst < 3 && sums[summed] == -1;
  for (int64_t i = 0; i < c_size + kGuard; ++i) {
    for (int64_t byte = 0; byte < width && !touched[i]; ++byte) ok = ok && c[i * width + byte] == kUntouched;
  }
  x.c = again.data();
  if (is_summed) x.sums = sums_again.data();
  Run(kernel, x, AnyMachine(random, others));
  ok = ok && c == again && std::memcmp(sums.data(), sums_again.data(), sums.size() * sizeof(float)) == 0;
  // The terms along k in two calls, the second of which continues: the same bits.
  const int64_t half = x.k / 64 * 32;
  if (!x.c_bf16 && half > 0) {
    Matmul part = x;
    part.c = in_two.data(), part.k = half, part.sums = nullptr;
    Run(kernel, part, threads);
    part.a = static_cast<const char*>(x.a) + half * x.a_strides[3] * (x.a_bf16 ? 2 : 4);
    part.b = static_cast<const char*>(x.b) + half * x.b_strides[2] * (x.b_bf16 ? 2 : 4);
    part.k = x.k - half, part.continues = true, part.bias = nullptr;
    Run(kernel, part, others);
    if (c != in_two) {
      std::printf("%s: case %d, other bits in two calls\n", named.name, number);
      return false;
    }
  }
  if (!ok) {
    std::printf("%s: case %d, m %ld n %ld k %ld, %ld x %ld: error %g of what rounding allows, %s bits with %d and %d threads\n",
                named.name, number, long(x.m), long(x.n), long(x.k), long(x.batch[0]), long(x.batch[1]), worst,
                c == again ? "same" : "other", threads, others);
  }
  return ok;
}

// Every step there is over generated arrays, written over operands, and sums: the same bits from each instruction set that
// this processor has and from any number of threads, and the values that a loop in f32 gives.
// What this processor executes of them.
std::vector<const Loops*> AllLoops() {
  return {&kLoopsBaseline, &FindLoops(), __builtin_cpu_supports("avx2") ? &kLoopsAvx2 : &kLoopsBaseline};
}

bool TestPass(std::mt19937& random) {
  const int64_t size = 1 + random() % (random() % 2 ? 1000 : 100000);
  std::vector<std::vector<float>> first(3, std::vector<float>(size));
  std::vector<uint16_t> low(size);
  std::normal_distribution<float> normal;
  for (auto& array : first) {
    for (float& x : array) x = normal(random);
  }
  for (uint16_t& x : low) x = ToBf16(normal(random));
  first[0][random() % size] = std::numeric_limits<float>::quiet_NaN();
  const float scalar = 0.75f;
  uint32_t half;
  const float constant = 0.5f;
  std::memcpy(&half, &constant, 4);
  using K = StepKind;
  // Operands 0 to 4: three arrays, bf16, a scalar. Steps from 5 on.
  const std::vector<Step> steps = {{K::kConstant, half}, {K::kMultiply, 0, 4}, {K::kAdd, 6, 3},     {K::kAbs, 7},         {K::kSqrt, 8},
                                   {K::kNegate, 1},      {K::kMax, 9, 10},     {K::kSign, 2},       {K::kSelect, 12, 11, 5}, {K::kRsqrt, 8},
                                   {K::kMin, 13, 14},    {K::kDivide, 15, 4},  {K::kSubtract, 16, 2}, {K::kRound, 17},      {K::kMultiply, 2, 2},
                                   // Products that a sum alone reads, on each side.
                                   {K::kMultiply, 1, 4}, {K::kSubtract, 2, 20}, {K::kMultiply, 5, 2}, {K::kAdd, 21, 22}, {K::kMultiply, 1, 2},
                                   {K::kSubtract, 24, 23}};
  std::vector<float> wanted, wanted_products;
  double wanted_sum = 0;
  bool ok = true;
  for (const Loops* loops : AllLoops()) {
    const PassWork work = loops->one_pass;
    const int threads = 1 + random() % 8;
    auto arrays = first;
    std::vector<uint16_t> rounded(size + 1, 0x5555);
    std::vector<float> products(size);
    OnePass pass = {size, {}, steps, {{17, arrays[0].data(), Form::kF32}, {18, rounded.data(), Form::kBf16}, {19, nullptr, Form::kOne},
                                      {25, products.data(), Form::kF32}}};
    for (auto& array : arrays) pass.operands.push_back({array.data(), Form::kF32});
    pass.operands.push_back({low.data(), Form::kBf16});
    pass.operands.push_back({&scalar, Form::kOne});
    std::vector<double> sums(4 * PassChunks(pass));
    std::atomic<int64_t> next{0};
    std::vector<std::thread> helpers;
    for (int i = 1; i < threads; ++i) helpers.emplace_back([&] { work(pass, next, sums.data()); });
    work(pass, next, sums.data());
    for (std::thread& helper : helpers) helper.join();
    double sum = 0, squares = 0;
    for (int64_t chunk = 0; chunk < PassChunks(pass); ++chunk) sum += sums[2 * PassChunks(pass) + chunk];
    for (float x : first[2]) squares += static_cast<double>(x) * x;
    ok = ok && std::fabs(sum - squares) <= 1e-5 * squares && rounded[size] == 0x5555 && arrays[1] == first[1] && arrays[2] == first[2];
    if (wanted.empty()) {
      wanted = arrays[0], wanted_products = products, wanted_sum = sum;
      for (int64_t i = 0; i < size; ++i) {
        const float a = first[0][i] * scalar + FromBf16(low[i]), b = std::sqrt(std::fabs(a)), c = -first[1][i];
        const float most = b != b || b > c ? b : c, chosen = first[2][i] != 0 ? most : constant, other = 1 / std::sqrt(std::fabs(a));
        const float want = (chosen != chosen || chosen < other ? chosen : other) / scalar - first[2][i];
        ok = ok && (want == wanted[i] || (want != want && wanted[i] != wanted[i])) && rounded[i] == ToBf16(wanted[i]);
        const volatile float left = first[1][i] * scalar, right = constant * first[2][i], product = first[1][i] * first[2][i];
        ok = ok && products[i] == product - ((first[2][i] - left) + right);
      }
    }
    ok = ok && std::memcmp(wanted.data(), arrays[0].data(), 4 * size) == 0 && sum == wanted_sum && products == wanted_products;
  }
  if (!ok) std::printf("one pass: wrong for %ld elements\n", long(size));
  return ok;
}

// A pass with a loop of its own gives the bits of the same step by step, which a step that nobody reads makes it.
template <class P>
bool TestKnown(std::mt19937& random) {
  const int64_t size = 1 + random() % (random() % 2 ? 1000 : 100000);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> first;
  OnePass pass = {size, {}, {}, {}};
  for (const bool is_scalar : P::kScalars) {
    first.emplace_back(is_scalar ? 1 : size);
    // Moments are no less than 0.
    for (float& x : first.back()) x = std::fabs(normal(random));
    first.back()[random() % first.back().size()] = random() % 2 ? 1e-39f : 0.0f;
  }
  for (const Step& step : P::kSteps) {
    pass.steps.push_back(step);
    const float constant = normal(random);
    if (step.kind == StepKind::kConstant) std::memcpy(&pass.steps.back().a, &constant, 4);
  }
  std::vector<std::vector<float>> wanted;
  std::vector<double> wanted_sums;
  bool ok = true;
  for (const Loops* loops : AllLoops()) {
    const PassWork work = loops->one_pass;
    for (const bool is_known : {true, false}) {
      auto arrays = first;
      OnePass now = pass;
      size_t written = 0;
      for (size_t i = 0; i < arrays.size(); ++i) now.operands.push_back({arrays[i].data(), P::kScalars[i] ? Form::kOne : Form::kF32});
      for (size_t r = 0; r < std::size(P::kResults); ++r) {
        while (!P::kSums[r] && P::kScalars[written]) ++written;
        now.results.push_back({P::kResults[r], P::kSums[r] ? nullptr : arrays[written++].data(), P::kSums[r] ? Form::kOne : Form::kF32});
      }
      if (!is_known) now.steps.push_back({StepKind::kConstant});
      std::vector<double> sums(now.results.size() * PassChunks(now));
      std::atomic<int64_t> next{0};
      const int threads = 1 + random() % 4;
      std::vector<std::thread> helpers;
      for (int i = 1; i < threads; ++i) helpers.emplace_back([&] { work(now, next, sums.data()); });
      work(now, next, sums.data());
      for (std::thread& helper : helpers) helper.join();
      if (wanted.empty()) wanted = arrays, wanted_sums = sums;
      for (size_t i = 0; i < arrays.size(); ++i) {
        ok = ok && std::memcmp(arrays[i].data(), wanted[i].data(), 4 * arrays[i].size()) == 0;
      }
      ok = ok && sums == wanted_sums;
    }
  }
  if (!ok) std::printf("a pass with a loop of its own: other bits for %ld elements\n", long(size));
  return ok;
}

template <class... P>
bool TestKnownPasses(std::mt19937& random, Passes<P...>) {
  return (TestKnown<P>(random) & ...);
}

// Attention with its gradients beside the same in f64: every mask, grouped heads, soft caps, dropout by the same generator,
// ragged sizes, heads side by side or apart; the same bits with any number of threads.
uint32_t ThreefryWord(const uint32_t* key, uint32_t stream, uint32_t row, uint32_t place) {
  const uint32_t keys[] = {key[0], key[1] + stream, key[0] ^ (key[1] + stream) ^ 0x1bd11bdau};
  const int rotations[] = {13, 15, 26, 6, 17, 29, 16, 24};
  uint32_t x0 = place + keys[0], x1 = row + keys[1];
  for (uint32_t round = 0; round < 13; ++round) {
    x0 += x1;
    x1 = (x1 << rotations[round % 8] | x1 >> (32 - rotations[round % 8])) ^ x0;
    if (round % 4 == 3) x0 += keys[(round / 4 + 1) % 3], x1 += keys[(round / 4 + 2) % 3] + round / 4 + 1;
  }
  return x0;
}

struct HeadsArray {
  Operand values;
  std::vector<char> results;
  int64_t strides[3];
  int64_t heads, rows, width;

  int64_t Offset(int64_t b, int64_t h, int64_t t) const { return b * strides[0] + h * strides[1] + t * strides[2]; }
  float Stored(int64_t i, bool is_bf16) const {
    float wide = 0;
    uint16_t low = 0;
    std::memcpy(is_bf16 ? static_cast<void*>(&low) : &wide, &results[i * (is_bf16 ? 2 : 4)], is_bf16 ? 2 : 4);
    return is_bf16 ? FromBf16(low) : wide;
  }
  Heads Of(bool result) {
    char* data = result ? results.data() : values.bytes.data();
    return {data, {strides[0], strides[1], strides[2]}};
  }
};

void RunAttention(const AttentionImplementation& kernel, const Attention& x, bool is_backward, int threads) {
  const AttentionPlan plan = kernel.plan(x);
  AttentionSums sums = {std::vector<float>(plan.chunks > 1 && is_backward ? plan.parts * plan.sums : 0),
                        std::vector<std::atomic<int64_t>>(plan.parts / plan.chunks)};
  std::atomic<int64_t> next{0};
  const auto work = [&] { is_backward ? kernel.backward(x, plan, sums, next) : kernel.forward(x, plan, next); };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
}

bool TestAttention(const Named& named, const Implementation& implementation, std::mt19937& random, int number) {
  const auto up_to = [&](int64_t most) { return static_cast<int64_t>(1 + random() % most); };
  const AttentionImplementation& kernel = implementation.attention;
  Attention x = {};
  x.is_bf16 = named.is_bf16;
  x.batch = up_to(3), x.kv_heads = up_to(3), x.heads = x.kv_heads * up_to(3);
  const int64_t long_side = number % 9 == 0 ? 700 : 200;
  x.queries = up_to(long_side), x.keys = random() % 3 ? x.queries : up_to(long_side), x.width = up_to(number % 4 ? 80 : 200);
  x.scale = 1 / std::sqrt(static_cast<float>(x.width));
  x.soft_cap = random() % 4 == 0 ? 1.5f : 0;
  x.is_causal = random() % 2;
  if (random() % 3 == 0 && x.queries <= x.keys) x.window = up_to(x.keys + 5);
  std::vector<uint8_t> mask(x.batch * x.keys);
  for (int64_t i = 0; i < static_cast<int64_t>(mask.size()); ++i) mask[i] = random() % 8 != 0 && (number % 5 || i % x.keys > x.keys / 3);
  if (random() % 8 == 0) std::fill_n(mask.begin(), x.keys, 0);
  std::vector<int32_t> starts(x.batch * x.queries);
  if (random() % 2) {
    x.key_mask = mask.data();
  } else if (random() % 2) {
    // Examples one behind the other, of one token to many.
    const int64_t most = 1 + random() % 120;
    for (int64_t i = 0; i < static_cast<int64_t>(starts.size()); ++i) {
      const int64_t t = i % x.queries;
      starts[i] = t == 0 || random() % most == 0 ? t : starts[i - 1];
    }
    x.first = starts.data(), x.is_causal = true, x.keys = x.queries;
  }
  const double rate = 0.3;
  if (random() % 2) {
    x.dropout = {true, static_cast<uint32_t>(rate * 4294967296.0), static_cast<uint32_t>(random()), {static_cast<uint32_t>(random()), 7, static_cast<uint32_t>(random() % 2 ? random() % 3 : random())}, static_cast<float>(1 / (1 - rate))};
  }
  const auto make = [&](int64_t heads, int64_t rows) {
    HeadsArray array;
    array.heads = heads, array.rows = rows, array.width = x.width;
    const int64_t pad = random() % 2 ? 5 : 0;
    if (random() % 2) {
      array.strides[2] = heads * x.width + pad, array.strides[1] = x.width, array.strides[0] = rows * array.strides[2];
    } else {
      array.strides[2] = x.width + pad, array.strides[1] = rows * array.strides[2], array.strides[0] = heads * array.strides[1];
    }
    const int64_t size = x.batch * array.strides[0] + kGuard;
    array.values = Numbers(random, size, x.is_bf16, named, false);
    array.results.assign(size * (x.is_bf16 ? 2 : 4), kUntouched);
    return array;
  };
  HeadsArray q = make(x.heads, x.queries), k = make(x.kv_heads, x.keys), v = make(x.kv_heads, x.keys);
  HeadsArray out = make(x.heads, x.queries), dy = make(x.heads, x.queries);
  std::vector<float> statistics(2 * x.batch * x.heads * x.queries);
  x.q = q.Of(false), x.k = k.Of(false), x.v = v.Of(false), x.dy = dy.Of(false), x.statistics = statistics.data();
  x.out = out.Of(true), x.dq = q.Of(true), x.dk = k.Of(true), x.dv = v.Of(true);
  const int threads = static_cast<int>(up_to(8));
  RunAttention(kernel, x, false, threads);
  RunAttention(kernel, x, true, threads);

  std::vector<double> want_out(out.values.numbers.size()), want_dq(q.values.numbers.size()), want_dk(k.values.numbers.size()), want_dv(v.values.numbers.size());
  std::vector<double> s(x.keys), p(x.keys), dp(x.keys), bend(x.keys);
  std::vector<char> sees(x.keys), keep(x.keys);
  double largest = 0;  // term of a score's gradient: two of them may cancel
  for (int64_t b = 0; b < x.batch; ++b) {
    for (int64_t h = 0; h < x.heads; ++h) {
      const int64_t kv = h / (x.heads / x.kv_heads);
      for (int64_t t = 0; t < x.queries; ++t) {
        const float* query = &q.values.numbers[q.Offset(b, h, t)];
        const float* grad = &dy.values.numbers[dy.Offset(b, h, t)];
        double most = -1e300, sum = 0, projected = 0;
        for (int64_t key = 0; key < x.keys; ++key) {
          s[key] = 0, bend[key] = 1;
          for (int64_t d = 0; d < x.width; ++d) s[key] += static_cast<double>(query[d]) * k.values.numbers[k.Offset(b, kv, key) + d];
          s[key] *= x.scale;
          if (x.soft_cap > 0) {
            const double tanh = std::tanh(s[key] / x.soft_cap);
            s[key] = x.soft_cap * tanh, bend[key] = 1 - tanh * tanh;
          }
          const bool past = !x.is_causal || t >= key;
          const bool near = x.window == 0 || (key > t - x.window && (x.is_causal || key < t + x.window));
          const bool counts = x.key_mask == nullptr || mask[b * x.keys + key];
          sees[key] = past && near && counts && (x.first == nullptr || key >= starts[b * x.queries + t]);
          const bool once = x.window != 0 && x.key_mask != nullptr && ((past && near) || (past && counts));
          if (!sees[key]) s[key] = once ? -1e38 : -2e38;
          most = std::max(most, s[key]);
        }
        for (int64_t key = 0; key < x.keys; ++key) sum += p[key] = std::exp(s[key] - most);
        for (int64_t key = 0; key < x.keys; ++key) {
          p[key] /= sum, dp[key] = 0;
          const uint32_t row = static_cast<uint32_t>(x.dropout.key[2] * x.batch + b), place = static_cast<uint32_t>((h * x.queries + t) * x.keys + key);
          keep[key] = !x.dropout.is_on || ThreefryWord(x.dropout.key, x.dropout.stream, row, place) >= x.dropout.threshold;
          const double by = !x.dropout.is_on ? 1 : keep[key] ? x.dropout.scale : 0;
          for (int64_t d = 0; d < x.width; ++d) {
            const double value = v.values.numbers[v.Offset(b, kv, key) + d];
            want_out[out.Offset(b, h, t) + d] += by * p[key] * value;
            dp[key] += by * grad[d] * value;
            want_dv[v.Offset(b, kv, key) + d] += by * p[key] * grad[d];
          }
          projected += dp[key] * p[key];
        }
        // By definition of what is stored, which counts where the difference from a dP is all that is left.
        if (x.is_bf16) {
          projected = 0;
          for (int64_t d = 0; d < x.width; ++d) projected += grad[d] * static_cast<double>(out.Stored(out.Offset(b, h, t) + d, true));
        }
        for (int64_t key = 0; key < x.keys; ++key) {
          const double ds = sees[key] ? x.scale * bend[key] * p[key] * (dp[key] - projected) : 0;
          if (sees[key]) largest = std::max(largest, x.scale * p[key] * std::fabs(dp[key]));
          for (int64_t d = 0; d < x.width; ++d) {
            want_dq[q.Offset(b, h, t) + d] += ds * k.values.numbers[k.Offset(b, kv, key) + d];
            want_dk[k.Offset(b, kv, key) + d] += ds * query[d];
          }
        }
      }
    }
  }
  bool ok = true;
  const auto compare = [&](const char* what, const HeadsArray& array, const std::vector<double>& want, double terms) {
    const int64_t bytes = x.is_bf16 ? 2 : 4;
    std::vector<char> written(want.size());
    double worst = 0, size = terms;
    for (int64_t b = 0; b < x.batch; ++b) {
      for (int64_t h = 0; h < array.heads; ++h) {
        for (int64_t t = 0; t < array.rows; ++t) {
          for (int64_t d = 0; d < x.width; ++d) {
            const int64_t i = array.Offset(b, h, t) + d;
            const float got = array.Stored(i, x.is_bf16);
            written[i] = 1;
            worst = std::isfinite(got) ? std::max(worst, std::fabs(got - want[i])) : 1e9;
            size = std::max(size, std::fabs(want[i]));
          }
        }
      }
    }
    bool inside = true;
    for (size_t i = 0; i < want.size(); ++i) {
      for (int64_t byte = 0; byte < bytes && !written[i]; ++byte) inside = inside && array.results[i * bytes + byte] == kUntouched;
    }
    const double allowed = (x.is_bf16 ? 2e-2 : 5e-6) * std::max(size, 0.05);
    if (worst <= allowed && inside) return;
    ok = false;
    std::printf("%s: attention %d, %s: error %g of %g%s; B %ld H %ld K %ld T %ld S %ld D %ld causal %d window %ld mask %d first %d dropout %d cap %g\n", named.name,
                number, what, worst, size, inside ? "" : ", written outside", long(x.batch), long(x.heads), long(x.kv_heads), long(x.queries),
                long(x.keys), long(x.width), x.is_causal, long(x.window), x.key_mask != nullptr, x.first != nullptr, x.dropout.is_on, x.soft_cap);
  };
  compare("out", out, want_out, 0);
  compare("dq", q, want_dq, largest);
  compare("dk", k, want_dk, largest);
  compare("dv", v, want_dv, 0);
  const std::vector<std::vector<char>> first = {out.results, q.results, k.results, v.results};
  RunAttention(kernel, x, false, 1 + threads % 8);
  RunAttention(kernel, x, true, 1 + threads % 8);
  const bool same = first == std::vector<std::vector<char>>{out.results, q.results, k.results, v.results};
  if (!same) std::printf("%s: attention %d: other bits with another number of threads\n", named.name, number);
  return ok && same;
}

// Cross-entropy against f64, and the same bits of all loops and numbers of threads.
// `work`, which claims parts, on 1 to 8 threads.
template <class Work>
void OnSome(std::mt19937& random, Work work) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> crew;
  for (int i = random() % 8; i > 0; --i) crew.emplace_back([&] { work(next); });
  work(next);
  for (std::thread& thread : crew) thread.join();
}

bool TestCrossEntropy(std::mt19937& random) {
  std::normal_distribution<float> normal(0, 4);
  const int64_t rows = 1 + random() % 70, classes = 1 + random() % (random() % 2 != 0 ? 100 : 9000);
  std::vector<float> x(rows * classes), losses(rows);
  std::vector<int32_t> labels(rows);
  for (float& value : x) value = normal(random);
  for (int64_t row = 0; row < rows; ++row) {
    losses[row] = random() % 4 == 0 ? 0 : normal(random);
    labels[row] = random() % 5 == 0 ? -100 : random() % classes;
    float* here = x.data() + row * classes;
    // Masked classes, large logits, and rows without a number.
    if (random() % 4 == 0 && classes > 1) here[random() % (classes - 1)] = -INFINITY;
    if (random() % 8 == 0) here[classes - 1] = 3e4f;
    if (random() % 16 == 0) here[random() % classes] = NAN;
    if (random() % 8 == 0) std::fill_n(here, random() % classes, -INFINITY);
    if (random() % 16 == 0) std::fill_n(here, classes, -INFINITY);
  }
  const Logits logits = {x.data(), rows, classes};
  std::vector<float> first;
  bool ok = true;
  for (const Loops* loops : AllLoops()) {
    std::vector<float> sums(rows), wide(rows * classes);
    std::vector<uint16_t> narrow(rows * classes);
    const auto run = [&](auto work) { OnSome(random, work); };
    run([&](std::atomic<int64_t>& next) { loops->log_sums(logits, sums.data(), next); });
    for (const bool is_bf16 : {false, true}) {
      void* result = is_bf16 ? static_cast<void*>(narrow.data()) : wide.data();
      const LogitGradients of = {logits, sums.data(), labels.data(), losses.data(), result, is_bf16};
      run([&](std::atomic<int64_t>& next) { loops->logit_gradients(of, next); });
    }
    for (int64_t row = 0; row < rows; ++row) {
      const float* here = x.data() + row * classes;
      double most = -INFINITY, sum = 0;
      bool is_number = true;
      for (int64_t i = 0; i < classes; ++i) most = std::max<double>(most, here[i]), is_number &= here[i] == here[i];
      is_number &= most > -INFINITY;
      for (int64_t i = 0; i < classes; ++i) sum += std::exp(here[i] - most);
      const double log_sum = most + std::log(sum);
      const bool fits = is_number ? std::abs(sums[row] - log_sum) <= 2e-6 * std::max(1.0, std::abs(log_sum)) : std::isnan(sums[row]);
      if (!fits) std::printf("log sum of row %ld: %g, not %g\n", long(row), sums[row], log_sum), ok = false;
      for (int64_t i = 0; i < classes && ok; ++i) {
        const double want = losses[row] == 0 ? 0 : (std::exp(here[i] - log_sum) - (i == labels[row])) * losses[row];
        const float got = wide[row * classes + i];
        uint32_t bits = narrow[row * classes + i] << 16;
        float rounded;
        std::memcpy(&rounded, &bits, 4);
        const bool is_nan = losses[row] != 0 && !is_number;
        const double bound = std::abs(losses[row]) * (3e-7 * std::max(4.0, std::abs(log_sum)));
        const bool near = is_nan ? std::isnan(got) && std::isnan(rounded)
                                 : std::abs(got - want) <= bound && std::abs(rounded - got) <= std::abs(got) / 256;
        if (!near) std::printf("gradient of row %ld, class %ld of %ld: %g and %g, not %g\n", long(row), long(i), long(classes), got, rounded, want), ok = false;
      }
    }
    std::vector<float> all = sums;
    all.insert(all.end(), wide.begin(), wide.end());
    if (first.empty()) first = all;
    if (std::memcmp(first.data(), all.data(), all.size() * 4) != 0) std::printf("cross-entropy: other bits\n"), ok = false;
  }
  return ok;
}

// With sums around it a normalization gives the same bits as between additions of their own. `of`: backward without them, done.
bool NormAddsUp(std::mt19937& random, const Loops& loops, const Norm& norm, const void* summand, bool is_bf16, const NormBackward& of,
                const std::vector<float>& beside) {
  const int64_t count = norm.rows * norm.width;
  std::vector<float> sum(count), y(count), want_sum(count), want_y(count), dx(count), want_dx(count), sums(norm.Chunks() * 2 * norm.width);
  std::vector<uint16_t> low(count), want_low(count);
  for (int64_t i = 0; i < count; ++i) {
    want_sum[i] = norm.x[i] + (is_bf16 ? FromBf16(static_cast<const uint16_t*>(summand)[i]) : static_cast<const float*>(summand)[i]);
    want_dx[i] = of.dx[i] + beside[i], want_low[i] = ToBf16(want_dx[i]);
  }
  Norm of_sum = norm;
  of_sum.x = want_sum.data();
  const NormForward plain = {of_sum, nullptr, want_y.data(), false}, adding = {norm, nullptr, y.data(), false, {summand, is_bf16, sum.data()}};
  NormBackward backward = of;
  backward.dx = dx.data(), backward.sums = sums.data(), backward.addend = beside.data(), backward.narrow = low.data();
  OnSome(random, [&](std::atomic<int64_t>& next) { loops.norm_forward(plain, next); });
  OnSome(random, [&](std::atomic<int64_t>& next) { loops.norm_forward(adding, next); });
  OnSome(random, [&](std::atomic<int64_t>& next) { loops.norm_backward(backward, next); });
  const auto same = [count](const std::vector<float>& a, const std::vector<float>& b) {
    for (int64_t i = 0; i < count; ++i) {
      if (a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
    }
    return true;
  };
  bool ok = same(sum, want_sum) && same(y, want_y) && same(dx, want_dx);
  for (int64_t i = 0; i < count; ++i) ok &= low[i] == want_low[i] || std::isnan(want_dx[i]);
  if (!ok) std::printf("norm of a sum: other values\n");
  return ok;
}

bool TestNorm(std::mt19937& random) {
  std::normal_distribution<float> normal;
  const int64_t rows = 1 + random() % (random() % 4 == 0 ? 1500 : 70), width = 1 + random() % (random() % 2 != 0 ? 100 : 3000);
  const bool subtracts_mean = random() % 2 != 0, has_shift = random() % 2 != 0;
  const float offset = random() % 4 == 0 ? 100 : 0;
  std::vector<float> x(rows * width), dy(rows * width), scale(width), shift(width);
  for (float& value : x) value = normal(random) + offset;
  for (std::vector<float>* array : {&dy, &scale, &shift}) {
    for (float& value : *array) value = normal(random);
  }
  // A row without variance, and, last, one without a number.
  if (random() % 4 == 0) std::fill_n(x.data(), width, 3.0f);
  const bool has_nan = random() % 8 == 0;
  if (has_nan) x[(rows - 1) * width + random() % width] = random() % 2 != 0 ? NAN : INFINITY;
  const Norm norm = {x.data(), rows, width, subtracts_mean, 1e-5f, scale.data()};
  // x as a sum, and what is added to its gradient.
  const bool adds_bf16 = random() % 2 != 0;
  std::vector<float> summand(x), beside(rows * width);
  std::vector<uint16_t> other(rows * width);
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = normal(random);
    other[i] = ToBf16(value), summand[i] = value, beside[i] = normal(random);
  }
  std::vector<float> first;
  bool ok = true;
  for (const Loops* loops : AllLoops()) {
    std::vector<float> wide(rows * width), dx(rows * width), sums(norm.Chunks() * 2 * width);
    std::vector<uint16_t> narrow(rows * width);
    for (const bool is_bf16 : {false, true}) {
      const NormForward of = {norm, has_shift ? shift.data() : nullptr, is_bf16 ? static_cast<void*>(narrow.data()) : wide.data(), is_bf16};
      OnSome(random, [&](std::atomic<int64_t>& next) { loops->norm_forward(of, next); });
    }
    const NormBackward of = {norm, dy.data(), dx.data(), sums.data()};
    OnSome(random, [&](std::atomic<int64_t>& next) { loops->norm_backward(of, next); });
    ok &= NormAddsUp(random, *loops, norm, adds_bf16 ? static_cast<const void*>(other.data()) : summand.data(), adds_bf16, of, beside);
    std::vector<double> dscale(width), dshift(width), sizes(width);
    for (int64_t row = 0; row < rows; ++row) {
      const float *here = x.data() + row * width, *of_row = dy.data() + row * width;
      double mean = 0, variance = 0, of_g = 0, of_products = 0, largest = 0;
      for (int64_t i = 0; subtracts_mean && i < width; ++i) mean += static_cast<double>(here[i]) / width;
      for (int64_t i = 0; i < width; ++i) variance += (here[i] - mean) * (here[i] - mean) / width;
      const double rstd = 1 / std::sqrt(variance + 1e-5);
      const auto xhat = [&](int64_t i) { return (here[i] - mean) * rstd; };
      for (int64_t i = 0; i < width; ++i) {
        const double g = static_cast<double>(of_row[i]) * scale[i];
        if (subtracts_mean) of_g += g / width;
        of_products += g * xhat(i) / width, largest = std::max(largest, std::abs(g));
        dscale[i] += of_row[i] * xhat(i), dshift[i] += of_row[i], sizes[i] += std::abs(of_row[i]) * (1 + std::abs(xhat(i)));
      }
      // What rounding of x's own size leaves of its distance from the mean.
      const double noise = 1e-6 * (1 + std::abs(mean) * rstd);
      for (int64_t i = 0; i < width && ok; ++i) {
        const double y = xhat(i) * scale[i] + (has_shift ? shift[i] : 0);
        const double want = (of_row[i] * scale[i] - of_g - xhat(i) * of_products) * rstd;
        const float got = wide[row * width + i], got_dx = dx[row * width + i];
        const uint32_t bits = narrow[row * width + i] << 16;
        float rounded;
        std::memcpy(&rounded, &bits, 4);
        const double room = 1 + std::abs(xhat(i));
        const bool near = std::isnan(rstd * mean * 0 + variance * 0)
                              ? std::isnan(got_dx)
                              : std::abs(got - y) <= noise * 4 * (std::abs(scale[i]) * room + 1) && std::abs(rounded - got) <= std::abs(got) / 256 &&
                                    std::abs(got_dx - want) <= noise * 8 * rstd * (largest + 1) * room * room;
        if (!near) std::printf("norm of row %ld, column %ld of %ld: %g, not %g, gradient %g, not %g\n", long(row), long(i), long(width), got, y, got_dx, want), ok = false;
      }
    }
    for (int64_t i = 0; i < width && ok && !has_nan; ++i) {
      double of_scale = 0, of_shift = 0;
      for (int64_t chunk = 0; chunk < norm.Chunks(); ++chunk) of_scale += sums[2 * chunk * width + i], of_shift += sums[(2 * chunk + 1) * width + i];
      const double bound = sizes[i] * 4e-6 * (1 + offset);
      const bool near = std::abs(of_scale - dscale[i]) <= bound && std::abs(of_shift - dshift[i]) <= bound;
      if (!near) std::printf("norm, column %ld: %g, not %g, and %g, not %g\n", long(i), of_scale, dscale[i], of_shift, dshift[i]), ok = false;
    }
    std::vector<float> all = wide;
    all.insert(all.end(), dx.begin(), dx.end()), all.insert(all.end(), sums.begin(), sums.end());
    if (first.empty()) first = all;
    if (std::memcmp(first.data(), all.data(), all.size() * 4) != 0) std::printf("norm: other bits\n"), ok = false;
  }
  return ok;
}

// What a step computes of floats, in f64 where it is no single operation.
double Wanted(const Step& step, float x, float y, float z) {
  using K = StepKind;
  const double at = x, u = std::sqrt(2 / M_PI) * (at + 0.044715 * at * at * at), by_tanh = 1 / (1 + std::exp(-2 * u)), exact = 0.5 * std::erfc(-at / std::sqrt(2));
  switch (step.kind) {
    case K::kSelect:
      return x != 0 ? y : z;
    case K::kNegate:
      return -x;
    case K::kAbs:
      return std::fabs(x);
    case K::kAdd:
      return x + y;
    case K::kSubtract:
      return x - y;
    case K::kMultiply:
      return x * y;
    case K::kLogistic:
      return 1 / (1 + std::exp(-at));
    case K::kGelu:
      return at * exact;
    case K::kGeluTanh:
      return at * by_tanh;
    case K::kGeluSlope:
      return exact + at * std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
    default:
      return by_tanh + at * by_tanh * (1 / (1 + std::exp(2 * u))) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * at * at);
  }
}

// An array of a program: where the elements of the pass are in it.
struct Laid {
  std::vector<int64_t> strides;  // of the pass's sizes, the last 1
  int64_t offset, count;

  int64_t At(const std::vector<int64_t>& sizes, int64_t element) const {
    int64_t at = offset;
    for (size_t d = sizes.size(); d-- > 0; element /= sizes[d]) at += element % sizes[d] * strides[d];
    return at;
  }
};

// Rows in any order, with gaps, or (`repeats`) each of them several times.
Laid Lay(std::mt19937& random, const std::vector<int64_t>& sizes, bool repeats) {
  Laid laid = {std::vector<int64_t>(sizes.size(), 1), int64_t(random() % 5), 0};
  std::vector<size_t> order;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) order.push_back(d);
  std::shuffle(order.begin(), order.end(), random);
  int64_t extent = sizes.back() + random() % 3;
  for (const size_t d : order) {
    laid.strides[d] = repeats && random() % 3 == 0 ? 0 : extent;
    if (laid.strides[d] != 0) extent = extent * sizes[d] + random() % 3;
  }
  laid.count = laid.offset + extent;
  return laid;
}

// A generated program over arrays that lie anyhow: each step is what it says of the values that it read, whether its value is a result or
// not, and whatever the instruction set and the number of threads.
bool TestProgram(std::mt19937& random) {
  using K = StepKind;
  std::normal_distribution<float> normal(0, 3);
  std::vector<int64_t> sizes(1 + random() % 4);
  for (int64_t& size : sizes) size = 1 + random() % (random() % 4 == 0 ? 40 : 7);
  sizes.back() = random() % 2 ? 16 * (1 + random() % 20) : 1 + random() % 70;
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  const size_t operands = 1 + random() % 4;
  std::vector<Laid> laid;
  std::vector<std::vector<float>> wide;
  std::vector<std::vector<uint16_t>> narrow;
  std::vector<char> is_bf16;
  for (size_t i = 0; i < operands; ++i) {
    laid.push_back(Lay(random, sizes, true));
    is_bf16.push_back(random() % 2), wide.emplace_back(laid[i].count), narrow.emplace_back(laid[i].count);
    for (int64_t e = 0; e < laid[i].count; ++e) {
      const float odd[] = {0.0f, -0.0f, NAN, INFINITY, 40.0f, -40.0f, 1e10f, -1e10f};
      wide[i][e] = random() % 50 == 0 ? odd[random() % 8] : normal(random), narrow[i][e] = ToBf16(wide[i][e]);
      if (is_bf16[i]) wide[i][e] = FromBf16(narrow[i][e]);
    }
  }
  const K kinds[] = {K::kSelect,   K::kNegate, K::kAbs,      K::kAdd,       K::kSubtract,     K::kMultiply,
                     K::kLogistic, K::kGelu,   K::kGeluTanh, K::kGeluSlope, K::kGeluTanhSlope};
  std::vector<Step> steps(1 + random() % 8);
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto value = [&] { return int64_t(random() % (operands + s)); };
    steps[s] = {kinds[random() % std::size(kinds)], value(), value(), value()};
  }
  const auto are_equal = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return x == y || (x != x && y != y); });
  };
  std::vector<std::vector<float>> first;
  bool ok = true;
  for (const Loops* loops : AllLoops()) {
    // All values as results, then the last alone.
    for (const bool are_all : {true, false}) {
      OnePass pass = {elements, {}, steps, {}, sizes};
      for (size_t i = 0; i < operands; ++i) {
        const void* data = is_bf16[i] ? static_cast<const void*>(narrow[i].data() + laid[i].offset) : wide[i].data() + laid[i].offset;
        pass.operands.push_back({data, is_bf16[i] ? Form::kBf16 : Form::kF32, {laid[i].strides.begin(), laid[i].strides.end() - 1}});
      }
      std::vector<Laid> places;
      std::vector<std::vector<float>> results;
      const size_t from = are_all ? 0 : steps.size() - 1;
      for (size_t s = from; s < steps.size(); ++s) places.push_back(Lay(random, sizes, false)), results.emplace_back(places.back().count, 77.0f);
      const Laid low_place = Lay(random, sizes, false);
      std::vector<uint16_t> low(low_place.count, 0x5555);
      const auto rows = [](const Laid& laid) { return std::vector<int64_t>(laid.strides.begin(), laid.strides.end() - 1); };
      for (size_t s = from; s < steps.size(); ++s) {
        pass.results.push_back({int64_t(operands + s), results[s - from].data() + places[s - from].offset, Form::kF32, rows(places[s - from])});
      }
      pass.results.push_back({int64_t(operands + steps.size() - 1), low.data() + low_place.offset, Form::kBf16, rows(low_place)});
      std::vector<double> sums(pass.results.size() * PassChunks(pass));
      OnSome(random, [&](std::atomic<int64_t>& next) { loops->one_pass(pass, next, sums.data()); });
      std::vector<std::vector<float>> values;
      for (size_t i = 0; i < operands; ++i) {
        values.emplace_back();
        for (int64_t e = 0; e < elements; ++e) values[i].push_back(wide[i][laid[i].At(sizes, e)]);
      }
      int64_t touched = 0, low_touched = 0;
      for (size_t r = 0; r < results.size(); ++r) {
        values.emplace_back();
        for (int64_t e = 0; e < elements; ++e) values.back().push_back(results[r][places[r].At(sizes, e)]);
        for (const float x : results[r]) touched += x != 77.0f;
      }
      for (const uint16_t x : low) low_touched += x != 0x5555;
      ok = ok && touched <= int64_t(results.size()) * elements && low_touched <= elements;
      for (int64_t e = 0; e < elements && ok; ++e) {
        const float x = values.back()[e];
        ok = low[low_place.At(sizes, e)] == ToBf16(x) || x != x;
      }
      if (!are_all) {
        ok = ok && are_equal(values.back(), first.back());
        continue;
      }
      if (first.empty()) first = values;
      for (size_t v = 0; v < values.size(); ++v) ok = ok && are_equal(values[v], first[v]);
      for (size_t s = 0; s < steps.size() && ok; ++s) {
        for (int64_t e = 0; e < elements; ++e) {
          const float x = values[steps[s].a][e], y = values[steps[s].b][e], z = values[steps[s].c][e], got = values[operands + s][e];
          const double want = Wanted(steps[s], x, y, z), size = std::min(std::fabs(double(x)), 1.0) + std::fabs(want);
          const bool is_exact = steps[s].kind < K::kDecodeSigned;
          const bool near = std::isnan(want) ? std::isnan(got) : std::isinf(want) || is_exact ? got == want || (std::fabs(want) < 2e-38 && std::fabs(got) < 2e-38)
                                                               : std::fabs(got - want) <= 1e-6 * size + 2e-38;
          if (!near) std::printf("step %d of %g, %g, %g: %g, not %g\n", int(steps[s].kind), x, y, z, got, want), ok = false;
        }
      }
    }
  }
  if (!ok) std::printf("program of %ld elements and %ld steps: wrong\n", long(elements), long(steps.size()));
  return ok;
}

int Test(int cases, int side) {
  std::mt19937 random(19);
  std::vector<std::pair<Named, const Implementation*>> kernels;
  for (const Named& named : kAll) {
    if (const Implementation* kernel = Find(named.kernel)) kernels.push_back({named, kernel});
  }
  // What the emulated tiles stand between needs this.
  if (Find(Kernel::kAvx512Bf16) != nullptr) {
    kernels.push_back({{Kernel::kAmxBf16, "amx-bf16 emulated", true}, &kAmxBf16Emulated});
    kernels.push_back({{Kernel::kAmxF32, "amx-f32 emulated", false, true}, &kAmxF32Emulated});
  }
  int failed = !TestPlans();
  for (int number = 0; number < cases; ++number) {
    for (const auto& [named, kernel] : kernels) {
      const bool is_emulated = kernel == &kAmxBf16Emulated || kernel == &kAmxF32Emulated;
      if (!TestOne(named, *kernel, random, number, is_emulated ? std::min(side, 150) : side)) ++failed;
      if (kernel->attention.plan != nullptr && !TestAttention(named, *kernel, random, number)) ++failed;
    }
    if (!TestPass(random) || !TestKnownPasses(random, KnownPasses()) || !TestCrossEntropy(random) || !TestNorm(random) || !TestProgram(random)) ++failed;
  }
  for (const auto& [named, kernel] : kernels) std::printf("%s\n", named.name);
  std::printf("%d cases, %d failed\n", cases, failed);
  return failed != 0;
}

double ProcessorTime() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

int Bench(int threads) {
  struct Shape {
    int64_t m, n, k;
    bool at, bt;
  };
  constexpr Shape kShapes[] = {{512, 3072, 768},          {512, 768, 3072},         {512, 50257, 768, false, true},
                               {2048, 1536, 384},         {2048, 2048, 2048},       {768, 3072, 512, true},
                               {50257, 768, 512, true},   {384, 1536, 2048, true},  {512, 768, 3072, false, true},
                               {2048, 384, 1536, false, true}};
  for (const Named& named : kAll) {
    const Implementation* kernel = Find(named.kernel);
    for (const Shape& s : kShapes) {
      if (kernel == nullptr) continue;
      std::vector<float> a(s.m * s.k, 0.5f), b(s.k * s.n, 0.25f), c(s.m * s.n);
      Matmul x = {a.data(), b.data(), c.data(), named.is_bf16, named.is_bf16, named.is_bf16, {1, 1}, s.m, s.n, s.k,
                  {0, 0, s.at ? 1 : s.k, s.at ? s.m : 1}, {0, 0, s.bt ? 1 : s.n, s.bt ? s.k : 1}, {0, 0, s.n, 1}};
      const double flops = 2.0 * s.m * s.n * s.k;
      std::vector<double> times;
      for (int i = 0; i < std::max(5, static_cast<int>(3e10 / flops)); ++i) {
        const double begin = ProcessorTime();
        Run(*kernel, x, threads);
        times.push_back(ProcessorTime() - begin);
      }
      std::sort(times.begin(), times.end());
      std::printf("%-10s %6ld %6ld %6ld%s%s  best %5.0f median %5.0f GFLOP/s\n", named.name, long(s.m), long(s.n), long(s.k),
                  s.at ? " At" : "", s.bt ? " Bt" : "", flops * threads / times[0] / 1e9,
                  flops * threads / times[times.size() / 2] / 1e9);
    }
  }
  for (const Named& named : kAll) {
    const Implementation* kernel = Find(named.kernel);
    // B, H, K, T, D.
    constexpr int64_t kHeads[][5] = {{8, 6, 6, 256, 64}, {4, 12, 12, 128, 64}, {2, 12, 12, 512, 64}, {2, 12, 12, 1024, 64}, {1, 8, 2, 4096, 64}};
    for (const int64_t(&shape)[5] : kHeads) {
      const int64_t b = shape[0], h = shape[1], kv = shape[2], t = shape[3], d = shape[4];
      if (kernel == nullptr || kernel->attention.plan == nullptr) continue;
      const int64_t size = b * h * t * d;
      std::vector<std::vector<float>> arrays(8, std::vector<float>(size, 0.01f));
      const auto heads = [&](int i, int64_t n) { return Heads{arrays[i].data(), {t * n * d, d, n * d}}; };
      std::vector<float> statistics(2 * b * h * t);
      Attention x = {named.is_bf16, b, h, kv, t, t, d, heads(0, h), heads(1, kv), heads(2, kv), 0.125f, 0, true, 0, nullptr, nullptr, {},
                     heads(3, h), statistics.data(), heads(4, h), heads(5, h), heads(6, kv), heads(7, kv)};
      // As one example, and as examples of 100.
      std::vector<int32_t> starts(b * t);
      for (int64_t i = 0; i < b * t; ++i) starts[i] = static_cast<int32_t>(i % t / 100 * 100);
      for (const auto& [is_backward, is_packed] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
        x.first = is_packed ? starts.data() : nullptr;
        std::vector<double> times;
        for (int i = 0; i < 20; ++i) {
          const double begin = ProcessorTime();
          RunAttention(kernel->attention, x, is_backward, threads);
          times.push_back(ProcessorTime() - begin);
        }
        std::sort(times.begin(), times.end());
        const double flops = (is_backward ? 10.0 : 4.0) * b * h * t * t * d / 2;
        std::printf("%-10s attention %s%s B %ld H %ld K %ld T %ld D %ld: %.2f ms a thread, %.0f GFLOP/s\n", named.name,
                    is_backward ? "backward" : "forward ", is_packed ? ", packed" : "", long(b), long(h), long(kv), long(t), long(d), times[times.size() / 2] * 1e3 / threads,
                    flops * threads / times[times.size() / 2] / 1e9);
      }
    }
  }
  const int64_t rows = 1024, classes = 50257;
  std::vector<float> x(rows * classes, 0.5f), sums(rows), losses(rows, 1.0f);
  std::vector<int32_t> labels(rows, 7);
  std::vector<uint16_t> result(rows * classes);
  const Logits logits = {x.data(), rows, classes};
  const LogitGradients of = {logits, sums.data(), labels.data(), losses.data(), result.data(), true};
  for (int i = 0; i < 3; ++i) {
    std::atomic<int64_t> next{0}, after{0};
    const double begin = ProcessorTime();
    FindLoops().log_sums(logits, sums.data(), next);
    const double middle = ProcessorTime();
    FindLoops().logit_gradients(of, after);
    std::printf("cross-entropy of %ld x %ld on one thread: sums %.1f GB/s, gradients %.1f GB/s\n", long(rows), long(classes),
                4e-9 * rows * classes / (middle - begin), 6e-9 * rows * classes / (ProcessorTime() - middle));
  }
  for (const auto& [count, width] : {std::pair<int64_t, int64_t>{2048, 384}, {512, 768}, {2048, 4096}}) {
    std::vector<float> of_rows(count * width, 0.5f), dy(count * width, 0.25f), dx(count * width), scale(width, 1.0f);
    std::vector<uint16_t> y(count * width);
    const Norm norm = {of_rows.data(), count, width, true, 1e-5f, scale.data()};
    std::vector<float> sums_of_chunks(norm.Chunks() * 2 * width);
    const NormForward forward = {norm, scale.data(), y.data(), true};
    const NormBackward backward = {norm, dy.data(), dx.data(), sums_of_chunks.data()};
    double least[2] = {1, 1};
    for (int i = 0; i < 10; ++i) {
      std::atomic<int64_t> next{0}, after{0};
      const double begin = ProcessorTime();
      FindLoops().norm_forward(forward, next);
      const double middle = ProcessorTime();
      FindLoops().norm_backward(backward, after);
      least[0] = std::min(least[0], middle - begin), least[1] = std::min(least[1], ProcessorTime() - middle);
    }
    std::printf("norm of %ld x %ld on one thread: forward %.1f GB/s, backward %.1f GB/s\n", long(count), long(width), 6e-9 * count * width / least[0],
                12e-9 * count * width / least[1]);
  }
  return 0;
}

int MeasureAll() {
  const auto begin = std::chrono::steady_clock::now();
  Speed speeds[kKernels];
  MeasureKernels(speeds);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  for (const Named& named : kAll) {
    const Speed& speed = speeds[static_cast<int64_t>(named.kernel)];
    std::printf("%-20s %6.0f GFLOP/s of %6.0f\n", named.name, speed.gflops, speed.peak);
    const bool is_here = Find(named.kernel) != nullptr;
    if (is_here != (speed.gflops > 0) || is_here != (speed.peak > 0)) return 1;
  }
  std::printf("%.3f s\n", seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "test" && argc == 4) return Test(std::atoi(argv[2]), std::atoi(argv[3]));
  if (what == "bench" && argc == 3) return Bench(std::atoi(argv[2]));
  if (what == "measure" && argc == 2) return MeasureAll();
  std::fprintf(stderr, "harness test CASES SIDE | harness measure | harness bench THREADS\n");
  return 2;
}
