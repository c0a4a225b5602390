#include <algorithm>
#include <cstring>

#include "common/device.h"
#include "cpu/kernel_table.h"
#include "threads/thread_pool.h"

namespace needle {
namespace device {

namespace {

// If a reduction is long enough for threads, its pieces have at least this many elements. The cuts
// do not depend on the number of threads, so the result does not depend on it either.
constexpr int64_t kChunk = 32768;
constexpr int64_t kMaxChunks = 64;
constexpr int64_t kTile = 512;  // accumulators per pass of a column reduction

void start(Reduction op, DType t, void* acc, int64_t n) {
  bool one = op == Reduction::prod;
  if (t == DType::float64) {
    std::fill_n(static_cast<double*>(acc), n, one ? 1.0 : 0.0);
  } else {
    std::fill_n(static_cast<int64_t*>(acc), n, one ? 1 : 0);
  }
}

}  // namespace

View reduce(Reduction op, const View& x, const Split& s, DType out_type) {
  Loop<1> kept(s.kept, {s.kept_strides}), reduced(s.reduced, {s.reduced_strides});
  const bool selects = op == Reduction::max || op == Reduction::min;
  const int64_t outputs = kept.total, length = reduced.total;
  DType acc_type = out_type;
  if (!selects) acc_type = is_floating(out_type) ? DType::float64 : DType::int64;
  const bool columns =
      outputs > 1 && length > 0 && std::llabs(kept.inner(0)) < std::llabs(reduced.inner(0));
  const int64_t work = outputs * length;
  const int64_t enough_outputs = columns ? 16 * kTile : 32;
  int64_t chunks = 1;
  if (outputs < enough_outputs && outputs > 0)
    chunks =
        std::clamp<int64_t>(work / kChunk, 1, std::min(kMaxChunks, std::max<int64_t>(length, 1)));
  Dims flat;
  flat.push(chunks);
  flat.push(outputs);
  View acc = View::empty(acc_type, flat, 0);
  const int t = static_cast<int>(x.dtype());
  const ReduceRow row = kernels().reduce_row[static_cast<int>(op)][t];
  const ReduceColumns column = kernels().reduce_columns[static_cast<int>(op)][t];
  const CastRow move = kernels().cast[t][t];
  const int64_t size = itemsize(x.dtype()), acc_size = itemsize(acc_type);
  const char* data = x.data();

  // Reduces outputs [begin, end) over the part [from, to) of the reduction axes.
  auto part = [&](int64_t begin, int64_t end, int64_t from, int64_t to, char* out) {
    if (!selects) start(op, acc_type, out + begin * acc_size, end - begin);
    int64_t done = begin;
    kept.run(begin, end, [&](const int64_t* base, int64_t run) {
      for (int64_t tile = 0; tile < run; tile += columns ? kTile : 1) {
        const int64_t n = columns ? std::min(kTile, run - tile) : 1;
        const char* first = data + (base[0] + tile * kept.inner(0)) * size;
        char* to_acc = out + done * acc_size;
        done += n;
        bool fresh = selects;
        reduced.run(from, to, [&](const int64_t* offset, int64_t count) {
          const char* p = first + offset[0] * size;
          if (fresh) move(p, columns ? kept.inner(0) : 0, to_acc, 1, n);
          fresh = false;
          if (!columns) return row(p, reduced.inner(0), to_acc, count);
          for (int64_t i = 0; i < count; ++i)
            column(p + i * reduced.inner(0) * size, kept.inner(0), to_acc, n);
        });
      }
    });
  };

  if (chunks == 1) {
    int64_t grain = std::max<int64_t>(columns ? 64 : 1, kGrain / std::max<int64_t>(length, 1));
    parallel_for(outputs, grain,
                 [&](int64_t begin, int64_t end) { part(begin, end, 0, length, acc.data()); });
  } else {
    parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c)
        part(0, outputs, length * c / chunks, length * (c + 1) / chunks,
             acc.data() + c * outputs * acc_size);
    });
    const ReduceColumns combine =
        kernels().reduce_columns[static_cast<int>(op)][static_cast<int>(acc_type)];
    for (int64_t c = 1; c < chunks; ++c)
      combine(acc.data() + c * outputs * acc_size, 1, acc.data(), outputs);
  }
  View result(acc.buffer(), acc_type, s.shape, compact_strides(s.shape), 0);
  return acc_type == out_type ? result : nd::cast(result, out_type);
}

void arg_reduce(bool max, const View& x, const Split& s, const View& out) {
  const int64_t n = s.reduced[0], stride = s.reduced_strides[0], size = itemsize(x.dtype());
  const ArgRow row = (max ? kernels().argmax : kernels().argmin)[static_cast<int>(x.dtype())];
  int64_t* to = reinterpret_cast<int64_t*>(out.data());
  Loop<1> kept(s.kept, {s.kept_strides});
  parallel_for(kept.total, std::max<int64_t>(1, kGrain / n), [&](int64_t begin, int64_t end) {
    int64_t at = begin;
    kept.run(begin, end, [&](const int64_t* base, int64_t run) {
      for (int64_t i = 0; i < run; ++i)
        to[at++] = row(x.data() + (base[0] + i * kept.inner(0)) * size, stride, n);
    });
  });
}

}  // namespace device
}  // namespace needle
