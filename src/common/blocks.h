// Where buffers and scratch memory come from.
#pragma once

#include <cstdint>

namespace needle {

// At least `bytes` (up to INT64_MAX) of uninitialised memory at a multiple of kAlignment. Throws
// std::bad_alloc. It goes back by release_block with the same number of bytes.
//
// Large blocks that come back are kept for the next that is as large. The C library would hand them
// to the system, and the pages of a fresh block cost more to touch than most kernels take.
char* acquire_block(int64_t bytes);
void release_block(char* block, int64_t bytes) noexcept;

// Hands what is kept back to the system.
void empty_cache() noexcept;
// Bytes that are kept.
int64_t memory_cached();

}  // namespace needle
