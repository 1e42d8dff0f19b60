// The kernels as XLA calls them: typed FFI custom calls, on the threads of XLA's own pool.
//
// The caller works too, and waits only for helpers that have begun: a pool whose threads are all in such calls (several
// devices, several calls at once) can then not wait for itself.

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "matmul.h"
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

bool IsBf16(const ffi::AnyBuffer& buffer) { return buffer.element_type() == ffi::DataType::BF16; }

bool IsFloat(const ffi::AnyBuffer& buffer) { return IsBf16(buffer) || buffer.element_type() == ffi::DataType::F32; }

// Whether all elements that these strides reach are in the buffer.
bool Holds(const ffi::AnyBuffer& buffer, const std::array<int64_t, 4>& sizes, const int64_t* strides) {
  int64_t last = 0;
  for (int d = 0; d < 4; ++d) {
    if (sizes[d] < 1 || strides[d] < 0) return false;
    last += (sizes[d] - 1) * strides[d];
  }
  return last < static_cast<int64_t>(buffer.element_count());
}

ffi::Error CallMatmul(ffi::ThreadPool pool, ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c, int64_t kernel,
                      ffi::Span<const int64_t> sizes, ffi::Span<const int64_t> a_strides, ffi::Span<const int64_t> b_strides,
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
  if (static_cast<Kernel>(kernel) == Kernel::kAvx512F32 && (x.a_bf16 || x.b_bf16 || x.c_bf16)) return invalid("the kernel is for f32");
  const bool contiguous = (x.a_strides[2] == 1 || x.a_strides[3] == 1) && (x.b_strides[2] == 1 || x.b_strides[3] == 1) &&
                          x.c_strides[3] == 1;
  if (!contiguous || !Holds(a, {x.batch[0], x.batch[1], x.m, x.k}, x.a_strides) ||
      !Holds(b, {x.batch[0], x.batch[1], x.k, x.n}, x.b_strides) || !Holds(*c, {x.batch[0], x.batch[1], x.m, x.n}, x.c_strides)) {
    return invalid("the strides do not fit the operands");
  }

  const int64_t threads = std::max<int64_t>(pool.num_threads(), 1);
  const Plan plan = implementation->plan(x, static_cast<int>(threads));
  auto crew = std::make_shared<Crew>();
  auto work = [implementation, x, plan](Crew& crew) {
    try {
      implementation->work(x, plan, crew.next);
    } catch (const std::bad_alloc&) {
      crew.out_of_memory = true;
    }
  };
  const int64_t helpers = std::min(threads, plan.parts) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    pool.Schedule([crew, work] {
      if (!crew->Enter()) return;
      work(*crew);
      crew->Leave();
    });
  }
  work(*crew);
  crew->Close();
  if (crew->out_of_memory) return ffi::Error(ffi::ErrorCode::kResourceExhausted, "xtrain.matmul: out of memory for packing");
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(kCallMatmul, CallMatmul,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()
                           .Arg<ffi::AnyBuffer>()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int64_t>("kernel")
                           .Attr<ffi::Span<const int64_t>>("sizes")
                           .Attr<ffi::Span<const int64_t>>("a_strides")
                           .Attr<ffi::Span<const int64_t>>("b_strides")
                           .Attr<ffi::Span<const int64_t>>("c_strides"));

}  // namespace
}  // namespace xtrain::kernels

// Makes the calls known to XLA, once; graphs name them by this name and version (`emit/kernels.rs`).
extern "C" void xtrain_cpp_register_kernels() {
  static const bool registered = [] {
    XLA_FFI_Error* error = xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), "xtrain.matmul.1", "Host",
                                                                 xtrain::kernels::kCallMatmul);
    return error == nullptr;
  }();
  (void)registered;
}

// Whether this processor and its operating system execute a kernel, by its number.
extern "C" int xtrain_cpp_has_kernel(int64_t kernel) {
  return xtrain::kernels::Find(static_cast<xtrain::kernels::Kernel>(kernel)) != nullptr;
}
