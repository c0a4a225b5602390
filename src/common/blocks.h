// Where buffers and scratch memory come from: the interface that each device's blocks.cc defines.
#pragma once

#include <cstdint>
#include <functional>

namespace needle {

constexpr int kMaxDevices = 64;  // of one kind

// At least `bytes` (up to INT64_MAX) of uninitialised memory of a device, at a multiple of
// kAlignment. Throws std::bad_alloc. It goes back by release_block with the same number of bytes.
//
// Blocks that come back are kept for the next that is as large: fresh memory costs more to get, and
// on the CPU to touch, than most kernels take. Where a device has streams, a block is for work on
// the stream that is named (by acquire_block) or is ordered after it; one that comes back follows
// the stream that worked on it last, whose work need not be done. The CPU has none and names null.
char* acquire_block(int64_t bytes, int device, void** stream);
void release_block(char* block, int64_t bytes, int device, void* stream) noexcept;

// Calls `release` once the work on `stream` so far is done: what gives foreign memory back.
void release_foreign(std::function<void()> release, int device, void* stream) noexcept;

// Hands what is kept back to the system.
void empty_cache(int device) noexcept;
// Bytes that are kept.
int64_t memory_cached(int device);
// Why memory cannot be had, for the end of a sentence that says how much was asked for.
const char* out_of_memory_note(int device);

}  // namespace needle
