// Allocation of buffers and scratch memory: the interface that each device's blocks.cc defines.
#pragma once

#include <cstdint>
#include <functional>

namespace needle {

constexpr int kMaxDevices = 64;  // of one kind of device

// At least `bytes` (up to INT64_MAX) of uninitialised memory of a device, at a multiple of
// kAlignment. Throws std::bad_alloc. Return it by release_block with the same number of bytes.
//
// Released blocks are kept for later requests of the same size: getting new memory, and touching it
// on the CPU, takes longer than most kernels. On a device with streams, a block is for work on the
// stream given to acquire_block, or ordered after it; a released block follows the stream that last
// used it, whose work need not be done. The CPU has no streams and passes null.
char* acquire_block(int64_t bytes, int device, void** stream);
void release_block(char* block, int64_t bytes, int device, void* stream) noexcept;

// Calls `release`, which returns foreign memory, once the work so far on `stream` is done.
void release_foreign(std::function<void()> release, int device, void* stream) noexcept;

// Returns the kept blocks to the system.
void empty_cache(int device) noexcept;
// Bytes in kept blocks.
int64_t memory_cached(int device);
// The reason for a failed allocation, to end a sentence that says how much was requested.
const char* out_of_memory_note(int device);

}  // namespace needle
