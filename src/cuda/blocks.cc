// Device memory. cudaMalloc and cudaFree wait for the device and take longer than most kernels, so
// released blocks are kept for reuse, grouped by device, stream and size. The next work on the
// stream that last used a block can use the block at once, without an event.
#include "common/blocks.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/memory.h"
#include "cuda/runtime.h"

namespace needle {

namespace {

constexpr int64_t kGranule = 512;

// Rounds a size up to a multiple of one eighth of the largest power of two that does not exceed it
// (and of at least 512 bytes), so that similar sizes share blocks.
int64_t rounded(int64_t bytes) {
  int64_t step = kGranule;
  while (step <= bytes / 16) step *= 2;
  if (bytes > INT64_MAX - step) throw std::bad_alloc();
  return (std::max<int64_t>(bytes, 1) + step - 1) / step * step;
}

struct Pool {
  std::mutex mutex;
  std::map<std::pair<const void*, int64_t>, std::vector<char*>> kept;  // by stream and size
  int64_t cached = 0, reserved = 0, limit = INT64_MAX, mallocs = 0, peak = 0;
};

Pool& pool_of(int device) {
  static Pool* all = new Pool[kMaxDevices];
  return all[device];
}

// Foreign memory that no view uses any more, and that waits until the work on it is done.
struct Leaving {
  cuda::Mark mark;
  std::function<void()> release;
};
struct Departures {
  std::mutex mutex;
  std::deque<Leaving> waiting;
  std::atomic<int> count{0};
};
Departures& departures() {
  static auto* the = new Departures;
  return *the;
}

// Frees the kept blocks; the caller holds the pool's mutex. No work may be pending on freed memory.
void clear(Pool& p, int device) {
  if (p.cached == 0) return;
  const cuda::OnDevice on(device);
  cudaDeviceSynchronize();
  for (auto& [key, list] : p.kept)
    for (char* block : list) cudaFree(block);
  p.kept.clear();
  p.reserved -= p.cached;
  p.cached = 0;
}

char* from_device(Pool& p, int64_t size) {
  void* block = nullptr;
  if (size > p.limit - p.reserved || cudaMalloc(&block, static_cast<size_t>(size)) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  ++p.mallocs;
  p.reserved += size;
  p.peak = std::max(p.peak, p.reserved);
  return static_cast<char*>(block);
}

}  // namespace

void poll_foreign() {
  Departures& d = departures();
  while (d.count.load(std::memory_order_relaxed) > 0) {
    std::function<void()> release;
    {
      std::lock_guard<std::mutex> lock(d.mutex);
      auto done = std::find_if(d.waiting.begin(), d.waiting.end(),
                               [](const Leaving& l) { return l.mark.reached(); });
      if (done == d.waiting.end()) return;
      release = std::move(done->release);
      d.waiting.erase(done);
      --d.count;
    }
    release();  // may run Python, so no lock is held
  }
}

void release_foreign(std::function<void()> release, int device, void* stream) noexcept {
  try {
    if (device == cuda::kHost || stream == nullptr) return release();
    auto* last = static_cast<cuda::Stream*>(stream);
    try {
      cuda::Mark mark(last->device, last->handle);
      Departures& d = departures();
      std::lock_guard<std::mutex> lock(d.mutex);
      d.waiting.push_back({std::move(mark), std::move(release)});
      ++d.count;
    } catch (const std::exception&) {  // without an event the host waits
      cudaDeviceSynchronize();
      if (release) release();
    }
    poll_foreign();
  } catch (...) {
    // A destructor cannot report errors.
  }
}

char* acquire_block(int64_t bytes, int device, void** stream) {
  poll_foreign();
  const int64_t size = rounded(bytes);
  cuda::Stream* current = cuda::current_stream(device);
  *stream = current;
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  auto found = p.kept.find({current, size});
  if (found != p.kept.end() && !found->second.empty()) {
    char* block = found->second.back();
    found->second.pop_back();
    p.cached -= size;
    return block;
  }
  const cuda::OnDevice on(device);
  char* block = from_device(p, size);
  if (block == nullptr) {
    clear(p, device);
    block = from_device(p, size);
  }
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void release_block(char* block, int64_t bytes, int device, void* stream) noexcept {
  if (block == nullptr) return;
  const int64_t size = rounded(bytes);
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  try {
    p.kept[{stream, size}].push_back(block);
    p.cached += size;
  } catch (const std::bad_alloc&) {
    p.reserved -= size;
    cudaFree(block);
  }
}

void empty_cache(int device) noexcept {
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  try {
    clear(p, device);
  } catch (const std::exception&) {
    // the device is gone, and so is its memory
  }
}

int64_t memory_cached(int device) {
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  return p.cached;
}

const char* out_of_memory_note(int device) {
  thread_local std::string note;
  size_t free = 0, total = 0;
  {
    const cuda::OnDevice on(device);
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  }
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  note = "but allocating them failed: device " + std::to_string(device) + " has " +
         std::to_string(free) + " of " + std::to_string(total) + " bytes free; needle holds " +
         std::to_string(p.reserved) + " bytes";
  if (p.limit != INT64_MAX) note += ", and its limit is " + std::to_string(p.limit);
  return note.c_str();
}

namespace cuda {

void set_memory_limit(int device, int64_t bytes) {
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  p.limit = bytes;
  if (p.reserved > p.limit) clear(p, device);
}

MemoryStats memory_stats(int device) {
  Pool& p = pool_of(device);
  std::lock_guard<std::mutex> lock(p.mutex);
  return {p.reserved, p.peak, p.cached, p.mallocs, p.limit == INT64_MAX ? -1 : p.limit};
}

}  // namespace cuda
}  // namespace needle
