// The memory behind every buffer and temporary allocation of one client: blocks given back are kept and reused.
//
// Why: a training step asks for the same large blocks each time, and fresh pages cost the kernel up to a fifth of a step.
// What must stay true: the pool never holds more than the program once needed at the same moment (plus a little slack), so
// pooling does not raise peak memory; and never more idle bytes than the caller's limit.
//
// One thing it does for the peak itself. The library reports a step as done just before it lets the step's temporaries go,
// and the next step, which waited for that, may ask for its own in between: then both are held for a moment and the peak
// is what two steps need. So an execution that would raise the peak, while another holds a block of the very size, waits for
// that block a little. Peaks are rare after the first steps, so this costs nothing later.

#ifndef XTRAIN_CPP_POOL_H_
#define XTRAIN_CPP_POOL_H_

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_memory.h"

namespace xtrain {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  struct Stats {
    int64_t in_use = 0;       // bytes that buffers and running executions hold, as requested
    int64_t peak_in_use = 0;
    int64_t idle = 0;         // bytes kept for reuse
    int64_t peak_held = 0;    // in use and idle together, whole blocks
    int64_t allocations = 0;  // blocks asked for since the start
    int64_t fresh = 0;        // of those, how many needed new pages
    int64_t largest = 0;
  };

  // idle_limit: most bytes to keep for reuse; 0 keeps none.
  explicit Pool(int64_t idle_limit) : idle_limit_(idle_limit) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    for (auto& [size, blocks] : idle_) {
      for (const Idle& block : blocks) Unmap(block.base, size);
    }
  }

  // While one lives, what this thread allocates is data that stays, not an execution's memory.
  class Storing {
   public:
    Storing() { ++Depth(); }
    ~Storing() { --Depth(); }
    Storing(const Storing&) = delete;
    Storing& operator=(const Storing&) = delete;

    static int& Depth() {
      static thread_local int depth = 0;
      return depth;
    }
  };

  absl::StatusOr<std::unique_ptr<xla::CpuMemory>> Allocate(size_t size, size_t alignment) {
    if (alignment > kPage) return absl::UnimplementedError("an alignment above a page is not supported");
    const size_t block = BlockSize(size);
    const bool executing = Storing::Depth() == 0 && block >= kAwaited;
    void* base = nullptr;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (executing) {
        AwaitEqual(block, lock);
        ++executing_[block];
      }
      ++stats_.allocations;
      stats_.largest = std::max<int64_t>(stats_.largest, size);
      auto found = idle_.find(block);
      if (found != idle_.end()) {
        base = found->second.back().base;  // the newest: most likely still in the processor's cache
        found->second.pop_back();
        if (found->second.empty()) idle_.erase(found);
        stats_.idle -= block;
      } else {
        ++stats_.fresh;
      }
      stats_.in_use += size;
      stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
      held_in_use_ += block;
      peak_held_in_use_ = std::max(peak_held_in_use_, held_in_use_);
      Trim();  // before new pages are taken, so that the sum never passes the bound
      stats_.peak_held = std::max(stats_.peak_held, held_in_use_ + stats_.idle);
    }
    if (base == nullptr) base = Map(block, alignment);
    if (base == nullptr) {
      // Idle blocks of other sizes may be what the system lacks.
      std::lock_guard<std::mutex> lock(mutex_);
      UnmapIdleOver(0);
      base = Map(block, alignment);
    }
    if (base == nullptr) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (executing) --executing_[block];
      stats_.in_use -= size;
      held_in_use_ -= block;
      return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", size, " bytes wanted, ", stats_.in_use, " in use"));
    }
    return std::make_unique<Block>(shared_from_this(), base, size, block, executing);
  }

  Stats stats() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }

  int64_t idle_limit() const { return idle_limit_; }

 private:
  // Holds the pool alive: a buffer may be the last thing left of a client.
  class Block : public xla::CpuMemory {
   public:
    Block(std::shared_ptr<Pool> pool, void* base, size_t size, size_t block, bool executing)
        : pool_(std::move(pool)), base_(base), size_(size), block_(block), executing_(executing) {}
    ~Block() override { pool_->Release(base_, size_, block_, executing_); }
    void* base() const override { return base_; }
    size_t size_bytes() const override { return size_; }

   private:
    std::shared_ptr<Pool> pool_;
    void* base_;
    size_t size_, block_;
    bool executing_;
  };

  struct Idle {
    void* base;
    uint64_t stamp;  // when it was given back; the oldest go first
  };

  // Below this, malloc is as good; above, blocks are mapped, so that letting go returns the pages for certain.
  static constexpr size_t kMapped = 64 << 10;
  static constexpr size_t kPage = 4096;
  // Prefetched batches and the like come and go between steps; without slack each would push a step's block out.
  static constexpr int64_t kSlack = 32 << 20;
  // From this size on an execution waits for an equal block, and for how long at most.
  static constexpr size_t kAwaited = 1 << 20;
  static constexpr std::chrono::milliseconds kPatience{50};

  // Large sizes are rounded up to one of eight steps between powers of two, so that near sizes share blocks. The rounded-up
  // tail costs address space, not memory, until a larger request uses it.
  static size_t BlockSize(size_t size) {
    if (size < kMapped) return std::max<size_t>(size, 1);
    size_t step = kMapped / 8;
    while (step * 16 <= size) step *= 2;
    return (size + step - 1) / step * step;
  }

  static void* Map(size_t block, size_t alignment) {
    if (block >= kMapped) {
      void* base = mmap(nullptr, block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      return base == MAP_FAILED ? nullptr : base;
    }
    alignment = std::max<size_t>(alignment, 64);
    return std::aligned_alloc(alignment, (block + alignment - 1) / alignment * alignment);
  }

  static void Unmap(void* base, size_t block) { munmap(base, block); }

  // Waits for an equal block of another execution, if a new one would raise the peak. A wait in vain shows that the blocks of
  // this size are results that the caller keeps: until one of them is released, nobody waits for them again.
  void AwaitEqual(size_t block, std::unique_lock<std::mutex>& lock) {
    if (kept_.count(block) > 0) return;
    auto would_raise_the_peak = [&] {
      return idle_.count(block) == 0 && held_in_use_ + static_cast<int64_t>(block) > peak_held_in_use_ && executing_[block] > 0;
    };
    if (!released_.wait_for(lock, kPatience, [&] { return !would_raise_the_peak(); })) kept_.insert(block);
  }

  void Release(void* base, size_t size, size_t block, bool executing) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (executing) {
      --executing_[block];
      kept_.erase(block);
      released_.notify_all();
    }
    stats_.in_use -= size;
    held_in_use_ -= block;
    if (block < kMapped) {
      std::free(base);
      return;
    }
    idle_[block].push_back({base, ++clock_});
    stats_.idle += block;
    Trim();
  }

  // Lets the oldest idle blocks go until both bounds hold.
  void Trim() { UnmapIdleOver(std::max<int64_t>(std::min(idle_limit_, peak_held_in_use_ + kSlack - held_in_use_), 0)); }

  // Lets the oldest idle blocks go until at most `allowed` bytes are idle.
  void UnmapIdleOver(int64_t allowed) {
    while (stats_.idle > allowed) {
      auto oldest = idle_.begin();
      for (auto it = idle_.begin(); it != idle_.end(); ++it) {
        if (it->second.front().stamp < oldest->second.front().stamp) oldest = it;
      }
      Unmap(oldest->second.front().base, oldest->first);
      stats_.idle -= oldest->first;
      oldest->second.pop_front();
      if (oldest->second.empty()) idle_.erase(oldest);
    }
  }

  const int64_t idle_limit_;
  mutable std::mutex mutex_;
  std::map<size_t, std::deque<Idle>> idle_;  // by block size; no list is empty
  std::map<size_t, int64_t> executing_;      // blocks that executions asked for and still hold, by size
  std::set<size_t> kept_;                    // sizes of those for which a wait was in vain
  std::condition_variable released_;         // one of those was given back
  uint64_t clock_ = 0;
  int64_t held_in_use_ = 0, peak_held_in_use_ = 0;  // as in_use, in whole blocks
  Stats stats_;
};

}  // namespace xtrain

#endif  // XTRAIN_CPP_POOL_H_
