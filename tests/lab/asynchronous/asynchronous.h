// Asynchronous instructions of GPUs, emulated for kernels that TVM writes: see __init__.py.
//
// Threads are fibers that run in turn and give way while they wait. What the hardware may do late
// is done as late as the PTX ISA allows, so that who does not wait long enough computes something
// else: a product reads shared memory when its group is waited for, a store to global memory when
// its own is, and copies from global memory arrive in random order after random delays. Shared
// memory begins as NaN. Errors (a deadlock, an arrival too many, a product not waited for) end the
// run.
#pragma once

#include <stdint.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define HOST_DEVICE inline
using uint = unsigned;
using uchar = unsigned char;

// A map of a matrix of halves, as cuTensorMapEncodeTiled is told of it; extents count elements.
struct CUtensorMap {
  uint16_t* data;
  int64_t inner, outer, row_bytes, box_inner, box_outer, swizzled;
};

struct Place {
  unsigned x, y, z;
};
static Place threadIdx, blockIdx;

struct alignas(16) float4 {
  float x, y, z, w;
};
struct int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

namespace late {

constexpr size_t kStack = 1 << 17, kShared = 232448;
constexpr uint32_t kWindow = 1 << 18;  // of a block's shared memory in the cluster's addresses

struct Barrier {
  int count, pending, bytes, phase;
};
struct Product {
  float* sums;
  int columns;
  uint64_t a, b;
  bool add, bfloat;
};
struct Store {
  const CUtensorMap* map;
  int x, y;
  uint32_t from;
};
struct Fetch {
  uint32_t to;
  const void* from;
  int bytes;
};
template <class Work>
struct Groups {  // work that is committed in groups, and done when it is waited for
  std::vector<Work> open;
  std::deque<std::vector<Work>> closed;
  void commit() {
    closed.push_back(open);
    open.clear();
  }
};
struct Thread {
  ucontext_t here;
  std::unique_ptr<char[]> stack{new char[kStack]};
  Place thread, block;
  int rank;
  bool done = false;
  Groups<Product> products;
  Groups<Store> stores;
  Groups<Fetch> fetches;
};
struct Rendezvous {
  int arrived = 0;
  int64_t generation = 0;
};
struct Copy {
  int delay;
  std::function<void()> arrive;
};

struct Cluster {
  ucontext_t scheduler;
  std::vector<Thread> threads;
  std::vector<std::vector<uchar>> shared;
  std::map<uint32_t, Barrier> barriers;
  std::map<int64_t, Rendezvous> meetings;
  std::vector<Copy> copies;
  std::vector<uint64_t> slots;
  std::mt19937 random;
  Thread* current = nullptr;
  int64_t moves = 0;  // what somebody may have waited for
};
static Cluster g;

[[noreturn]] inline void fail(const std::string& what) { throw std::runtime_error(what); }

template <class Condition>
void wait_until(Condition met) {
  while (!met()) swapcontext(&g.current->here, &g.scheduler);
  ++g.moves;
}

inline uchar* shared() {  // aligned as wgmma's swizzled tiles must be
  const auto start = reinterpret_cast<uintptr_t>(g.shared[g.current->rank].data());
  return reinterpret_cast<uchar*>((start + 1023) / 1024 * 1024);
}
inline uchar* at(uint32_t address) {
  const auto start = reinterpret_cast<uintptr_t>(g.shared.at(address / kWindow).data());
  if (address % kWindow >= kShared) fail("beyond the end of shared memory");
  return reinterpret_cast<uchar*>((start + 1023) / 1024 * 1024) + address % kWindow;
}
inline uint32_t address(const void* p) {
  return g.current->rank * kWindow + static_cast<uint32_t>(static_cast<const uchar*>(p) - shared());
}

// All of `count` threads come here before any goes on.
inline void meet(int64_t which, int count) {
  Rendezvous& r = g.meetings[which];
  const int64_t generation = r.generation;
  if (++r.arrived == count) {
    r.arrived = 0;
    ++r.generation;
    ++g.moves;
  }
  wait_until([&r, generation] { return r.generation != generation; });
}
inline void meet_block() {
  meet(-1 - g.current->rank, static_cast<int>(g.threads.size() / g.shared.size()));
}
inline void meet_cluster() { meet(-1000, static_cast<int>(g.threads.size())); }
inline void meet_named(uint32_t id, uint32_t count) {
  if (id == 0 || id > 15) fail("no such named barrier");
  meet(g.current->rank * 16 + id, static_cast<int>(count));
}

inline Barrier& barrier(uint32_t address) {
  const auto found = g.barriers.find(address);
  if (found == g.barriers.end()) fail("a barrier that nobody initialised");
  return found->second;
}
inline void complete(Barrier& b) {
  if (b.pending < 0) fail("more arrivals at a barrier than it expects");
  if (b.pending > 0 || b.bytes != 0) return;
  b.pending = b.count;
  b.phase ^= 1;
  ++g.moves;
}
inline void init(uint32_t address, uint32_t count) {
  if (address % 8 != 0) fail("a barrier that is not aligned");
  g.barriers[address] = {static_cast<int>(count), static_cast<int>(count), 0, 0};
}
inline void arrive(uint32_t address) {
  Barrier& b = barrier(address);
  --b.pending;
  complete(b);
}
inline void expect(uint32_t address, uint32_t bytes) {
  barrier(address).bytes += static_cast<int>(bytes);
  arrive(address);
}
inline void wait(void* p, int parity) {
  Barrier& b = barrier(address(p));
  wait_until([&b, parity] { return b.phase != parity; });
}

// Where byte `offset` of a tile with rows of 128 bytes lies: bits 4 to 6 xor bits 7 to 9.
inline uint32_t swizzle(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Each element of a tile: element(where it is in global memory, or null, and in shared memory).
template <class Element>
void each(const CUtensorMap& map, int x, int y, uint32_t tile, Element element) {
  if (!map.swizzled || map.box_inner * 2 != 128 || tile % 1024 != 0)
    fail("only tiles swizzled by 128 bytes are emulated, aligned to 1,024");
  for (int64_t i = 0; i < map.box_outer; ++i)
    for (int64_t j = 0; j < map.box_inner; ++j) {
      const bool inside = y + i < map.outer && x + j < map.inner;
      uint16_t* from = inside ? map.data + (y + i) * (map.row_bytes / 2) + x + j : nullptr;
      element(from, swizzle(static_cast<uint32_t>(tile + i * 128 + j * 2)));
    }
}
inline void load(uint32_t tile, const void* map, int x, int y, uint32_t full, uint32_t mask = 0) {
  const auto* m = static_cast<const CUtensorMap*>(map);
  if (mask == 0) mask = 1u << g.current->rank;
  for (uint32_t rank = 0; rank < g.shared.size(); ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    const uint32_t base = rank * kWindow;
    g.copies.push_back({static_cast<int>(g.random() % 4), [=] {
                          const uint32_t to = base + tile % kWindow;
                          each(*m, x, y, to, [](const uint16_t* from, uint32_t place) {
                            const uint16_t value = from ? *from : 0;
                            std::memcpy(at(place), &value, 2);
                          });
                          Barrier& b = barrier(base + full % kWindow);
                          b.bytes -= static_cast<int>(m->box_inner * m->box_outer * 2);
                          complete(b);
                        }});
  }
}

inline void store(const void* map, int x, int y, uint32_t from) {
  g.current->stores.open.push_back({static_cast<const CUtensorMap*>(map), x, y, from});
}
inline void commit_stores() { g.current->stores.commit(); }
inline void wait_stores(size_t left) {
  auto& closed = g.current->stores.closed;
  for (; closed.size() > left; closed.pop_front())
    for (const Store& s : closed.front())
      each(*s.map, s.x, s.y, s.from, [](uint16_t* to, uint32_t place) {
        if (to) std::memcpy(to, at(place), 2);
      });
}

// cp.async: a thread's own copies.
inline void fetch(uint32_t to, const void* from, int bytes) {
  if (to % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) fail("not aligned");
  g.current->fetches.open.push_back({to, from, bytes});
}
inline void commit_fetches() { g.current->fetches.commit(); }
inline void wait_fetches(size_t left) {
  auto& closed = g.current->fetches.closed;
  for (; closed.size() > left; closed.pop_front())
    for (const Fetch& f : closed.front()) std::memcpy(at(f.to), f.from, f.bytes);
}

inline float as_float(uint16_t bits, bool bfloat) {
  if (bfloat) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  _Float16 x;
  std::memcpy(&x, &bits, 2);
  return static_cast<float>(x);
}
inline uint16_t as_half(float x, bool bfloat) {
  uint16_t bits;
  if (bfloat) {  // to the nearest, ties to even; NaN stays NaN
    uint32_t wide;
    std::memcpy(&wide, &x, 4);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  const auto half = static_cast<_Float16>(x);
  std::memcpy(&bits, &half, 2);
  return bits;
}

// An element of a tile that a matrix descriptor tells of (PTX ISA, "Matrix Descriptor Format" and
// "Strides"). Along k: rows of 128 bytes, 8 of them after each other, 8 rows after the stride.
// Along m or n ("transposed"): rows of 64 elements for each k, 8 k after each other, then the
// stride; the next 64 elements lie the leading offset away.
inline float element(uint64_t descriptor, int line, int k, bool transposed, bool bfloat) {
  if (descriptor >> 62 != 1) fail("only tiles swizzled by 128 bytes are emulated");
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t offset = transposed
                              ? line / 64 * leading + k / 8 * stride + k % 8 * 128 + line % 64 * 2
                              : line / 8 * stride + line % 8 * 128 + k * 2;
  uint16_t bits;
  std::memcpy(&bits, at(g.current->rank * kWindow + swizzle(start + offset)), 2);
  return as_float(bits, bfloat);
}
// A thread's part of a product 64 x columns x 16 (PTX ISA, "Register Fragments").
inline void carry_out(const Product& p) {
  const int thread = g.current->thread.x % 128, row = thread / 32 * 16 + thread % 32 / 4;
  float a[2][16];
  for (int k = 0; k < 16; ++k)
    for (int half = 0; half < 2; ++half)
      a[half][k] = element(p.a, row + 8 * half, k, false, p.bfloat);
  for (int i = 0; i < p.columns / 8; ++i)
    for (int j = 0; j < 2; ++j) {
      float sums[2] = {0, 0};
      for (int k = 0; k < 16; ++k) {
        const float b = element(p.b, i * 8 + thread % 4 * 2 + j, k, true, p.bfloat);
        for (int half = 0; half < 2; ++half) sums[half] += a[half][k] * b;
      }
      for (int half = 0; half < 2; ++half) {
        float& sum = p.sums[i * 4 + half * 2 + j];
        sum = p.add ? sum + sums[half] : sums[half];
      }
    }
}
inline void multiply(float* sums, int columns, bool bfloat, uint64_t a, uint64_t b, uint32_t add) {
  g.current->products.open.push_back({sums, columns, a, b, add != 0, bfloat});
}
inline void commit_products() { g.current->products.commit(); }
inline void wait_products(size_t left) {
  auto& closed = g.current->products.closed;
  for (; closed.size() > left; closed.pop_front())
    for (const Product& p : closed.front()) carry_out(p);
}

inline void store_matrices(uint32_t row, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  // Lane 8 i + r has the address of row r of matrix i; lane l holds row l / 4, columns 2 (l % 4).
  const int thread = g.current->thread.x, warp = thread / 32 * 32, lane = thread % 32;
  const size_t first = g.current->rank * (g.threads.size() / g.shared.size()) + warp;
  const int64_t which = 100000 + g.current->rank * 1000 + warp;
  g.slots[first + lane] = row;
  meet(which, 32);
  const uint32_t words[] = {w0, w1, w2, w3};
  for (int i = 0; i < 4; ++i)
    std::memcpy(at(static_cast<uint32_t>(g.slots[first + 8 * i + lane / 4])) + lane % 4 * 4,
                &words[i], 4);
  meet(which, 32);
}
inline void pack(uint32_t& word, float high, float low, bool bfloat) {
  word = static_cast<uint32_t>(as_half(high, bfloat)) << 16 | as_half(low, bfloat);
}

inline std::function<void()> g_kernel;
inline std::string g_error;

inline void thread_main() {
  try {
    g_kernel();
    const auto& t = *g.current;
    if (!t.products.closed.empty() || !t.products.open.empty()) fail("products not waited for");
    if (!t.stores.closed.empty() || !t.stores.open.empty()) fail("stores not waited for");
    if (!t.fetches.closed.empty() || !t.fetches.open.empty()) fail("copies not waited for");
  } catch (const std::exception& error) {
    g_error = error.what();
  }
  g.current->done = true;
  ++g.moves;
  swapcontext(&g.current->here, &g.scheduler);
}

// Runs the kernel as each thread of a cluster of blocks, neighbours along x from `first` on.
inline void run_cluster(Place first, int blocks, Place shape, unsigned seed) {
  const int threads = static_cast<int>(shape.x * shape.y);
  g.threads = std::vector<Thread>(blocks * threads);
  g.slots.assign(g.threads.size(), 0);
  g.shared.assign(blocks, std::vector<uchar>(kShared + 1024, 0xff));
  g.barriers.clear();
  g.meetings.clear();
  g.copies.clear();
  g.random.seed(seed);
  for (int i = 0; i < blocks * threads; ++i) {
    Thread& t = g.threads[i];
    t.rank = i / threads;
    const unsigned number = static_cast<unsigned>(i % threads);
    t.thread = {number % shape.x, number / shape.x, 0};
    t.block = {first.x + static_cast<unsigned>(t.rank), first.y, 0};
    getcontext(&t.here);
    t.here.uc_stack.ss_sp = t.stack.get();
    t.here.uc_stack.ss_size = kStack;
    t.here.uc_link = nullptr;
    makecontext(&t.here, thread_main, 0);
  }
  for (size_t done = 0; done < g.threads.size();) {
    const int64_t before = g.moves;
    done = 0;
    for (Thread& t : g.threads) {
      if (!t.done) {
        g.current = &t;
        threadIdx = t.thread;
        blockIdx = t.block;
        swapcontext(&g.scheduler, &t.here);
        if (!g_error.empty()) throw std::runtime_error(g_error);
      }
      done += t.done;
    }
    const bool waiting = !g.copies.empty();
    std::vector<Copy> ready, later;
    for (Copy& c : g.copies) (c.delay-- <= 0 ? ready : later).push_back(std::move(c));
    g.copies = std::move(later);
    for (Copy& c : ready) c.arrive();
    if (done == g.threads.size() && waiting) fail("copies into a block that has ended");
    if (g.moves == before && !waiting && done < g.threads.size()) fail("a deadlock");
  }
}

}  // namespace late

inline uint32_t __cvta_generic_to_shared(const void* p) { return late::address(p); }
inline void __syncthreads() { late::meet_block(); }
// Of lane 0, for a value that all lanes of a warp have.
inline int __shfl_sync(unsigned, int value, int, int) { return value; }
