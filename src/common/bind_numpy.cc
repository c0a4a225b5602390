// Conversion between views and NumPy arrays, through Python's buffer protocol.
#include <cstring>
#include <optional>

#include "common/bind.h"
#include "common/device.h"

namespace py = pybind11;

namespace needle {

namespace {

// NumPy's bfloat16 comes from ml_dtypes and cannot be exported as a buffer: its elements are passed
// as integers of the same size.
constexpr const char* kRawHalf = "uint16";

bool is_bfloat16(py::handle array) {
  py::object dtype = py::getattr(array, "dtype", py::none());
  return std::string(py::str(dtype)) == name(DType::bfloat16);
}

}  // namespace

// Reads any buffer in native byte order; NumPy first copies misaligned elements.
View from_numpy(py::handle source, int on) {
  checked_device(on);
  Py_buffer b;
  py::object raw;
  if (PyObject_GetBuffer(source.ptr(), &b, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    py::error_already_set refusal;
    if (!is_bfloat16(source) || !py::hasattr(source, "view")) throw refusal;
    raw = source.attr("view")(kRawHalf);
    source = raw;
    if (PyObject_GetBuffer(source.ptr(), &b, PyBUF_STRIDES | PyBUF_FORMAT) != 0)
      throw py::error_already_set();
  }
  const bool bfloat16 = static_cast<bool>(raw);
  struct Release {
    Py_buffer* b;
    ~Release() { PyBuffer_Release(b); }
  } release{&b};
  const char* format = b.format == nullptr ? "B" : b.format;
  std::optional<DType> dtype;
  // Sizes come from itemsize, so a format's prefix matters only if it swaps bytes.
  const char* native = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? "@=<" : "@=>";
  if (*format != '\0' && std::strchr(native, *format) != nullptr) ++format;
  const char c = std::strlen(format) == 1 ? format[0] : '\0';
  if (c == 'b' && b.itemsize == 1) dtype = DType::int8;
  if (c == 'B' && b.itemsize == 1) dtype = DType::uint8;
  if (c == 'h' && b.itemsize == 2) dtype = DType::int16;
  if (c == 'H' && b.itemsize == 2) dtype = DType::uint16;
  if (bfloat16 && b.itemsize == 2) dtype = DType::bfloat16;
  if (c == 'e' && b.itemsize == 2) dtype = DType::float16;
  if (c == 'f' && b.itemsize == 4) dtype = DType::float32;
  if (c == 'd' && b.itemsize == 8) dtype = DType::float64;
  if (c == '?' && b.itemsize == 1) dtype = DType::boolean;
  if ((c == 'i' || c == 'l' || c == 'q') && b.itemsize == 4) dtype = DType::int32;
  if ((c == 'i' || c == 'l' || c == 'q') && b.itemsize == 8) dtype = DType::int64;
  if (!dtype)
    throw TypeError(std::string("from_numpy: element format '") + format + "' is not supported");
  if (b.ndim > kMaxDims)
    throw std::invalid_argument("from_numpy: more than " + std::to_string(kMaxDims) +
                                " dimensions");
  Dims shape, strides;
  int64_t low = 0, high = 0;
  bool aligned = reinterpret_cast<uintptr_t>(b.buf) % static_cast<size_t>(b.itemsize) == 0;
  for (int i = 0; i < b.ndim; ++i) {
    shape.push(b.shape[i]);
    aligned = aligned && (b.shape[i] <= 1 || b.strides[i] % b.itemsize == 0);
    strides.push(b.strides[i] / b.itemsize);
    (strides[i] < 0 ? low : high) += (b.shape[i] - 1) * strides[i];
  }
  if (!aligned) {  // a new array is aligned, so the recursion ends
    py::object fresh = py::module_::import("numpy").attr("array")(source);
    return from_numpy(bfloat16 ? fresh.attr("view")(name(DType::bfloat16)) : fresh, on);
  }
  View out = View::empty(*dtype, shape, on);
  if (out.size() == 0) return out;
  auto foreign = std::make_shared<Buffer>(
      static_cast<char*>(b.buf) + low * b.itemsize, (high - low + 1) * b.itemsize, [] {},
      device::host_index());
  View in(std::move(foreign), *dtype, shape, strides, -low);
  MaybeReleaseGil gil(large(out.size()));
  device::upload(in, out);
  return out;
}

namespace {

// Copies into a NumPy array made below (compact, right dtype); this avoids NumPy's C API.
void to_buffer(const View& v, py::handle target) {
  Py_buffer b;
  if (PyObject_GetBuffer(target.ptr(), &b, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) != 0)
    throw py::error_already_set();
  struct Release {
    Py_buffer* b;
    ~Release() { PyBuffer_Release(b); }
  } release{&b};
  if (b.len != v.size() * itemsize(v.dtype()))
    throw std::invalid_argument("to_numpy: the target has another size");
  if (b.len == 0) return;
  auto foreign = std::make_shared<Buffer>(b.buf, b.len, [] {}, device::host_index());
  View out(std::move(foreign), v.dtype(), v.shape(), compact_strides(v.shape()), 0);
  MaybeReleaseGil gil(device::waits() || large(v.size()));
  device::download(v, out);
}

PyObject* g_numpy_empty = nullptr;

}  // namespace

py::object to_numpy(const View& v) {
  if (g_numpy_empty == nullptr)
    g_numpy_empty = py::object(py::module_::import("numpy").attr("empty")).release().ptr();
  const bool bfloat16 = v.dtype() == DType::bfloat16;
  py::object name = py::reinterpret_borrow<py::object>(g_dtype_names[static_cast<int>(v.dtype())]);
  py::object out = py::reinterpret_borrow<py::object>(g_numpy_empty)(
      tuple_of(v.shape()), bfloat16 ? py::str(kRawHalf) : name);
  to_buffer(v, out);
  return bfloat16 ? out.attr("view")(name) : out;
}

}  // namespace needle
