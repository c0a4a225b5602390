// Allocation of buffers and scratch memory: the interface that each device's blocks.cc implements.
#pragma once

#include <cstdint>
#include <functional>

namespace needle {

constexpr int kMaxDevices = 64;  // devices of one kind

// Returns at least `bytes` (up to INT64_MAX) of a device's uninitialised memory, at a multiple of
// kAlignment. Throws std::bad_alloc. Release it by release_block with the same number of bytes.
//
// Released blocks are kept for later requests of the same size: getting new memory, and touching it
// on the CPU, takes longer than most kernels. On a device with streams, a block may be used by work
// on the stream given to acquire_block, or by work ordered after it. A released block follows the
// stream that last used it; that work may still be pending. The CPU has no streams and passes null.
char* acquire_block(int64_t bytes, int device, void** stream);
void release_block(char* block, int64_t bytes, int device, void* stream) noexcept;

// Calls `release`, which returns foreign memory, when the work so far on `stream` is done.
void release_foreign(std::function<void()> release, int device, void* stream) noexcept;

// Returns the kept blocks to the system.
void empty_cache(int device) noexcept;
// Returns the bytes in kept blocks.
int64_t memory_cached(int device);
// Returns the reason for a failed allocation. The message before it says how much was requested.
const char* out_of_memory_note(int device);

}  // namespace needle
