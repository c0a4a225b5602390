// Copies to and from the host go through pinned memory. The device reads and writes it without the
// host, so Python's arrays may be changed as soon as a call returns.
#include "cuda/transfer.h"

#include <algorithm>
#include <cstring>

#include "common/blocks.h"
#include "common/device.h"

namespace needle {
namespace cuda {

namespace {

constexpr int64_t kStage = 4 << 20;  // bytes of each half; one is copied while the other is filled

struct Staging {
  std::mutex mutex;
  char* half[2] = {};
  Mark used[2];

  char* get(int which) {
    if (half[which] == nullptr) {
      void* memory = nullptr;
      check(cudaMallocHost(&memory, kStage), "getting pinned memory");
      half[which] = static_cast<char*>(memory);
    }
    used[which].wait();
    return half[which];
  }
};

Staging& staging_of(int device) {
  static Staging* all = new Staging[kMaxDevices];
  return all[device];
}

template <class T>
void move_row(const char* from, int64_t step, char* to, int64_t to_step, int64_t n) {
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) y[i * to_step] = x[i * step];
}

// Copies n elements of `size` bytes, `step` elements apart in `from` and `to_step` in `to`.
void move(const char* from, int64_t step, char* to, int64_t to_step, int64_t n, int64_t size) {
  if (step == 1 && to_step == 1) {
    std::memcpy(to, from, static_cast<size_t>(n * size));
    return;
  }
  switch (size) {
    case 1:
      return move_row<uint8_t>(from, step, to, to_step, n);
    case 2:
      return move_row<uint16_t>(from, step, to, to_step, n);
    case 4:
      return move_row<uint32_t>(from, step, to, to_step, n);
    default:
      return move_row<uint64_t>(from, step, to, to_step, n);
  }
}

template <class T>
void widen(const char* data, int64_t n, IndexRange* range) {
  const T* x = reinterpret_cast<const T*>(data);
  const auto [low, high] = std::minmax_element(x, x + n);
  range->low = std::min<int64_t>(range->low, *low);
  range->high = std::max<int64_t>(range->high, *high);
}

}  // namespace

void read(const View& v, void* to) {
  auto buffer = std::make_shared<Buffer>(to, v.size() * itemsize(v.dtype()), [] {}, kHost);
  device::download(v, View(std::move(buffer), v.dtype(), v.shape(), compact_strides(v.shape()), 0));
}

View transfer(const View& v, int device) {
  const View from = nd::compact(v);
  View out = View::empty(v.dtype(), v.shape(), device);
  if (out.size() == 0) return out;
  const Work work("copy between devices", {&out, &from});
  work.check(cudaMemcpyPeerAsync(out.data(), device, from.data(), v.device(),
                                 static_cast<size_t>(out.size() * itemsize(v.dtype())),
                                 work.stream()));
  // The source goes back to a stream of its own device, because freed memory is kept by stream.
  Stream* own = current_stream(v.device());
  wait_for(*own, {device, work.stream()});
  from.buffer()->stream().store(own);
  return out;
}

}  // namespace cuda

namespace device {

bool waits() { return true; }

void upload(const View& host, const View& to) {
  using namespace cuda;
  const int64_t size = itemsize(to.dtype()), per_stage = kStage / size;
  const bool index = to.dtype() == DType::int32 || to.dtype() == DType::int64;
  IndexRange range{to.dtype(), INT64_MAX, INT64_MIN};
  const Loop<1> loop(host.shape(), {host.strides()});
  const OnDevice on(to.device());
  Staging& staging = staging_of(to.device());
  std::lock_guard<std::mutex> lock(staging.mutex);
  int which = 0;
  for (int64_t begin = 0; begin < loop.total; begin += per_stage, which ^= 1) {
    const int64_t end = std::min(begin + per_stage, loop.total);
    char* const stage = staging.get(which);
    char* at = stage;
    loop.run(begin, end, [&](const int64_t* offset, int64_t n) {
      move(host.data() + offset[0] * size, loop.inner(0), at, 1, n, size);
      at += n * size;
    });
    if (index && size == 4) widen<int32_t>(stage, end - begin, &range);
    if (index && size == 8) widen<int64_t>(stage, end - begin, &range);
    const Work work("from_numpy", {&to});
    work.check(cudaMemcpyAsync(to.data() + begin * size, stage,
                               static_cast<size_t>((end - begin) * size), cudaMemcpyHostToDevice,
                               work.stream()));
    staging.used[which] = Mark(to.device(), work.stream());
  }
  if (index) to.buffer()->note_range(range);
}

void download(const View& v, const View& host) {
  using namespace cuda;
  const View from = nd::compact(v);
  const int64_t size = itemsize(v.dtype()), per_stage = kStage / size;
  const Loop<1> loop(host.shape(), {host.strides()});
  const OnDevice on(v.device());
  Staging& staging = staging_of(v.device());
  std::lock_guard<std::mutex> lock(staging.mutex);
  auto request = [&](int64_t begin, int which) {
    const int64_t n = std::min(per_stage, loop.total - begin);
    char* const stage = staging.get(which);
    const Work work("numpy", {&from});
    work.check(cudaMemcpyAsync(stage, from.data() + begin * size, static_cast<size_t>(n * size),
                               cudaMemcpyDeviceToHost, work.stream()));
    staging.used[which] = Mark(v.device(), work.stream());
  };
  int which = 0;
  request(0, which);
  for (int64_t begin = 0; begin < loop.total; begin += per_stage, which ^= 1) {
    if (begin + per_stage < loop.total) request(begin + per_stage, which ^ 1);
    const char* at = staging.get(which);
    loop.run(begin, std::min(begin + per_stage, loop.total), [&](const int64_t* offset, int64_t n) {
      move(at, 1, const_cast<char*>(host.data()) + offset[0] * size, loop.inner(0), n, size);
      at += n * size;
    });
  }
}

void take_over(const Buffer& buffer) {
  buffer.stream().store(cuda::current_stream(buffer.device()));
}

void hand_over(const Buffer& buffer, int64_t stream) {
  auto* last = static_cast<cuda::Stream*>(buffer.stream().load());
  if (stream == -1 || last == nullptr) return;
  const cuda::Stream consumer{buffer.device(), cuda::foreign_stream(stream)};
  if (consumer.handle != last->handle || consumer.device != last->device)
    cuda::wait_for(consumer, *last);
}

void taken_back(const Buffer& buffer, int64_t stream) noexcept {
  auto* last = static_cast<cuda::Stream*>(buffer.stream().load());
  if (stream == -1 || last == nullptr) return;
  const cuda::Stream consumer{buffer.device(), cuda::foreign_stream(stream)};
  if (consumer.handle == last->handle && consumer.device == last->device) return;
  try {
    cuda::wait_for(*last, consumer);
  } catch (const std::exception&) {
    cudaDeviceSynchronize();  // the consumer's stream no longer exists, so the host waits
  }
}

}  // namespace device
}  // namespace needle
