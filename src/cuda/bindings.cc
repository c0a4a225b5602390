// The Python module `_cuda`.
#include "common/bind.h"
#include "common/blocks.h"
#include "common/device.h"
#include "cuda/cublas.h"
#include "cuda/memory.h"
#include "cuda/transfer.h"

namespace py = pybind11;

namespace needle {
namespace {

// A stream, kept as long as its Python object.
class OwnedStream {
 public:
  explicit OwnedStream(int device) : stream_(cuda::take_stream(checked_device(device))) {}
  ~OwnedStream() { cuda::give_stream(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  cuda::Stream* get() const { return stream_; }

 private:
  cuda::Stream* stream_;
};

// Returns DLPack's number for a stream.
int64_t number_of(const cuda::Stream& s) {
  if (s.handle == cudaStreamLegacy) return 1;
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(s.handle));
}

// Sets the stream for the calling thread's work.
void use_stream(const OwnedStream* stream, int device) {
  checked_device(device);
  if (stream != nullptr && stream->get()->device != device)
    throw std::invalid_argument("use_stream: the stream is of device " +
                                std::to_string(stream->get()->device) + ", not " +
                                std::to_string(device));
  cuda::set_current_stream(device, stream != nullptr ? stream->get() : nullptr);
}

void synchronize(int device) {
  checked_device(device);
  {
    MaybeReleaseGil gil(true);
    cuda::synchronize(device);
  }
  poll_foreign();
}

py::dict memory_stats(int device) {
  const cuda::MemoryStats s = cuda::memory_stats(checked_device(device));
  py::dict d;
  d["allocated"] = memory_allocated(device);
  d["max_allocated"] = max_memory_allocated(device);
  d["reserved"] = s.reserved;
  d["max_reserved"] = s.peak;
  d["cached"] = s.cached;
  d["mallocs"] = s.mallocs;
  d["limit"] = s.limit < 0 ? py::object(py::none()) : py::object(py::int_(s.limit));
  return d;
}

// None means no limit.
void set_memory_limit(const py::object& limit, int device) {
  const int64_t bytes = limit.is_none() ? INT64_MAX : py::cast<int64_t>(limit);
  if (bytes < 0)
    throw std::invalid_argument("set_memory_limit: " + std::to_string(bytes) + " is below 0");
  cuda::set_memory_limit(checked_device(device), bytes);
}

}  // namespace
}  // namespace needle

PYBIND11_MODULE(_cuda, m) {
  using namespace needle;
  cuda::init_cublas();
  bind(m);
  const auto device = py::arg("device") = 0;
  m.def("device_count", &cuda::device_count);
  m.def("synchronize", &needle::synchronize, device);
  py::class_<OwnedStream>(m, "Stream", py::is_final())
      .def(py::init<int>(), device)
      .def_property_readonly("device", [](const OwnedStream& s) { return s.get()->device; })
      .def_property_readonly("handle", [](const OwnedStream& s) { return number_of(*s.get()); })
      .def("synchronize", [](const OwnedStream& s) {
        MaybeReleaseGil gil(true);
        cuda::Mark(s.get()->device, s.get()->handle).wait();
      });
  m.def("use_stream", &use_stream, py::arg("stream"), device);
  m.def(
      "current_stream", [](int on) { return number_of(*cuda::current_stream(checked_device(on))); },
      device);
  m.def("memory_stats", &needle::memory_stats, device);
  m.def("set_memory_limit", &needle::set_memory_limit, py::arg("bytes"), device);
  m.def("transfer", [](const View& x, int on) { return cuda::transfer(x, checked_device(on)); });
  m.def("blas", &cuda::blas_status);
  m.def("allow_tf32", &cuda::allow_tf32);
  m.def("tf32_allowed", &cuda::tf32_allowed);
  m.def("add_library_folders", [](const py::iterable& folders) {
    std::vector<std::string> all;
    for (py::handle folder : folders) all.push_back(py::cast<std::string>(folder));
    cuda::add_library_folders(std::move(all));
  });
#ifdef NEEDLE_CUDA_EMULATED
  m.attr("emulated") = true;
  m.def("fail", [](int64_t after, bool memory) {
    emulated::fail(after, memory ? cudaErrorMemoryAllocation : cudaErrorLaunchFailure);
  });
#else
  m.attr("emulated") = false;
#endif
}
