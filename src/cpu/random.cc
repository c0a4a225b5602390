#include <algorithm>
#include <array>
#include <stdexcept>

#include "common/functions.h"
#include "cpu/scan.h"
#include "cpu/thread_pool.h"

namespace needle {

namespace {

using Words = std::array<uint32_t, 4>;

// Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (2011), section 4.3.
inline Words philox_block(uint64_t key, uint64_t counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  Words x = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x[0], b = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return x;
}

constexpr int64_t kPiece = 1024;  // blocks, some microseconds

}  // namespace

View philox(const View& state, int64_t count, bool wide) {
  if (state.dtype() != DType::int64 || state.size() != 2 || !state.is_compact())
    throw TypeError("philox: the state is not int64 (2,)");
  if (count < 0 || count > INT64_MAX / 16) throw std::invalid_argument("philox: the count is out of range");
  const auto* given = reinterpret_cast<const uint64_t*>(state.data());
  const uint64_t key = given[0], first = given[1];
  Dims shape;
  shape.push(count);
  View out = View::empty(wide ? DType::float64 : DType::float32, shape, state.device());
  // Word number j of the stream is word j / blocks of block j % blocks, so that neighbours come
  // from neighbouring blocks, which vectors compute side by side.
  const int64_t words = wide ? 2 * count : count, blocks = (words + 3) / 4;
  if (wide) {
    auto* to = reinterpret_cast<double*>(out.data());
    parallel_for(count, kPiece, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = count + i;
        const uint64_t high = philox_block(key, first + i % blocks)[i / blocks];
        const uint64_t low = philox_block(key, first + j % blocks)[j / blocks];
        to[i] = static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
      }
    });
    return out;
  }
  auto* to = reinterpret_cast<float*>(out.data());
  parallel_for(blocks, kPiece, [=](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Words x = philox_block(key, first + b);
      for (int64_t w = 0; w < 4; ++w) {
        const int64_t j = w * blocks + b;
        if (j < count) to[j] = static_cast<float>(x[w] >> 8) * 0x1p-24f;
      }
    }
  });
  return out;
}

}  // namespace needle
