#include <algorithm>
#include <cstring>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

constexpr int64_t kShort = 8, kBlock = 256;

const char* at(const View& v, int64_t offset) { return v.data() + offset * itemsize(v.dtype()); }

}  // namespace

int count() { return 1; }
int host_index() { return 0; }
bool waits() { return false; }
bool casts(DType, DType) { return true; }
bool computes(DType) { return true; }

void upload(const View& host, const View& to) { nd::copy(host, to); }
void download(const View& from, const View& host) { nd::copy(from, host); }

void copy(const Loop<2>& loop, const View& from, const View& to, bool ordered) {
  CastRow row = kernels().cast[static_cast<int>(from.dtype())][static_cast<int>(to.dtype())];
  const int64_t sx = loop.inner(0), sy = loop.inner(1);
  auto piece = [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(at(from, offset[0]), sx, const_cast<char*>(at(to, offset[1])), sy, n);
    });
  };
  // If elements share memory, one thread writes them in order.
  if (ordered) return piece(0, loop.total);
  const int64_t last = loop.shape[loop.ndim - 1];
  if (loop.ndim > 1 && last < kShort && loop.total > 0) {
    // Each run has a fixed cost, so run along the last axis but one, some cache lines at a time.
    const Loop<2> outer = loop.outer();
    parallel_for(outer.total, kGrain / last, [&](int64_t begin, int64_t end) {
      outer.run(begin, end, [&](const int64_t* offset, int64_t n) {
        for (int64_t i = 0; i < n; i += kBlock)
          for (int64_t r = 0; r < last; ++r)
            row(at(from, offset[0] + i * outer.inner(0) + r * sx), outer.inner(0),
                const_cast<char*>(at(to, offset[1] + i * outer.inner(1) + r * sy)), outer.inner(1),
                std::min(n - i, kBlock));
      });
    });
    return;
  }
  parallel_for(loop.total, kGrain, piece);
}

void fill(const Loop<1>& loop, const Element& value, const View& to) {
  CastRow row = kernels().cast[static_cast<int>(to.dtype())][static_cast<int>(to.dtype())];
  auto piece = [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(&value, 0, const_cast<char*>(at(to, offset[0])), loop.inner(0), n);
    });
  };
  if (to.self_overlapping()) return piece(0, loop.total);
  parallel_for(loop.total, kGrain, piece);
}

void fill_bytes(const View& to, int byte) {
  std::memset(to.data(), byte, static_cast<size_t>(to.size() * itemsize(to.dtype())));
}

void unary(Unary op, const Loop<2>& loop, const View& x, const View& out) {
  UnaryRow row = kernels().unary[static_cast<int>(op)][static_cast<int>(x.dtype())];
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(at(x, offset[0]), loop.inner(0), const_cast<char*>(at(out, offset[1])), n);
    });
  });
}

void binary(Binary op, DType t, const Loop<3>& loop, const Input& a, const Input& b,
            const View& out) {
  BinaryRow row = kernels().binary[static_cast<int>(op)][static_cast<int>(t)];
  const int64_t size = itemsize(t), out_size = itemsize(out.dtype());
  const int64_t sa = loop.inner(0), sb = loop.inner(1);
  const char *x = a.data(), *y = b.data();
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(x + offset[0] * size, sa, y + offset[1] * size, sb, out.data() + offset[2] * out_size, n);
    });
  });
}

void where(const Loop<4>& loop, const View& mask, const Input& a, const Input& b, const View& out) {
  WhereRow row = kernels().where[static_cast<int>(out.dtype())];
  const int64_t size = itemsize(out.dtype());
  const char *x = a.data(), *y = b.data();
  parallel_for(loop.total, kGrain, [&](int64_t begin, int64_t end) {
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      row(reinterpret_cast<const uint8_t*>(mask.data()) + offset[0], loop.inner(0),
          x + offset[1] * size, loop.inner(1), y + offset[2] * size, loop.inner(2),
          out.data() + offset[3] * size, n);
    });
  });
}

int64_t least(const View& x) {
  Dims all;
  for (int i = 0; i < x.ndim(); ++i) all.push(i);
  const View found = nd::cast(nd::reduce(Reduction::min, x, all, false), DType::int64);
  return *reinterpret_cast<const int64_t*>(found.data());
}

dlpack::DeviceRef dlpack_device(const Buffer&) { return {dlpack::kCpu, 0}; }

std::optional<int> device_of_dlpack(dlpack::DeviceRef ref, std::string* why) {
  if (ref.type == dlpack::kCpu || ref.type == dlpack::kCudaHost) return 0;
  *why = "memory of DLPack device type " + std::to_string(ref.type) + " is not CPU memory";
  return std::nullopt;
}

void take_over(const Buffer&) {}
void hand_over(const Buffer&, int64_t) {}
void taken_back(const Buffer&, int64_t) noexcept {}

}  // namespace device
}  // namespace needle
