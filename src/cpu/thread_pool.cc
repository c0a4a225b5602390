#include "cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace needle {

namespace {

constexpr int kMaxThreads = 256;
constexpr int kPiecesPerThread = 4;  // lets other threads take over a delayed thread's share
// In a training loop kernels follow within microseconds; waking a thread takes tens of them.
constexpr std::chrono::microseconds kSpin(150);

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A call's pieces are divided into ranges, one per thread. A thread that has finished its own range
// takes pieces of the others. So a kernel that is called repeatedly finds its share of a weight in
// the cache of the core that it ran on before.
//
// A range's ticket is (number of the call << 32) | pieces not yet claimed. The thread that lowers
// the count owns a piece, and the caller cannot return before it is finished, so the fields of the
// call are stable for the owner; a late worker's exchange fails because the number has changed.
class Pool {
 public:
  bool try_run(int threads, int64_t n, int64_t pieces, RangeFn fn, void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    grow(threads - 1);
    if (started_ == 0) {
      busy_.store(false, std::memory_order_release);
      return false;
    }
    n_ = n;
    pieces_ = pieces;
    fn_ = fn;
    context_ = context;
    const int64_t shares = std::min<int64_t>(threads, pieces);
    shares_.store(static_cast<int>(shares), std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t call = posted_.load(std::memory_order_relaxed) + 1;
    for (int64_t r = 0; r < shares; ++r) {
      const uint64_t count = static_cast<uint64_t>(end_of(r, shares) - end_of(r - 1, shares));
      ranges_[r].ticket.store(call << 32 | count, std::memory_order_release);
    }
    posted_.store(call, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    work(0);
    for (int spins = 0; finished_.load(std::memory_order_acquire) != pieces; ++spins) {
      pause();
      if (spins % 1024 == 1023) std::this_thread::yield();  // its owner may need this core
    }
    busy_.store(false, std::memory_order_release);
    return true;
  }

  // Lets the workers sleep at once, until the next call.
  void rest() {
    rest_after_.store(posted_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Range {
    std::atomic<uint64_t> ticket{0};
  };

  void grow(int workers) {
    while (started_ < workers) {
      try {
        std::thread(&Pool::loop, this, started_ + 1).detach();
      } catch (const std::system_error&) {
        return;  // no further threads available: use those that exist
      }
      ++started_;
    }
  }

  // The end of range r, in pieces.
  int64_t end_of(int64_t r, int64_t shares) const { return pieces_ * (r + 1) / shares; }

  // Takes pieces of the current call until none is left, beginning with its own range.
  void work(int index) {
    const int ranges = shares_.load(std::memory_order_relaxed);
    for (int k = 0; k < ranges; ++k) {
      const int r = (index + k) % ranges;
      std::atomic<uint64_t>& at = ranges_[r].ticket;
      uint64_t ticket = at.load(std::memory_order_acquire);
      while (static_cast<uint32_t>(ticket) != 0) {
        if (!at.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
        const int64_t left = static_cast<int64_t>(static_cast<uint32_t>(ticket));
        const int64_t piece = end_of(r, shares_.load(std::memory_order_relaxed)) - left;
        const int64_t size = n_ / pieces_, extra = n_ % pieces_;
        const int64_t begin = piece * size + std::min(piece, extra);
        fn_(context_, begin, begin + size + (piece < extra ? 1 : 0));
        finished_.fetch_add(1, std::memory_order_release);
        ticket = at.load(std::memory_order_acquire);
      }
    }
  }

  void loop(int index) {
    uint64_t seen = 0;
    auto posted = [&] { return posted_.load(std::memory_order_seq_cst) != seen; };
    for (;;) {
      auto deadline = std::chrono::steady_clock::now() + kSpin;
      for (int spins = 1; !posted(); ++spins) {
        pause();
        if (rest_after_.load(std::memory_order_relaxed) == seen ||
            (spins % 64 == 0 && std::chrono::steady_clock::now() > deadline)) {
          std::unique_lock<std::mutex> lock(mutex_);
          sleeping_.fetch_add(1, std::memory_order_seq_cst);
          while (!posted()) wake_.wait(lock);
          sleeping_.fetch_sub(1, std::memory_order_seq_cst);
        }
      }
      seen = posted_.load(std::memory_order_acquire);
      if (index < shares_.load(std::memory_order_relaxed)) work(index);
    }
  }

  std::atomic<bool> busy_{false};
  int started_ = 0;
  int64_t n_ = 0, pieces_ = 1;
  RangeFn fn_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int> shares_{0};
  Range ranges_[kMaxThreads];
  alignas(64) std::atomic<uint64_t> posted_{0};
  std::atomic<uint64_t> rest_after_{0};  // the call after which workers need not spin
  alignas(64) std::atomic<int64_t> finished_{0};
  alignas(64) std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Never destroyed: workers may still read it while the process exits.
Pool* g_pool = nullptr;
std::atomic<int> g_threads{1};
thread_local bool t_inside = false;

// Threads do not survive a fork, and the parent's pool may have been in a call.
void after_fork_in_child() {
  g_pool = new Pool;
  t_inside = false;
}

int cores_by_quota(const char* path, bool v2) {
  std::ifstream file(path);
  double quota = -1, period = 100000;
  std::string first;
  if (!(file >> first) || first == "max") return kMaxThreads;
  quota = std::atof(first.c_str());
  if (v2) {
    file >> period;
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return kMaxThreads;
  return std::max(1, static_cast<int>((quota + period - 1) / period));
}

int usable_cores() {
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = std::max(1, CPU_COUNT(&set));
#endif
  cores = std::min(cores, cores_by_quota("/sys/fs/cgroup/cpu.max", true));
  return std::min(cores, cores_by_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", false));
}

}  // namespace

int num_threads() { return g_threads.load(std::memory_order_relaxed); }

void rest_threads() {
  if (g_pool != nullptr) g_pool->rest();
}

void set_num_threads(int count) {
  g_threads.store(std::clamp(count, 1, kMaxThreads), std::memory_order_relaxed);
}

void init_threads() {
  g_pool = new Pool;
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  const char* wanted = std::getenv("NEEDLE_NUM_THREADS");
  if (wanted == nullptr || *wanted == '\0') {
    set_num_threads(usable_cores());
    return;
  }
  char* end = nullptr;
  long count = std::strtol(wanted, &end, 10);
  if (*end != '\0' || count < 1)
    throw std::invalid_argument(std::string("NEEDLE_NUM_THREADS=") + wanted +
                                " is not a positive number");
  set_num_threads(static_cast<int>(std::min<long>(count, kMaxThreads)));
}

void parallel_for_raw(int64_t n, int64_t grain, RangeFn fn, void* context) {
  if (n <= 0) return;
  int threads = num_threads();
  int64_t pieces = std::min<int64_t>(n / std::max<int64_t>(grain, 1), threads * kPiecesPerThread);
  if (pieces > 1 && threads > 1 && !t_inside) {
    t_inside = true;
    bool done = g_pool->try_run(threads, n, pieces, fn, context);
    t_inside = false;
    if (done) return;
  }
  fn(context, 0, n);
}

}  // namespace needle
