#include "wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace xtrain::kernels {
namespace {

// Looks before a thread goes to sleep: about as long as it takes to wake one.
constexpr int kSpins = 2000;

void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

void Countdown::Done(int64_t all) {
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 < all) return;
  is_over_.store(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) syscall(SYS_futex, &is_over_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

void Countdown::Wait() {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (is_over_.load(std::memory_order_acquire) != 0) return;
    Pause();
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  // The kernel looks at the word again before the thread sleeps: whoever set it in between wakes nobody, and nobody sleeps.
  while (is_over_.load(std::memory_order_seq_cst) == 0) syscall(SYS_futex, &is_over_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace xtrain::kernels
