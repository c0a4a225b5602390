#include "threads/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
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

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr int kMaxThreads = 256;
constexpr int kPiecesPerThread = 4;  // lets other threads take over a delayed thread's share
// In a training loop, the next kernel follows within microseconds; waking a thread takes tens of
// microseconds.
constexpr nanoseconds kSpin(150'000);
// How long a thread spins while it waits for other threads of its call, before it sleeps: those
// threads' cores may be taken, or they may need this thread's core.
constexpr nanoseconds kPatience(30'000);
// How long a thread that is awake and has a core may take to join a team.
constexpr nanoseconds kJoin(3'000);
constexpr nanoseconds kWaking(60'000);  // the same for a thread that sleeps, on an idle machine
// If a team takes this much longer than its caller alone, and a worker's core was taken meanwhile,
// the team has probably waited for that worker. The caller then works alone for a while, and for
// twice as long if the same happens again soon.
constexpr nanoseconds kDelay(50'000);
constexpr nanoseconds kShortest(250'000), kLongest(8'000'000);
constexpr int kOften = 16;  // "soon": within this multiple of the last such period

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether the system took this thread's core away since the last call.
bool was_preempted() {
#ifdef RUSAGE_THREAD
  thread_local long last = 0;
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0 || usage.ru_nivcsw == last) return false;
  last = usage.ru_nivcsw;
  return true;
#else
  return false;
#endif
}

// A count that threads wait for: spinning first, then asleep.
class Signal {
 public:
  uint32_t get() const { return value_.load(std::memory_order_acquire); }
  // Called before any thread can wait.
  void reset() { value_.store(0, std::memory_order_relaxed); }
  uint32_t add() {
    const uint32_t value = value_.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake();
    return value;
  }
  // Waits until done(value).
  template <class Done>
  void wait(Done&& done) {
    for (int spins = 1;; ++spins) {
      if (done(get())) return;
      pause();
      if (spins % 64 == 0 && started_at(spins)) break;
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const uint32_t value = value_.load(std::memory_order_seq_cst);
      if (done(value)) break;
      sleep(value);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  // Whether a wait that has spun this often has used up its patience.
  static bool started_at(int spins) {
    thread_local Clock::time_point begin;
    const auto now = Clock::now();
    if (spins == 64) begin = now;
    return now - begin > kPatience;
  }
#ifdef __linux__
  void sleep(uint32_t value) {
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
  void wake() { syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
  void sleep(uint32_t) { std::this_thread::yield(); }
  void wake() {}
#endif

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// Two kinds of calls:
//
// A loop's pieces are divided into ranges, one per thread. A thread that has finished its own range
// takes pieces of other ranges. So a kernel that is called repeatedly finds its share of a weight
// in the cache of the core that it ran on before. A range's ticket is (number of the call << 32) |
// pieces not yet claimed. The thread that lowers the count owns a piece. The caller cannot return
// before the piece is finished, so the fields of the call are stable for the owner; a late worker's
// exchange fails because the number of the call has changed.
//
// A team's tasks wait for each other at barriers, so all of them must run. Each worker is offered
// a task in its seat: (number of the call << 2) | state. Workers join; the caller withdraws the
// offers that no worker took in time, and tells the workers that joined to go.
class Pool {
 public:
  bool try_run(int threads, int64_t n, int64_t pieces, RangeFn fn, void* context) {
    if (!begin(threads)) return false;
    n_ = n;
    pieces_ = pieces;
    range_ = fn;
    context_ = context;
    const int64_t shares = std::min<int64_t>(threads, pieces);
    shares_.store(static_cast<int>(shares), std::memory_order_relaxed);
    finished_.reset();
    const uint64_t call = posted_.load(std::memory_order_relaxed) + 1;
    for (int64_t r = 0; r < shares; ++r) {
      const uint64_t count = static_cast<uint64_t>(end_of(r, shares) - end_of(r - 1, shares));
      ranges_[r].ticket.store(call << 32 | count, std::memory_order_release);
    }
    post(call, true);
    work(0);
    finished_.wait([&](uint32_t done) { return done == static_cast<uint32_t>(pieces); });
    end();
    return true;
  }

  bool try_team(int threads, TaskFn fn, void* context, int* failure) {
    if (!begin(threads)) return false;
    const auto began = Clock::now();
    std::atomic<int64_t>& known = durations_[slot_of(fn)];
    if (began < alone_until_) {
      end();
      Team alone{nullptr, 1};
      *failure = fn(0, &alone, context);
      learn(known, Clock::now() - began);
      return true;
    }
    task_ = fn;
    context_ = context;
    failure_.store(0, std::memory_order_relaxed);
    shares_.store(0, std::memory_order_relaxed);
    finished_.reset();
    const uint64_t call = posted_.load(std::memory_order_relaxed) + 1;
    const int offers = std::min(threads - 1, started_);
    for (int i = 1; i <= offers; ++i)
      ranges_[i].seat.store(call << 2 | kOffered, std::memory_order_release);
    const int64_t alone = known.load(std::memory_order_relaxed);
    const bool asleep = sleeping_.load(std::memory_order_seq_cst) > 0;
    const bool worth = alone == 0 || alone - alone / (offers + 1) > kWaking.count();
    post(call, worth || began - ended_ < kSpin);
    const auto until = began + (asleep && worth ? kWaking : kJoin);
    for (int spins = 1, joined = 0; joined < offers; ++spins) {
      joined = 0;
      for (int i = 1; i <= offers; ++i)
        joined += ranges_[i].seat.load(std::memory_order_acquire) == (call << 2 | kJoined);
      if (joined < offers) pause();
      if (spins % 16 == 0 && Clock::now() > until) break;
    }
    team_ = {this, 1};
    int member[kMaxThreads];
    for (int i = 1; i <= offers; ++i) {
      uint64_t offered = call << 2 | kOffered;
      if (!ranges_[i].seat.compare_exchange_strong(offered, call << 2, std::memory_order_acq_rel)) {
        ranges_[i].task = team_.tasks;
        member[team_.tasks++] = i;
      }
    }
    arrived_.store(0, std::memory_order_relaxed);
    for (int task = 1; task < team_.tasks; ++task)
      ranges_[member[task]].seat.store(call << 2 | kGo, std::memory_order_release);
    run_task(0);
    const uint32_t others = static_cast<uint32_t>(team_.tasks - 1);
    finished_.wait([&](uint32_t done) { return done == others; });
    ended_ = Clock::now();
    bool taken = false;
    for (int task = 1; task < team_.tasks; ++task) taken |= ranges_[member[task]].preempted;
    if (taken && alone != 0 && ended_ - began > nanoseconds(alone) + kDelay) {
      const bool often = began - alone_until_ < kOften * while_;
      while_ = often ? std::min(2 * while_, kLongest) : kShortest;
      alone_until_ = ended_ + while_;
    } else {
      learn(known, (ended_ - began) * team_.tasks);
    }
    *failure = failure_.load(std::memory_order_relaxed);
    end();
    return true;
  }

  void barrier() {
    const uint32_t turn = turn_.get();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == team_.tasks) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.add();
    } else {
      turn_.wait([&](uint32_t now) { return now != turn; });
    }
  }

 private:
  enum Seat : uint64_t { kWithdrawn, kOffered, kJoined, kGo };

  struct alignas(64) Range {
    std::atomic<uint64_t> ticket{0};
    std::atomic<uint64_t> seat{0};
    int task = 0;
    bool preempted = false;  // during the task
  };

  // Records the time that one thread takes for a team's code. The code may have less to do in some
  // calls than in others, so the recorded time falls slowly.
  static void learn(std::atomic<int64_t>& known, nanoseconds took) {
    const int64_t before = known.load(std::memory_order_relaxed);
    known.store(std::max<int64_t>(took.count(), before - before / 8), std::memory_order_relaxed);
  }
  static size_t slot_of(TaskFn fn) {
    return (reinterpret_cast<uintptr_t>(fn) >> 4) % (sizeof durations_ / sizeof durations_[0]);
  }

  bool begin(int threads) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    grow(threads - 1);
    if (started_ > 0) return true;
    end();
    return false;
  }
  void end() { busy_.store(false, std::memory_order_release); }

  void post(uint64_t call, bool wake) {
    posted_.store(call, std::memory_order_seq_cst);
    if (wake && sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
  }

  void grow(int workers) {
    while (started_ < std::min(workers, kMaxThreads - 1)) {
      try {
        std::thread(&Pool::loop, this, started_ + 1).detach();
      } catch (const std::system_error&) {
        return;  // no further threads available: use the existing threads
      }
      ++started_;
    }
  }

  // The end of range r, in pieces.
  int64_t end_of(int64_t r, int64_t shares) const { return pieces_ * (r + 1) / shares; }

  // Takes pieces of the current loop until none is left, beginning with its own range.
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
        range_(context_, begin, begin + size + (piece < extra ? 1 : 0));
        finished_.add();
        ticket = at.load(std::memory_order_acquire);
      }
    }
  }

  void run_task(int task) {
    const int code = task_(task, &team_, context_);
    int none = 0;
    if (code != 0) failure_.compare_exchange_strong(none, code, std::memory_order_relaxed);
  }

  // Takes this worker's task in a team's call, if one is offered.
  void join(int index, uint64_t call) {
    std::atomic<uint64_t>& seat = ranges_[index].seat;
    uint64_t offered = call << 2 | kOffered;
    if (!seat.compare_exchange_strong(offered, call << 2 | kJoined, std::memory_order_acq_rel))
      return;
    for (int spins = 1; seat.load(std::memory_order_acquire) != (call << 2 | kGo); ++spins) {
      pause();
      if (spins % 1024 == 0) std::this_thread::yield();  // the caller may need this core
    }
    const auto began = Clock::now();
    run_task(ranges_[index].task);
    ranges_[index].preempted = Clock::now() - began > kDelay && was_preempted();
    finished_.add();
  }

  void loop(int index) {
    uint64_t seen = 0;
    auto posted = [&] { return posted_.load(std::memory_order_seq_cst) != seen; };
    for (;;) {
      const auto began = Clock::now();
      auto deadline = began + kSpin;
      for (int spins = 1; !posted(); ++spins) {
        pause();
        if (spins % 64 != 0) continue;
        const auto now = Clock::now();
        // This thread slept too long to join the running call. Another call will likely follow; if
        // this thread slept again, it would come too late for that call as well.
        if (busy_.load(std::memory_order_relaxed) && now - began < kLongest) deadline = now + kSpin;
        if (now > deadline) {
          std::unique_lock<std::mutex> lock(mutex_);
          sleeping_.fetch_add(1, std::memory_order_seq_cst);
          while (!posted()) wake_.wait(lock);
          sleeping_.fetch_sub(1, std::memory_order_seq_cst);
        }
      }
      seen = posted_.load(std::memory_order_acquire);
      join(index, seen);
      if (index < shares_.load(std::memory_order_relaxed)) work(index);
    }
  }

  std::atomic<bool> busy_{false};
  int started_ = 0;
  int64_t n_ = 0, pieces_ = 1;
  RangeFn range_ = nullptr;
  TaskFn task_ = nullptr;
  void* context_ = nullptr;
  Team team_{};
  Clock::time_point ended_{}, alone_until_{};
  nanoseconds while_ = kShortest;
  std::atomic<int> failure_{0};
  std::atomic<int> shares_{0};
  std::atomic<int64_t> durations_[256] = {};  // of one thread, by a hash of a team's code
  Range ranges_[kMaxThreads];
  alignas(64) std::atomic<uint64_t> posted_{0};
  alignas(64) Signal finished_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) Signal turn_;
  alignas(64) std::atomic<int> sleeping_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

// The pool is never destroyed: workers may still read it while the process exits.
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

void set_num_threads(int count) {
  g_threads.store(std::clamp(count, 1, kMaxThreads), std::memory_order_relaxed);
}

void init_threads() {
  if (g_pool != nullptr) return;  // another module did it
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

int run_team(int threads, TaskFn fn, void* context) {
  threads = std::min(threads, kMaxThreads);
  if (threads > 1 && !t_inside) {
    int failure = 0;
    t_inside = true;
    const bool done = g_pool->try_team(threads, fn, context, &failure);
    t_inside = false;
    if (done) return failure;
  }
  Team alone{nullptr, 1};
  return fn(0, &alone, context);
}

void barrier(Team* team) {
  if (team->tasks > 1) static_cast<Pool*>(team->pool)->barrier();
}

}  // namespace needle
