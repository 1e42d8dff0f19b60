// The kernels as XLA calls them: typed FFI custom calls, on the threads of XLA's own pool.
//
// The caller works too, and waits only for helpers that have begun: a pool whose threads are all in such calls (several
// devices, several calls at once) can then not wait for itself.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "loops.h"
#include "matmul.h"
#include "pack.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// Exported by the library. Its header needs MLIR's, which nobody ships.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace xtrain::kernels {
namespace {

namespace ffi = xla::ffi;

// What the threads of one call share. Helpers may come when the call is long over: then they find it closed.
class Crew {
 public:
  // For a helper: false if there is nothing to do any more.
  bool Enter() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return false;
    ++inside_;
    return true;
  }

  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--inside_ == 0) left_.notify_all();
  }

  // Until those who entered have left; nobody enters from now on.
  void Close() {
    std::unique_lock<std::mutex> lock(mutex_);
    closed_ = true;
    left_.wait(lock, [&] { return inside_ == 0; });
  }

  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int64_t inside_ = 0;
  bool closed_ = false;
};

// Memory for as long as a call takes, from those that earlier calls gave back: as many as ran at once, with the size of the
// largest.
class Loan {
 public:
  explicit Loan(int64_t words) {
    if (words == 0) return;
    {
      std::lock_guard<std::mutex> lock(Mutex());
      if (!Free().empty()) scratch_ = std::move(Free().back()), Free().pop_back();
    }
    if (scratch_ == nullptr) scratch_ = std::make_unique<Scratch>();
    words_ = scratch_->Words(words);
  }

  ~Loan() {
    if (scratch_ == nullptr) return;
    std::lock_guard<std::mutex> lock(Mutex());
    Free().push_back(std::move(scratch_));
  }

  uint32_t* words() const { return words_; }

 private:
  // Never destroyed: threads of the pool may outlive what the library destroys at exit.
  static std::mutex& Mutex() {
    static auto& mutex = *new std::mutex;
    return mutex;
  }
  static std::vector<std::unique_ptr<Scratch>>& Free() {
    static auto& free = *new std::vector<std::unique_ptr<Scratch>>;
    return free;
  }

  std::unique_ptr<Scratch> scratch_;
  uint32_t* words_ = nullptr;
};

// `work`, which claims parts, on as many of the pool's threads as there are parts for.
template <class Work>
ffi::Error OnAllThreads(ffi::ThreadPool& pool, int64_t parts, const char* name, Work work) {
  auto crew = std::make_shared<Crew>();
  const auto guarded = [work](Crew& crew) {
    try {
      work(crew.next);
    } catch (const std::bad_alloc&) {
      crew.out_of_memory = true;
    }
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), parts) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool.Schedule([crew, guarded] {
      if (!crew->Enter()) return;
      guarded(*crew);
      crew->Leave();
    });
  }
  guarded(*crew);
  crew->Close();
  if (crew->out_of_memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::string(name) + ": out of memory");
  return ffi::Error::Success();
}

bool IsBf16(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::DataType::BF16; }

bool IsFloat(const ffi::AnyBuffer& buffer) { return IsBf16(buffer) || buffer.element_type() == ffi::DataType::F32; }

// Whether it is f32, of this many elements.
bool IsF32(const ffi::AnyBuffer& buffer, int64_t count) {
  return buffer.element_type() == ffi::DataType::F32 && static_cast<int64_t>(buffer.element_count()) == count;
}

// An f32 as an attribute has it.
float AsFloat(int64_t attribute) {
  const uint32_t bits = static_cast<uint32_t>(attribute);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

bool IsF32Only(Kernel kernel) { return kernel == Kernel::kAmxF32 || kernel == Kernel::kAvx512F32 || kernel == Kernel::kAvx2F32; }

// Whether all elements that these strides reach are in the buffer.
bool Holds(const ffi::AnyBuffer& buffer, const std::array<int64_t, 4>& sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] < 1 || strides[d] < 0) return false;
    last += (sizes[d] - 1) * strides[d];
  }
  return last < static_cast<int64_t>(buffer.element_count());
}

// What the sums of a matmul begin with, as its attribute `start` has it: 0, its result, or a bias.
enum Start : int64_t { kZero = 0, kResult = 1, kBias = 2 };
// Of which operand the sums along k are the second result, as its attribute `sums` has it.
enum SumsOf : int64_t { kNothing = 0, kRowsOfA = 1, kColumnsOfB = 2 };

ffi::Error CallMatmul(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::RemainingArgs starts, ffi::Result<ffi::AnyBuffer> c,
                      ffi::RemainingRets sums, int64_t kernel, int64_t start, int64_t sums_of, ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> a_strides, ffi::Span<const int64_t> b_strides,
                      ffi::Span<const int64_t> c_strides) {
  const auto invalid = [](const char* what) { return ffi::Error::InvalidArgument(std::string("xtrain.matmul: ") + what); };
  const Implementation* implementation = Find(static_cast<Kernel>(kernel));
  if (implementation == nullptr) return invalid("this processor lacks the kernel that the executable was compiled for");
  if (sizes.size() != 5 || a_strides.size() != 4 || b_strides.size() != 4 || c_strides.size() != 4) {
    return invalid("an attribute has the wrong length");
  }
  Matmul x;
  x.a = a.untyped_data(), x.b = b.untyped_data(), x.c = c->untyped_data();
  x.a_bf16 = IsBf16(a), x.b_bf16 = IsBf16(b), x.c_bf16 = IsBf16(*c);
  x.batch[0] = sizes[0], x.batch[1] = sizes[1], x.m = sizes[2], x.n = sizes[3], x.k = sizes[4];
  for (int d = 0; d < 4; ++d) x.a_strides[d] = a_strides[d], x.b_strides[d] = b_strides[d], x.c_strides[d] = c_strides[d];
  if (!IsFloat(a) || !IsFloat(b) || !IsFloat(*c)) return invalid("an operand is neither f32 nor bf16");
  if (IsF32Only(static_cast<Kernel>(kernel)) && (x.a_bf16 || x.b_bf16 || x.c_bf16)) return invalid("the kernel is for f32");
  const bool contiguous = (x.a_strides[2] == 1 || x.a_strides[3] == 1) && (x.b_strides[2] == 1 || x.b_strides[3] == 1) &&
                          x.c_strides[3] == 1;
  if (!contiguous || !Holds(a, {x.batch[0], x.batch[1], x.m, x.k}, x.a_strides) ||
      !Holds(b, {x.batch[0], x.batch[1], x.k, x.n}, x.b_strides) || !Holds(*c, {x.batch[0], x.batch[1], x.m, x.n}, x.c_strides)) {
    return invalid("the strides do not fit the operands");
  }
  if (starts.size() != (start == kZero ? 0 : 1)) return invalid("what the sums begin with is missing");
  x.continues = start == kResult;
  if (start != kZero) {
    const auto before = starts.get<ffi::AnyBuffer>(0);
    if (before.has_error() || before->element_type() != ffi::DataType::F32) return invalid("the sums begin with what is not f32");
    if (x.continues && (x.c_bf16 || before->untyped_data() != x.c)) return invalid("the sums are not the result's");
    if (!x.continues && (start != kBias || !IsF32(*before, x.n))) return invalid("the bias does not fit");
    if (!x.continues) x.bias = static_cast<const float*>(before->untyped_data());
  }
  if (sums.size() != (sums_of == kNothing ? 0 : 1)) return invalid("the sums along k are missing");
  if (sums_of != kNothing) {
    x.sums_of_b = sums_of == kColumnsOfB;
    auto sum = sums.get<ffi::AnyBuffer>(0);
    const bool fits = !sum.has_error() && IsF32(**sum, x.sums_of_b ? x.n : x.m) && x.batch[0] * x.batch[1] == 1;
    if (!fits || (x.sums_of_b ? x.b_strides[3] : x.a_strides[2]) != 1) return invalid("the sums along k do not fit");
    x.sums = static_cast<float*>((**sum).untyped_data());
  }

  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const Plan plan = MakePlan(implementation->shape, x, Machine::This(static_cast<int>(threads)));
  std::optional<Loan> loan;
  auto packed = std::make_shared<Packed>();
  try {
    packed->words = loan.emplace(plan.a_words + plan.b_words + plan.sum_words).words();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "xtrain.matmul: out of memory");
  }
  return OnAllThreads(pool, plan.Claims(), "xtrain.matmul", [implementation, x, plan, packed](std::atomic<int64_t>& next) {
    implementation->work(x, plan, *packed, next);
  });
}

// Whether all rows of `width` that a head's layout reaches are in the buffer; then where they begin.
bool Place(const ffi::AnyBuffer& buffer, const int64_t* layout, int64_t batch, int64_t heads, int64_t rows, int64_t width, Heads* to) {
  const int64_t sizes[] = {batch, heads, rows};
  int64_t last = layout[0] + width - 1;
  for (int i = 0; i < 3; ++i) {
    to->strides[i] = layout[i + 1];
    if (sizes[i] < 1 || layout[i + 1] < 0) return false;
    last += (sizes[i] - 1) * layout[i + 1];
  }
  to->data = static_cast<char*>(buffer.untyped_data()) + layout[0] * (IsBf16(buffer) ? 2 : 4);
  return layout[0] >= 0 && width > 0 && last < static_cast<int64_t>(buffer.element_count());
}

ffi::Error CallAttention(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, int64_t kernel,
                         ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> layouts, ffi::Span<const int64_t> masks,
                         ffi::Span<const int64_t> dropout, ffi::Span<const int64_t> numbers) {
  const auto invalid = [](const char* what) { return ffi::Error::InvalidArgument(std::string("xtrain.attention: ") + what); };
  const Implementation* implementation = Find(static_cast<Kernel>(kernel));
  if (implementation == nullptr) return invalid("this processor lacks the kernel that the executable was compiled for");
  const bool is_backward = layouts.size() == 20;
  if (sizes.size() != 6 || (layouts.size() != 12 && !is_backward) || masks.size() != 3 || dropout.size() != 3 || numbers.size() != 3) {
    return invalid("an attribute has the wrong length");
  }
  Attention x = {};
  x.batch = sizes[0], x.heads = sizes[1], x.kv_heads = sizes[2], x.queries = sizes[3], x.keys = sizes[4], x.width = sizes[5];
  x.is_causal = masks[0] != 0, x.window = masks[1];
  x.scale = AsFloat(numbers[0]), x.soft_cap = AsFloat(numbers[1]);
  x.dropout.is_on = dropout[0] != 0, x.dropout.scale = AsFloat(numbers[2]);
  x.dropout.threshold = static_cast<uint32_t>(dropout[1]), x.dropout.stream = static_cast<uint32_t>(dropout[2]);
  const size_t arrays = layouts.size() / 4, count = arrays + is_backward + (masks[2] != 0) + x.dropout.is_on;
  const bool joins_gradients = is_backward && results.size() == 1;
  if (operands.size() != count || !(joins_gradients || results.size() == (is_backward ? 3 : 2))) return invalid("operands or results are missing");
  if (x.kv_heads < 1 || x.heads % x.kv_heads != 0 || x.window < 0) return invalid("the sizes do not fit");
  Heads* const read[] = {&x.q, &x.k, &x.v, &x.dy, &x.out};
  for (size_t i = 0; i < arrays; ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    if (operand.has_error() || !IsFloat(*operand)) return invalid("an operand is neither f32 nor bf16");
    if (i == 0) x.is_bf16 = IsBf16(*operand);
    const bool of_q = i == 0 || i >= 3;
    if (IsBf16(*operand) != x.is_bf16 || !Place(*operand, layouts.begin() + 4 * i, x.batch, of_q ? x.heads : x.kv_heads,
                                                of_q ? x.queries : x.keys, x.width, read[i])) {
      return invalid("the strides do not fit the operands");
    }
  }
  if (x.is_bf16 == IsF32Only(static_cast<Kernel>(kernel))) return invalid("the kernel is for another type");
  if (implementation->attention.plan == nullptr) return invalid("the kernel has no attention");
  const auto takes_statistics = [&x](const ffi::AnyBuffer& buffer) {
    x.statistics = static_cast<float*>(buffer.untyped_data());
    return buffer.element_type() == ffi::DataType::F32 && static_cast<int64_t>(buffer.element_count()) == 2 * x.batch * x.heads * x.queries;
  };
  if (is_backward) {
    const auto statistics = operands.get<ffi::AnyBuffer>(arrays);
    if (statistics.has_error() || !takes_statistics(*statistics)) return invalid("the statistics do not fit");
  } else {
    auto statistics = results.get<ffi::AnyBuffer>(1);
    if (statistics.has_error() || !takes_statistics(**statistics)) return invalid("the statistics do not fit");
  }
  if (masks[2] == 2) {
    const auto first = operands.get<ffi::AnyBuffer>(arrays + is_backward);
    if (first.has_error() || first->element_type() != ffi::DataType::S32 || static_cast<int64_t>(first->element_count()) != x.batch * x.queries ||
        !x.is_causal || x.queries != x.keys) {
      return invalid("the first keys do not fit");
    }
    x.first = static_cast<const int32_t*>(first->untyped_data());
  } else if (masks[2] != 0) {
    const auto mask = operands.get<ffi::AnyBuffer>(arrays + is_backward);
    if (mask.has_error() || mask->element_type() != ffi::DataType::PRED || static_cast<int64_t>(mask->element_count()) != x.batch * x.keys) {
      return invalid("the key mask does not fit");
    }
    x.key_mask = static_cast<const uint8_t*>(mask->untyped_data());
  }
  if (x.dropout.is_on) {
    const auto key = operands.get<ffi::AnyBuffer>(count - 1);
    if (key.has_error() || key->element_type() != ffi::DataType::U32 || key->element_count() < 2 || key->element_count() > 3) {
      return invalid("the dropout's key does not fit");
    }
    std::memcpy(x.dropout.key, key->untyped_data(), key->element_count() * 4);
  }
  Heads* const written[] = {is_backward ? &x.dq : &x.out, &x.dk, &x.dv};
  for (size_t i = 0; i < (is_backward ? 3 : 1); ++i) {
    auto result = results.get<ffi::AnyBuffer>(joins_gradients ? 0 : i);
    if (result.has_error()) return invalid("a result is no array");
    const ffi::AnyBuffer& buffer = **result;
    const int64_t heads = i == 0 ? x.heads : x.kv_heads, rows = i == 0 ? x.queries : x.keys;
    const int64_t own[] = {0, rows * heads * x.width, x.width, heads * x.width};
    const int64_t* layout = joins_gradients ? layouts.begin() + 4 * i : own;
    if (!IsFloat(buffer) || IsBf16(buffer) != x.is_bf16 || !Place(buffer, layout, x.batch, heads, rows, x.width, written[i])) {
      return invalid("a result does not fit");
    }
  }

  const AttentionImplementation& attention = implementation->attention;
  const AttentionPlan plan = attention.plan(x);
  if (!is_backward) {
    return OnAllThreads(pool, plan.parts, "xtrain.attention", [&attention, x, plan](std::atomic<int64_t>& next) { attention.forward(x, plan, next); });
  }
  auto sums = std::make_shared<AttentionSums>();
  try {
    sums->sums.resize(plan.chunks > 1 ? plan.parts * plan.sums : 0);
    sums->done = std::vector<std::atomic<int64_t>>(plan.parts / plan.chunks);
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "xtrain.attention: out of memory");
  }
  return OnAllThreads(pool, plan.parts, "xtrain.attention", [&attention, x, plan, sums](std::atomic<int64_t>& next) {
    attention.backward(x, plan, *sums, next);
  });
}

// What an operand of a pass is, or a result: an array, one number (of a result a sum), or one for each block; from `kPart` on a part of one
// of the arrays behind the other results. As attributes have it.
enum PassKind : int64_t { kArray = 0, kOne = 1, kBlocks = 2, kPart = 3 };

// What the memory of a buffer holds, if it fits a pass of these sizes; `place` is where its first element is, and its strides.
std::optional<Form> FormOf(const ffi::AnyBuffer& x, int64_t kind, ffi::Span<const int64_t> sizes, int64_t elements, const int64_t* place) {
  const int64_t count = x.element_count();
  const bool is_f32 = x.element_type() == ffi::DataType::F32;
  if (kind == kOne) return is_f32 && x.dimensions().size() == 0 ? std::optional(Form::kOne) : std::nullopt;
  if (kind == kBlocks) return is_f32 && count == (elements + kBlock - 1) / kBlock ? std::optional(Form::kBlocks) : std::nullopt;
  int64_t last = place[0];
  bool fits = place[0] >= 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t stride = d + 1 < sizes.size() ? place[d + 1] : 1;
    last += (sizes[d] - 1) * stride, fits = fits && stride >= 0;
  }
  if (!fits || (elements > 0 && last >= count)) return std::nullopt;
  if (x.element_type() == ffi::DataType::U8) return Form::kCodes;
  return !IsFloat(x) ? std::nullopt : std::optional(IsBf16(x) ? Form::kBf16 : Form::kF32);
}

// The strides of an array that does not lie in order.
std::vector<int64_t> StridesOf(ffi::Span<const int64_t> sizes, Form form, const int64_t* strides) {
  int64_t in_order = 1;
  for (size_t d = sizes.size(); d-- > 1;) {
    in_order *= sizes[d];
    if (form <= Form::kBf16 && sizes[d - 1] > 1 && strides[d - 1] != in_order) return {strides, strides + sizes.size() - 1};
  }
  return {};
}

void* At(void* data, Form form, int64_t offset) { return static_cast<char*>(data) + offset * (form == Form::kF32 ? 4 : form == Form::kBf16 ? 2 : 1); }

// `of_operands`: for each its kind, where its first element is, and a stride for each of the sizes but the last. `of_results`: for each its
// value, and the same.
ffi::Error CallOnePass(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Span<const int64_t> sizes,
                       ffi::Span<const int64_t> steps, ffi::Span<const int64_t> of_operands, ffi::Span<const int64_t> of_results) {
  const auto invalid = [](const char* what) { return ffi::Error::InvalidArgument(std::string("xtrain.one_pass: ") + what); };
  const size_t each = sizes.size() + 1, count = of_results.size() / (each + 1);
  if (sizes.size() == 0 || sizes.size() > kMostSizes || steps.size() % 4 != 0 || of_operands.size() != each * operands.size() ||
      of_results.size() % (each + 1) != 0) {
    return invalid("an attribute has the wrong length");
  }
  auto pass = std::make_shared<OnePass>();
  pass->elements = 1;
  for (const int64_t size : sizes) {
    if (size < 0) return invalid("a size is negative");
    pass->elements *= size, pass->sizes.push_back(size);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<ffi::AnyBuffer>(i);
    const int64_t* of = of_operands.begin() + i * each;
    const std::optional<Form> form = operand.has_error() ? std::nullopt : FormOf(*operand, of[0], sizes, pass->elements, of + 1);
    if (!form) return invalid("an operand does not fit");
    const bool is_array = of[0] == kArray;
    pass->operands.push_back({is_array ? At(operand->untyped_data(), *form, of[1]) : operand->untyped_data(), *form,
                              is_array ? StridesOf(sizes, *form, of + 2) : std::vector<int64_t>()});
  }
  for (size_t i = 0; i < steps.size(); i += 4) {
    const Step step = {static_cast<StepKind>(steps[i]), steps[i + 1], steps[i + 2], steps[i + 3]};
    if (steps[i] < 0 || steps[i] >= kStepKinds) return invalid("an unknown step");
    const int64_t reads[] = {step.a, step.b, step.c};
    for (int r = 0; r < Reads(step.kind); ++r) {
      const int64_t known = pass->operands.size() + pass->steps.size();
      if (reads[r] < 0 || reads[r] >= known) return invalid("a step reads what is not there");
    }
    pass->steps.push_back(step);
  }
  // Parts are of the arrays behind all others.
  size_t parts = 0;
  for (size_t i = 0; i < count; ++i) parts += of_results[i * (each + 1) + 1] >= kPart;
  for (size_t i = 0, whole = 0; i < count; ++i) {
    const int64_t *of = of_results.begin() + i * (each + 1), known = pass->operands.size() + pass->steps.size();
    const size_t index = of[1] >= kPart ? count - parts + (of[1] - kPart) : whole++;
    if (index >= results.size()) return invalid("a result is missing");
    auto result = results.get<ffi::AnyBuffer>(index);
    const int64_t kind = std::min<int64_t>(of[1], kPart);
    const std::optional<Form> form = result.has_error() ? std::nullopt : FormOf(**result, kind == kPart ? kArray : kind, sizes, pass->elements, of + 2);
    if (of[0] < 0 || of[0] >= known || !form) return invalid("a result does not fit");
    void* data = (**result).untyped_data();
    const bool is_array = kind == kArray || kind == kPart;
    pass->results.push_back({of[0], is_array ? At(data, *form, of[2]) : data, *form, is_array ? StridesOf(sizes, *form, of + 3) : std::vector<int64_t>()});
  }
  const int64_t chunks = PassChunks(*pass);
  auto sums = std::make_shared<std::vector<double>>(chunks * pass->results.size());
  const PassWork work = FindLoops().one_pass;
  ffi::Error error = OnAllThreads(pool, chunks, "xtrain.one_pass", [pass, sums, work](std::atomic<int64_t>& next) {
    work(*pass, next, sums->data());
  });
  for (size_t i = 0; i < pass->results.size(); ++i) {
    if (pass->results[i].form != Form::kOne) continue;
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += (*sums)[i * chunks + chunk];
    *static_cast<float*>(pass->results[i].data) = static_cast<float>(sum);
  }
  return error;
}

// The logits that an array holds, if it is f32[rows, classes] and the others have an element for each row.
std::optional<Logits> AsLogits(const ffi::AnyBuffer& x, std::initializer_list<ffi::AnyBuffer> of_rows) {
  if (x.element_type() != ffi::DataType::F32 || x.dimensions().size() != 2) return std::nullopt;
  const Logits logits = {static_cast<const float*>(x.untyped_data()), x.dimensions()[0], x.dimensions()[1]};
  for (const ffi::AnyBuffer& of_row : of_rows) {
    if (static_cast<int64_t>(of_row.element_count()) != logits.rows) return std::nullopt;
  }
  return logits;
}

ffi::Error CallLogSums(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> result) {
  const std::optional<Logits> logits = AsLogits(x, {*result});
  if (!logits || result->element_type() != ffi::DataType::F32) {
    return ffi::Error::InvalidArgument("xtrain.log_sum_exp: the arrays do not fit");
  }
  float* log_sums = static_cast<float*>(result->untyped_data());
  return OnAllThreads(pool, logits->Chunks(), "xtrain.log_sum_exp", [logits = *logits, log_sums](std::atomic<int64_t>& next) {
    FindLoops().log_sums(logits, log_sums, next);
  });
}

ffi::Error CallLogitGradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer log_sums, ffi::AnyBuffer labels,
                              ffi::AnyBuffer loss_gradients, ffi::Result<ffi::AnyBuffer> result) {
  const std::optional<Logits> logits = AsLogits(x, {log_sums, labels, loss_gradients});
  if (!logits || log_sums.element_type() != ffi::DataType::F32 || labels.element_type() != ffi::DataType::S32 ||
      loss_gradients.element_type() != ffi::DataType::F32 || !IsFloat(*result) || result->element_count() != x.element_count()) {
    return ffi::Error::InvalidArgument("xtrain.cross_entropy_grad: the arrays do not fit");
  }
  const LogitGradients of = {*logits,
                             static_cast<const float*>(log_sums.untyped_data()),
                             static_cast<const int32_t*>(labels.untyped_data()),
                             static_cast<const float*>(loss_gradients.untyped_data()),
                             result->untyped_data(),
                             IsBf16(*result)};
  return OnAllThreads(pool, logits->Chunks(), "xtrain.cross_entropy_grad", [of](std::atomic<int64_t>& next) {
    FindLoops().logit_gradients(of, next);
  });
}

// `sizes`: m, n, k. `by_columns`: w is [n, k] instead of [k, n].
ffi::Error CallGemv(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer w, ffi::Result<ffi::AnyBuffer> y, ffi::Span<const int64_t> sizes,
                    int64_t by_columns, int64_t rounds) {
  const auto invalid = [] { return ffi::Error::InvalidArgument("xtrain.gemv: the arrays do not fit"); };
  if (sizes.size() != 3 || !IsFloat(x) || !IsFloat(w) || !IsFloat(*y) || (rounds != 0 && IsBf16(w))) return invalid();
  Gemv of = {sizes[0], sizes[1], sizes[2], x.untyped_data(), w.untyped_data(), y->untyped_data(), by_columns != 0, rounds != 0,
             IsBf16(x), IsBf16(w), IsBf16(*y)};
  const auto has = [](const ffi::AnyBuffer& buffer, int64_t rows, int64_t columns) {
    return static_cast<int64_t>(buffer.element_count()) == rows * columns;
  };
  if (of.m < 1 || of.m > Gemv::kMostRows || of.n < 1 || of.k < 1 || !has(x, of.m, of.k) || !has(w, of.k, of.n) || !has(*y, of.m, of.n)) {
    return invalid();
  }
  of.columns = of.Columns(std::max<int64_t>(pool.num_threads(), 1));
  return OnAllThreads(pool, of.Chunks(), "xtrain.gemv", [of](std::atomic<int64_t>& next) { FindLoops().gemv(of, next); });
}

// What is normalized, if both arrays are f32, x of rows and the scale of a row's width.
std::optional<Norm> AsNorm(const ffi::AnyBuffer& x, const ffi::AnyBuffer& scale, int64_t subtracts_mean, int64_t eps) {
  const int64_t width = scale.element_count();
  if (!IsF32(x, x.element_count()) || !IsF32(scale, width) || x.dimensions().size() == 0 || width == 0 || x.dimensions().back() != width) {
    return std::nullopt;
  }
  Norm norm = {static_cast<const float*>(x.untyped_data()), static_cast<int64_t>(x.element_count()) / width, width, subtracts_mean != 0};
  norm.eps = AsFloat(eps), norm.scale = static_cast<const float*>(scale.untyped_data());
  return norm;
}

// `shifts`: for LayerNorm what is added to each row, then, if it `adds`, the other summand of x, whose sum is the second result.
ffi::Error CallNorm(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::RemainingArgs shifts, ffi::Result<ffi::AnyBuffer> result,
                    ffi::RemainingRets sums, int64_t subtracts_mean, int64_t eps, int64_t adds) {
  const auto invalid = [] { return ffi::Error::InvalidArgument("xtrain.norm: the arrays do not fit"); };
  const std::optional<Norm> norm = AsNorm(x, scale, subtracts_mean, eps);
  const int64_t elements = x.element_count();
  const size_t of_sum = adds != 0;
  if (!norm || !IsFloat(*result) || static_cast<int64_t>(result->element_count()) != elements || shifts.size() < of_sum ||
      shifts.size() > 1 + of_sum || sums.size() != of_sum) {
    return invalid();
  }
  NormForward of = {*norm, nullptr, result->untyped_data(), IsBf16(*result)};
  if (shifts.size() > of_sum) {
    const auto shift = shifts.get<ffi::AnyBuffer>(0);
    if (shift.has_error() || !IsF32(*shift, norm->width)) return invalid();
    of.shift = static_cast<const float*>(shift->untyped_data());
  }
  if (adds != 0) {
    const auto addend = shifts.get<ffi::AnyBuffer>(shifts.size() - 1);
    auto sum = sums.get<ffi::AnyBuffer>(0);
    if (addend.has_error() || sum.has_error() || !IsFloat(*addend) || static_cast<int64_t>(addend->element_count()) != elements ||
        !IsF32(**sum, elements)) {
      return invalid();
    }
    of.addend = {addend->untyped_data(), IsBf16(*addend), static_cast<float*>((**sum).untyped_data())};
  }
  return OnAllThreads(pool, norm->Chunks(), "xtrain.norm", [of](std::atomic<int64_t>& next) { FindLoops().norm_forward(of, next); });
}

// `addends`: what is added to dx, or nothing. `others`: for LayerNorm the gradient of the shift, then, if it `narrows`, dx in bf16.
ffi::Error CallNormGradients(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer scale, ffi::AnyBuffer dy, ffi::RemainingArgs addends,
                             ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dscale, ffi::RemainingRets others,
                             int64_t subtracts_mean, int64_t eps, int64_t narrows) {
  const auto invalid = [] { return ffi::Error::InvalidArgument("xtrain.norm_grad: the arrays do not fit"); };
  const std::optional<Norm> norm = AsNorm(x, scale, subtracts_mean, eps);
  const int64_t elements = x.element_count();
  const size_t of_narrow = narrows != 0;
  if (!norm || !IsF32(dy, elements) || !IsF32(*dx, elements) || !IsF32(*dscale, norm->width) || addends.size() > 1 ||
      others.size() < of_narrow || others.size() > 1 + of_narrow) {
    return invalid();
  }
  float* written[] = {static_cast<float*>(dscale->untyped_data()), nullptr};
  if (others.size() > of_narrow) {
    auto dshift = others.get<ffi::AnyBuffer>(0);
    if (dshift.has_error() || !IsF32(**dshift, norm->width)) return invalid();
    written[1] = static_cast<float*>((**dshift).untyped_data());
  }
  NormBackward of = {*norm, static_cast<const float*>(dy.untyped_data()), static_cast<float*>(dx->untyped_data())};
  if (addends.size() == 1) {
    const auto addend = addends.get<ffi::AnyBuffer>(0);
    if (addend.has_error() || !IsF32(*addend, elements)) return invalid();
    of.addend = static_cast<const float*>(addend->untyped_data());
  }
  if (narrows != 0) {
    auto narrow = others.get<ffi::AnyBuffer>(others.size() - 1);
    if (narrow.has_error() || !IsBf16(**narrow) || static_cast<int64_t>((**narrow).element_count()) != elements) return invalid();
    of.narrow = static_cast<uint16_t*>((**narrow).untyped_data());
  }
  std::optional<Loan> loan;
  try {
    of.sums = reinterpret_cast<float*>(loan.emplace(norm->Chunks() * 2 * norm->width).words());
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "xtrain.norm_grad: out of memory");
  }
  ffi::Error error = OnAllThreads(pool, norm->Chunks(), "xtrain.norm_grad", [of](std::atomic<int64_t>& next) { FindLoops().norm_backward(of, next); });
  for (int which = 0; which < 2 && written[which] != nullptr; ++which) {
    std::fill_n(written[which], norm->width, 0.0f);
    for (int64_t chunk = 0; chunk < norm->Chunks(); ++chunk) {
      const float* of_chunk = of.sums + (2 * chunk + which) * norm->width;
      for (int64_t i = 0; i < norm->width; ++i) written[which][i] += of_chunk[i];
    }
  }
  return error;
}

XLA_FFI_DEFINE_HANDLER(kCallMatmul, CallMatmul,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attr<int64_t>("kernel")
                           .Attr<int64_t>("start")
                           .Attr<int64_t>("sums")
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .Attr<ffi::Span<const int64_t>>("a_strides")
                           .Attr<ffi::Span<const int64_t>>("b_strides")
                           .Attr<ffi::Span<const int64_t>>("c_strides"));

XLA_FFI_DEFINE_HANDLER(kCallAttention, CallAttention,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<int64_t>("kernel")
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .Attr<ffi::Span<const int64_t>>("layouts")
                           .Attr<ffi::Span<const int64_t>>("masks")
                           .Attr<ffi::Span<const int64_t>>("dropout")
                           .Attr<ffi::Span<const int64_t>>("numbers"));

XLA_FFI_DEFINE_HANDLER(kCallOnePass, CallOnePass,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .RemainingRets()
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .Attr<ffi::Span<const int64_t>>("steps")
                           .Attr<ffi::Span<const int64_t>>("operands")
                           .Attr<ffi::Span<const int64_t>>("results"));

XLA_FFI_DEFINE_HANDLER(kCallLogSums, CallLogSums, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER(kCallLogitGradients, CallLogitGradients,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER(kCallGemv, CallGemv,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .Attr<int64_t>("by_columns")
                           .Attr<int64_t>("rounds"));

XLA_FFI_DEFINE_HANDLER(kCallNorm, CallNorm,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attr<int64_t>("subtracts_mean")
                           .Attr<int64_t>("eps")
                           .Attr<int64_t>("adds"));

XLA_FFI_DEFINE_HANDLER(kCallNormGradients, CallNormGradients,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .RemainingRets()
                           .Attr<int64_t>("subtracts_mean")
                           .Attr<int64_t>("eps")
                           .Attr<int64_t>("narrows"));

}  // namespace
}  // namespace xtrain::kernels

// Makes the calls known to XLA, once; graphs name them so (`xla_graphs/src/op/calls`).
extern "C" void xtrain_cpp_register_kernels() {
  static const bool registered = [] {
    const auto add = [](const char* name, XLA_FFI_Handler* handler) {
      return xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), name, "Host", handler) == nullptr;
    };
    return add("xtrain.matmul", xtrain::kernels::kCallMatmul) & add("xtrain.attention", xtrain::kernels::kCallAttention) &
           add("xtrain.one_pass", xtrain::kernels::kCallOnePass) & add("xtrain.log_sum_exp", xtrain::kernels::kCallLogSums) &
           add("xtrain.cross_entropy_grad", xtrain::kernels::kCallLogitGradients) &
           add("xtrain.gemv", xtrain::kernels::kCallGemv) &
           add("xtrain.norm", xtrain::kernels::kCallNorm) & add("xtrain.norm_grad", xtrain::kernels::kCallNormGradients);
  }();
  (void)registered;
}

// Whether this processor and its operating system execute a kernel, by its number.
extern "C" int xtrain_cpp_has_kernel(int64_t kernel) {
  return xtrain::kernels::Find(static_cast<xtrain::kernels::Kernel>(kernel)) != nullptr;
}

// Of each kernel by its number, of `count` at most: the GFLOP/s that it reaches on one core, and those of its instructions on registers;
// 0 for those that this processor does not execute.
extern "C" void xtrain_cpp_measure_kernels(double* gflops, double* peaks, int64_t count) {
  xtrain::kernels::Speed speeds[xtrain::kernels::kKernels];
  xtrain::kernels::MeasureKernels(speeds);
  for (int64_t i = 0; i < std::min(count, xtrain::kernels::kKernels); ++i) gflops[i] = speeds[i].gflops, peaks[i] = speeds[i].peak;
}
