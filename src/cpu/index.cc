// Gather, scatter and the optimizers' updates.
#include <atomic>
#include <cstring>
#include <vector>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

Dims without(const Dims& dims, int64_t axis, int count) {
  Dims out;
  for (int i = 0; i < dims.ndim; ++i)
    if (i < axis || i >= axis + count) out.push(dims[i]);
  return out;
}

// Returns the offset of each index position in a view of shape (pre, index..., post).
std::vector<int64_t> index_offsets(const View& x, int64_t axis, const View& index) {
  Dims shape, strides;
  for (int i = 0; i < index.ndim(); ++i) {
    shape.push(x.shape()[static_cast<int>(axis) + i]);
    strides.push(x.strides()[static_cast<int>(axis) + i]);
  }
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(index.size()));
  Loop<1> loop(shape, {strides});
  loop.run(0, index.size(), [&](const int64_t* offset, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out.push_back(offset[0] + i * loop.inner(0));
  });
  return out;
}

}  // namespace

Positions positions(const View& index, int64_t extent, const char* what) {
  View wide =
      index.dtype() == DType::int64 && index.is_compact() ? index : nd::cast(index, DType::int64);
  const int64_t* p = reinterpret_cast<const int64_t*>(wide.data());
  Positions at;
  std::vector<int64_t>& out = at.host;
  out.resize(static_cast<size_t>(wide.size()));
  std::atomic<bool> outside{false};
  parallel_for(wide.size(), kGrain, [&](int64_t begin, int64_t end) {
    bool good = true;
    for (int64_t i = begin; i < end; ++i) {
      good &= p[i] >= -extent && p[i] < extent;
      out[i] = p[i] < 0 ? p[i] + extent : p[i];
    }
    if (!good) outside = true;
  });
  for (int64_t i = 0; outside && i < wide.size(); ++i)
    if (p[i] < -extent || p[i] >= extent)
      throw std::out_of_range(std::string(what) + ": index " + std::to_string(p[i]) +
                              " is out of bounds for an axis of extent " + std::to_string(extent));
  return at;
}

void gather(const View& x, const Positions& positions, const View& index, int64_t axis,
            const View& out) {
  const std::vector<int64_t>& where = positions.host;
  int64_t before = 1, after = 1;
  for (int i = 0; i < x.ndim(); ++i) {
    if (i < axis) before *= x.shape()[i];
    if (i > axis) after *= x.shape()[i];
  }
  const int64_t step = x.strides()[static_cast<int>(axis)], size = itemsize(x.dtype());
  Loop<2> rest(without(x.shape(), axis, 1),
               {without(x.strides(), axis, 1), without(out.strides(), axis, index.ndim())});
  CastRow row = kernels().cast[static_cast<int>(x.dtype())][static_cast<int>(x.dtype())];
  int64_t n = static_cast<int64_t>(where.size());
  if (before == 1 && rest.ndim == 1 && rest.inner(0) == 1) {  // whole rows
    parallel_for(n, std::max<int64_t>(1, kGrain / rest.total), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        std::memcpy(out.data() + i * after * size, x.data() + where[i] * step * size, after * size);
    });
    return;
  }
  parallel_for(n, std::max<int64_t>(1, kGrain / rest.total), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      rest.run(0, rest.total, [&](const int64_t* offset, int64_t length) {
        row(x.data() + (where[i] * step + offset[0]) * size, rest.inner(0),
            out.data() + (i * after + offset[1]) * size, rest.inner(1), length);
      });
  });
}

void scatter(const View& dst, const Positions& positions, const View& index, const View& from,
             int64_t axis, bool accumulate) {
  const std::vector<int64_t>& where = positions.host;
  std::vector<int64_t> read = index_offsets(from, axis, index);
  const int64_t step = dst.strides()[static_cast<int>(axis)], size = itemsize(dst.dtype());
  Loop<2> rest(without(dst.shape(), axis, 1),
               {without(from.strides(), axis, index.ndim()), without(dst.strides(), axis, 1)});
  int t = static_cast<int>(dst.dtype());
  CastRow assign = kernels().cast[t][t];
  AddToRow add = kernels().add_to[t];
  // Threads divide the other axes, so additions are in index order, and the result does not depend
  // on the number of threads.
  auto piece = [&](int64_t begin, int64_t end) {
    for (size_t i = 0; i < where.size(); ++i)
      rest.run(begin, end, [&](const int64_t* offset, int64_t length) {
        const char* x = from.data() + (read[i] + offset[0]) * size;
        char* y = dst.data() + (where[i] * step + offset[1]) * size;
        if (accumulate) {
          add(x, rest.inner(0), y, rest.inner(1), length);
        } else {
          assign(x, rest.inner(0), y, rest.inner(1), length);
        }
      });
  };
  if (dst.self_overlapping()) return piece(0, rest.total);
  int64_t grain = std::max<int64_t>(16, kGrain / static_cast<int64_t>(where.size()));
  parallel_for(rest.total, grain, piece);
}

void sgd_step(const View& param, const View& grad, const View* velocity, const SgdFactors& f) {
  SgdRow row = kernels().sgd[static_cast<int>(param.dtype())];
  const int64_t size = itemsize(param.dtype());
  const int64_t state_size = itemsize(compute_type(param.dtype()));
  char *p = param.data(), *g = grad.data(), *v = velocity ? velocity->data() : nullptr;
  parallel_for(param.size(), kGrain, [&](int64_t begin, int64_t end) {
    row(p + begin * size, g + begin * size, v ? v + begin * state_size : nullptr, end - begin, f);
  });
}

void adam_step(const View& param, const View& grad, const View& m, const View& v,
               const AdamFactors& f) {
  AdamRow row = kernels().adam[static_cast<int>(param.dtype())];
  const int64_t size = itemsize(param.dtype());
  const int64_t state_size = itemsize(compute_type(param.dtype()));
  parallel_for(param.size(), kGrain, [&](int64_t begin, int64_t end) {
    row(param.data() + begin * size, grad.data() + begin * size, m.data() + begin * state_size,
        v.data() + begin * state_size, end - begin, f);
  });
}

}  // namespace device
}  // namespace needle
