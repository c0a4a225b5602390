#include <algorithm>
#include <stdexcept>

#include "common/functions.h"
#include "cpu/kernel_table.h"
#include "cpu/scan.h"
#include "cpu/scratch.h"
#include "threads/thread_pool.h"

namespace needle {

namespace {

constexpr int64_t kPiece = 1024;  // blocks; takes some microseconds

}  // namespace

View philox(const View& state, int64_t count, bool wide) {
  if (state.dtype() != DType::int64 || state.size() != 2 || !state.is_compact())
    throw TypeError("philox: the state is not int64 (2,)");
  if (count < 0 || count > INT64_MAX / 16)
    throw std::invalid_argument("philox: the count is out of range");
  const auto* given = reinterpret_cast<const uint64_t*>(state.data());
  const uint64_t key = given[0], first = given[1];
  Dims shape;
  shape.push(count);
  View out = View::empty(wide ? DType::float64 : DType::float32, shape, state.device());
  // Word number j of the stream is word j / blocks of block j % blocks, so neighbours come from
  // neighbouring blocks, which vectors compute side by side.
  const int64_t words = wide ? 2 * count : count, blocks = (words + 3) / 4;
  const auto kernel = kernels().philox;
  if (wide) {
    const device::Scratch memory = device::scratch(
        {blocks, 4, int64_t{sizeof(uint32_t)}}, "philox: cannot allocate memory for random words");
    auto* word = reinterpret_cast<uint32_t*>(memory.get());
    parallel_for(blocks, kPiece, [=](int64_t begin, int64_t end) {
      kernel(key, first + begin, end - begin, word + begin, blocks);
    });
    auto* to = reinterpret_cast<double*>(out.data());
    parallel_for(count, 4 * kPiece, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t high = word[i], low = word[count + i];
        to[i] = static_cast<double>(static_cast<int64_t>((high << 32 | low) >> 11)) * 0x1p-53;
      }
    });
    return out;
  }
  auto* to = reinterpret_cast<float*>(out.data());
  parallel_for(blocks, kPiece, [=](int64_t begin, int64_t end) {
    uint32_t word[4 * kPiece];
    for (int64_t b = begin; b < end; b += kPiece) {
      const int64_t n = std::min(kPiece, end - b);
      kernel(key, first + b, n, word, kPiece);
      for (int64_t w = 0; w < 4; ++w) {
        const int64_t from = w * blocks + b, there = std::clamp<int64_t>(count - from, 0, n);
        const uint32_t* x = word + w * kPiece;
        for (int64_t i = 0; i < there; ++i)
          to[from + i] = static_cast<float>(static_cast<int32_t>(x[i] >> 8)) * 0x1p-24f;
      }
    }
  });
  return out;
}

}  // namespace needle
