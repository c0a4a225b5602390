#include "common/blocks.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "common/view.h"

namespace needle {

namespace {

// Smaller sizes are cached by the C library itself.
constexpr int64_t kLarge = 64 << 10;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeep = false;  // the sanitizer then sees every use after release
#else
constexpr bool kKeep = true;
#endif

// Rounds sizes up in steps of an eighth of the power of two below, so that similar sizes share
// blocks.
int64_t rounded(int64_t bytes) {
  int64_t step = kAlignment;
  while (step <= bytes / 16) step *= 2;
  if (bytes < kLarge) step = kAlignment;
  if (bytes > INT64_MAX - step) throw std::bad_alloc();
  return (std::max<int64_t>(bytes, 1) + step - 1) / step * step;
}

int64_t most_kept() {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::clamp<int64_t>(memory / 8, int64_t{64} << 20, int64_t{1} << 30);
}

struct Kept {
  // Only try_lock is used; a thread that does not get the lock uses the C library. So no thread
  // waits, and a fork while another thread holds the lock leaves a working child.
  std::mutex mutex;
  std::unordered_map<int64_t, std::vector<char*>> blocks;
  std::atomic<int64_t> total{0};
  const int64_t limit = most_kept();

  void clear() noexcept {
    for (auto& [size, list] : blocks)
      for (char* block : list) std::free(block);
    blocks.clear();
    total = 0;
  }
};

// The kept blocks are never destroyed: buffers may be freed while the process exits.
Kept& kept() {
  static Kept* the = new Kept;
  return *the;
}

char* from_system(int64_t bytes) {
  return static_cast<char*>(std::aligned_alloc(kAlignment, static_cast<size_t>(bytes)));
}

}  // namespace

char* acquire_block(int64_t bytes, int, void** stream) {
  *stream = nullptr;
  const int64_t size = rounded(bytes);
  if (kKeep && size >= kLarge) {
    Kept& k = kept();
    std::unique_lock<std::mutex> lock(k.mutex, std::try_to_lock);
    if (lock) {
      auto found = k.blocks.find(size);
      if (found != k.blocks.end() && !found->second.empty()) {
        char* block = found->second.back();
        found->second.pop_back();
        k.total -= size;
        return block;
      }
    }
  }
  char* block = from_system(size);
  if (block == nullptr) {
    empty_cache(0);
    block = from_system(size);
  }
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void release_block(char* block, int64_t bytes, int, void*) noexcept {
  const int64_t size = rounded(bytes);
  if (kKeep && size >= kLarge) {
    Kept& k = kept();
    std::unique_lock<std::mutex> lock(k.mutex, std::try_to_lock);
    if (lock && size <= k.limit / 2) {
      // The kept blocks are from earlier work; if they leave no room, the work has changed.
      if (k.total + size > k.limit) k.clear();
      try {
        k.blocks[size].push_back(block);
        k.total += size;
        return;
      } catch (const std::bad_alloc&) {
        // the block is then not kept
      }
    }
  }
  std::free(block);
}

void release_foreign(std::function<void()> release, int, void*) noexcept { release(); }

void empty_cache(int) noexcept {
  Kept& k = kept();
  std::unique_lock<std::mutex> lock(k.mutex, std::try_to_lock);
  if (lock) k.clear();
}

int64_t memory_cached(int) { return kept().total; }

const char* out_of_memory_note(int) { return "but the allocation failed"; }

}  // namespace needle
