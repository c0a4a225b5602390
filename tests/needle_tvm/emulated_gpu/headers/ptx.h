// The PTX instructions of inline assembly, as functions: ptx.py replaces the assembly by calls of
// them. The PTX ISA defines what they do and which thread holds what ("Matrix multiply-accumulate
// operation using mma instruction", "ldmatrix", "cp.async").
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "halves.h"
#include "warp.h"

namespace needle {
namespace ptx {

using emulated::bits_of;
using emulated::float_of;
using emulated::Shown;

// A register takes bits, whatever type they are said to have.
template <class To, class From>
void set(To& to, From bits) {
  static_assert(sizeof(To) == sizeof(From), "a register of another width");
  std::memcpy(&to, &bits, sizeof(To));
}

// Addresses of shared memory have 32 bits: offsets from here, in the same library.
static char g_shared_origin;

static inline uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(static_cast<const char*>(at) - &g_shared_origin);
}
static inline char* shared(uint32_t address) {
  return &g_shared_origin + static_cast<int32_t>(address);
}

// Operands of mma in registers: two halves, or a float whose lower bits are not read.
struct f16 {
  static constexpr int count = 2;
  static float of(uint32_t bits, int i) {
    return emulated::Io<emulated::Float16>::load({static_cast<uint16_t>(bits >> (16 * i))});
  }
};
struct bf16 {
  static constexpr int count = 2;
  static float of(uint32_t bits, int i) { return float_of(bits >> (16 * i) << 16); }
};
struct tf32 {
  static constexpr int count = 1;
  static float of(uint32_t bits, int) { return emulated::read_as_tf32(float_of(bits)); }
};

// mma.sync.aligned.m16n8k{k}.row.col.f32.T.T.f32: A B + C.
template <int k, class T>
std::array<float, 4> mma(const std::array<uint32_t, k / T::count / 2>& a,
                         const std::array<uint32_t, k / T::count / 4>& b,
                         const std::array<float, 4>& c) {
  struct Own {
    const uint32_t *a, *b;
  } own{a.data(), b.data()};
  const Shown warp(&own);
  std::array<float, 4> sums;
  for (int e = 0; e < 4; ++e) {
    const int lane = ::emulated::lane();
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    float sum = c[e];
    for (int t = 0; t < k; ++t) {
      const int part = t / T::count % 4, piece = t / T::count / 4;
      const Own& left = *warp.of<Own>(row % 8 * 4 + part);
      const Own& right = *warp.of<Own>(column * 4 + part);
      sum += T::of(left.a[row / 8 + 2 * piece], t % T::count) * T::of(right.b[piece], t % T::count);
    }
    sums[e] = sum;
  }
  warp.done();
  return sums;
}

// ldmatrix.sync.aligned.m8n8.x{count}: thread 8 i + r has the address of row r of matrix i.
template <int count, bool transposed>
std::array<uint32_t, count> ldmatrix(uint32_t address) {
  const int lane = ::emulated::lane(), row = lane / 4, column = lane % 4 * 2;
  if (lane < 8 * count && reinterpret_cast<uintptr_t>(shared(address)) % 16 != 0)
    emulated::refuse("ldmatrix: a row's address is not a multiple of 16");
  const Shown warp(shared(address));
  std::array<uint32_t, count> found;
  for (int i = 0; i < count; ++i) {
    uint16_t two[2];
    for (int j = 0; j < 2; ++j)
      two[j] = transposed ? warp.of<uint16_t>(8 * i + column + j)[row]
                          : warp.of<uint16_t>(8 * i + row)[column + j];
    found[i] = two[0] | static_cast<uint32_t>(two[1]) << 16;
  }
  warp.done();
  return found;
}

template <size_t count>
static void st_shared(uint32_t address, const std::array<uint32_t, count>& values) {
  if (reinterpret_cast<uintptr_t>(shared(address)) % sizeof(values) != 0)
    emulated::refuse("st.shared: the address is not a multiple of the bytes that are stored");
  std::memcpy(shared(address), values.data(), sizeof(values));
}

// Copies that a thread has begun, in groups; the last group is still open. They are made as late as
// possible, when they are waited for, so that a thread which does not wait reads stale memory.
struct Copy {
  char* to;
  const void* from;
  uint32_t bytes, given;  // bytes beyond `given` become zeros
};
static std::deque<std::vector<Copy>>& copies() {
  static std::deque<std::vector<Copy>> of_threads[emulated::kWarp * emulated::kWarps];
  auto& own = of_threads[emulated::thread_number()];
  if (own.empty()) own.emplace_back();
  return own;
}

// Runs before a thread's first instruction: drops pending copies of a thread of an earlier block.
static inline void begin_thread() { copies().clear(); }

static inline void cp_async(uint32_t to, uint64_t from, uint32_t bytes, uint32_t given) {
  if (given > bytes) emulated::refuse("cp.async: more bytes are given than copied");
  if (from % bytes != 0 || reinterpret_cast<uintptr_t>(shared(to)) % bytes != 0)
    emulated::refuse("cp.async: an address is not a multiple of the bytes that are copied");
  copies().back().push_back({shared(to), reinterpret_cast<const void*>(from), bytes, given});
}
static inline void cp_async_commit_group() { copies().emplace_back(); }
static inline void cp_async_wait_group(size_t pending) {
  auto& own = copies();
  for (; own.size() > pending + 1; own.pop_front())
    for (const Copy& copy : own.front()) {
      std::memcpy(copy.to, copy.from, copy.given);
      std::memset(copy.to + copy.given, 0, copy.bytes - copy.given);
    }
}
static inline void cp_async_wait_all() {
  cp_async_commit_group();
  cp_async_wait_group(0);
}

}  // namespace ptx
}  // namespace needle

static inline size_t __cvta_generic_to_shared(const void* at) {
  return needle::ptx::shared_address(at);
}
