// Waiting for threads that are at work: a short while by looking again and again, then asleep, so that a thread which waits for one that
// the system holds up does not take its processor.

#ifndef XTRAIN_CPP_KERNELS_WAIT_H_
#define XTRAIN_CPP_KERNELS_WAIT_H_

#include <atomic>
#include <cstdint>

namespace xtrain::kernels {

// Counts pieces of work until all are done (wait.cc).
class Countdown {
 public:
  // One more is done, of `all`.
  void Done(int64_t all);
  // Until all are done.
  void Wait();

 private:
  std::atomic<int64_t> done_{0};
  std::atomic<uint32_t> is_over_{0};  // the word that sleepers wait for
  std::atomic<int> sleepers_{0};
};

}  // namespace xtrain::kernels

#endif  // XTRAIN_CPP_KERNELS_WAIT_H_
