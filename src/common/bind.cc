// Bindings of every native module: the device interface of needle/backend_ndarray/numpy_backend.py.
#include "common/bind.h"

#include <cstring>
#include <optional>

#include "common/bind_dlpack.h"
#include "common/bind_moves.h"
#include "common/blocks.h"
#include "common/device.h"
#include "common/moves.h"

namespace py = pybind11;

namespace needle {

int checked_device(int index) {
  const int count = device::count();
  if (index < 0 || index >= count)
    throw std::invalid_argument("device " + std::to_string(index) +
                                " does not exist; the number of devices is " +
                                std::to_string(count));
  return index;
}

PyObject* g_dtype_names[kDTypes];

py::tuple tuple_of(const Dims& d) {
  py::tuple t(d.ndim);
  for (int i = 0; i < d.ndim; ++i) PyTuple_SET_ITEM(t.ptr(), i, PyLong_FromLongLong(d[i]));
  return t;
}

namespace {

PyTypeObject* g_view_type = nullptr;

const View* as_view(py::handle h) {
  if (Py_TYPE(h.ptr()) != g_view_type) return nullptr;
  auto* instance = reinterpret_cast<py::detail::instance*>(h.ptr());
  return static_cast<const View*>(instance->get_value_and_holder().value_ptr());
}

Put put_of(const std::string& name) {
  if (name == "set") return Put::set;
  if (name == "add") return Put::add;
  if (name == "max") return Put::max;
  if (name == "min") return Put::min;
  throw std::invalid_argument("put_along: '" + name + "' is not one of set, add, max, min");
}

int64_t integer(PyObject* o, const char* what) {
  py::object index = py::reinterpret_steal<py::object>(PyNumber_Index(o));
  if (!index) throw py::error_already_set();
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow)
    throw std::invalid_argument(std::string(what) + ": " + std::string(py::str(index)) +
                                " does not fit in 64 bits");
  if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
  return value;
}

Dims dims(py::handle h, const char* what) {
  py::object fast =
      py::reinterpret_steal<py::object>(PySequence_Fast(h.ptr(), "expected a sequence of ints"));
  if (!fast) throw py::error_already_set();
  Py_ssize_t n = PySequence_Fast_GET_SIZE(fast.ptr());
  if (n > kMaxDims)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(n) +
                                " dimensions are more than " + std::to_string(kMaxDims));
  Dims d;
  for (Py_ssize_t i = 0; i < n; ++i) {
    // An element's __index__ may run Python code that shortens a list.
    if (i >= PySequence_Fast_GET_SIZE(fast.ptr())) break;
    d.push(integer(PySequence_Fast_GET_ITEM(fast.ptr(), i), what));
  }
  return d;
}

DType dtype_of(py::handle h) {
  for (int i = 0; i < kDTypes; ++i)
    if (h.ptr() == g_dtype_names[i]) return static_cast<DType>(i);
  if (PyUnicode_Check(h.ptr()))
    for (int i = 0; i < kDTypes; ++i)
      if (PyUnicode_Compare(h.ptr(), g_dtype_names[i]) == 0) return static_cast<DType>(i);
  throw TypeError("dtype " + std::string(py::repr(h)) + " is not supported");
}

Operand operand(py::handle h, const char* what) {
  Operand o;
  if ((o.view = as_view(h)) != nullptr) return o;
  PyObject* p = h.ptr();
  if (PyFloat_Check(p)) {
    o.kind = 2;
    o.real = PyFloat_AS_DOUBLE(p);
  } else if (PyBool_Check(p)) {
    o.kind = 0;
    o.integer = p == Py_True;
  } else if (PyLong_Check(p)) {
    o.kind = 1;
    int overflow = 0;
    o.integer = PyLong_AsLongLongAndOverflow(p, &overflow);
    o.big = overflow != 0;
    if (o.big) {
      o.integer = 0;  // Python returned -1, whatever the sign
      o.real = PyLong_AsDouble(p);
      if (o.real == -1.0 && PyErr_Occurred()) throw py::error_already_set();
    }
  } else {
    throw TypeError(std::string(what) + ": expected a View or a Python number, not " +
                    Py_TYPE(p)->tp_name);
  }
  return o;
}

// Python's own references to the arguments keep views alive during the call: a bound function
// holds its arguments until it returns. Only views' contents are read, and views never change.

View empty(py::handle shape, py::handle dtype, int on) {
  return View::empty(dtype_of(dtype), dims(shape, "empty"), checked_device(on));
}

View as_strided(const View& v, py::handle shape, py::handle strides, py::handle offset) {
  return View(v.buffer(), v.dtype(), dims(shape, "as_strided"), dims(strides, "as_strided"),
              integer(offset.ptr(), "as_strided"));
}

View unary(Unary op, const View& x) {
  MaybeReleaseGil gil(large(x.size()));
  return nd::unary(op, x);
}

View binary(Binary op, py::handle a, py::handle b) {
  const char* what = kBinary[static_cast<int>(op)].name;
  Operand x = operand(a, what), y = operand(b, what);
  MaybeReleaseGil gil(large(x.view ? x.view->size() : 0, y.view ? y.view->size() : 0));
  return nd::binary(op, x, y);
}

View where(const View& condition, py::handle a, py::handle b) {
  Operand x = operand(a, "where"), y = operand(b, "where");
  MaybeReleaseGil gil(large(condition.size()));
  return nd::where(condition, x, y);
}

View reduce(Reduction op, const View& x, py::handle axes, bool keepdims) {
  Dims d = dims(axes, kReductionNames[static_cast<int>(op)]);
  MaybeReleaseGil gil(large(x.size()));
  return nd::reduce(op, x, d, keepdims);
}

ConvWindow conv_window(py::handle stride, py::handle padding, py::handle dilation) {
  ConvWindow at;
  const std::pair<py::handle, int64_t*> pairs[] = {
      {stride, at.stride}, {padding, at.padding}, {dilation, at.dilation}};
  for (const auto& [pair, to] : pairs) {
    Dims d = dims(pair, "conv2d");
    if (d.ndim != 2) throw std::invalid_argument("conv2d: a window has two axes");
    to[0] = d[0];
    to[1] = d[1];
  }
  return at;
}

View conv2d(const View& x, const View& w, py::handle stride, py::handle padding,
            py::handle dilation) {
  const ConvWindow at = conv_window(stride, padding, dilation);
  MaybeReleaseGil gil(large(x.size(), w.size()));
  return nd::conv2d(x, w, at);
}

Dims two_axes(py::handle values, const char* what) {
  const Dims d = dims(values, what);
  if (d.ndim != 2) throw std::invalid_argument(std::string(what) + " has two axes");
  return d;
}

View conv2d_input(const View& g, const View& w, py::handle size, py::handle stride,
                  py::handle padding, py::handle dilation) {
  const ConvWindow at = conv_window(stride, padding, dilation);
  const Dims d = two_axes(size, "conv2d_input: an image");
  MaybeReleaseGil gil(large(g.size(), w.size()));
  return nd::conv2d_input(g, w, d[0], d[1], at);
}

View conv2d_weight(const View& x, const View& g, py::handle kernel, py::handle stride,
                   py::handle padding, py::handle dilation) {
  const ConvWindow at = conv_window(stride, padding, dilation);
  const Dims d = two_axes(kernel, "conv2d_weight: a kernel");
  MaybeReleaseGil gil(large(x.size(), g.size()));
  return nd::conv2d_weight(x, g, d[0], d[1], at);
}

py::tuple tuple_of(Normalized&& found) {
  return py::make_tuple(std::move(found.y), std::move(found.mean), std::move(found.variance));
}

py::tuple tuple_of(std::pair<View, View>&& found) {
  return py::make_tuple(std::move(found.first), std::move(found.second));
}

// Makes the call, and lets other Python threads run meanwhile if that is worth the cost.
template <class F>
auto released(int64_t size, F&& call) {
  MaybeReleaseGil gil(large(size));
  return call();
}

void translate(std::exception_ptr p) {
  try {
    if (p) std::rethrow_exception(p);
  } catch (const TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what());
  }
}

}  // namespace
}  // namespace needle

namespace needle {

void bind(py::module_& m) {
  py::register_local_exception_translator(translate);
  for (int i = 0; i < kDTypes; ++i)
    g_dtype_names[i] = PyUnicode_InternFromString(name(static_cast<DType>(i)));

  py::class_<View> view(m, "View", py::is_final());
  view.def_property_readonly("shape", [](const View& v) { return tuple_of(v.shape()); })
      .def_property_readonly("strides", [](const View& v) { return tuple_of(v.strides()); })
      .def_property_readonly("offset", &View::offset)
      .def_property_readonly("size", &View::size)
      .def_property_readonly("ndim", &View::ndim)
      .def_property_readonly("is_compact", &View::is_compact)
      .def_property_readonly("written", [](const View& v) { return v.buffer()->written(); })
      .def_property_readonly("data_ptr",
                             [](const View& v) { return reinterpret_cast<uintptr_t>(v.data()); })
      .def_property_readonly("dtype", [](const View& v) {
        return py::reinterpret_borrow<py::object>(g_dtype_names[static_cast<int>(v.dtype())]);
      });
  g_view_type = reinterpret_cast<PyTypeObject*>(view.ptr());
  // Only kernels create views: View.__new__ would return an object without a view inside.
  g_view_type->tp_new = [](PyTypeObject*, PyObject*, PyObject*) -> PyObject* {
    PyErr_SetString(PyExc_TypeError, "a View comes from a kernel (empty, from_numpy, ...)");
    return nullptr;
  };

  // Two overloads each, because looking up a keyword takes as long as making a small array.
  m.def("empty", [](py::handle shape, py::handle dtype) { return needle::empty(shape, dtype, 0); });
  m.def("empty", &needle::empty, py::arg(), py::arg(), py::arg("device"));
  m.def("as_strided", &needle::as_strided);
  m.def("from_numpy", [](py::handle source) { return from_numpy(source, 0); });
  m.def("from_numpy", &from_numpy, py::arg(), py::arg("device"));
  m.def("to_numpy", &to_numpy);
  m.def("to_dlpack", &to_dlpack, py::arg(), py::arg(), py::arg("stream") = 0);
  m.def("from_dlpack", &from_dlpack);
  m.def("copy", [](const View& src, const View& dst) {
    MaybeReleaseGil gil(large(dst.size()));
    nd::copy(src, dst);
    dst.buffer()->mark_written();
  });
  m.def("fill", [](const View& dst, py::handle value) {
    Operand v = operand(value, "fill");
    if (v.view) throw TypeError("fill: expected a Python number");
    MaybeReleaseGil gil(large(dst.size()));
    nd::fill(dst, v);
    dst.buffer()->mark_written();
  });
  m.def("cast", [](const View& x, py::handle dtype) {
    DType t = dtype_of(dtype);
    MaybeReleaseGil gil(large(x.size()));
    return nd::cast(x, t);
  });
  m.def("compact", [](const View& x) {
    MaybeReleaseGil gil(large(x.size()));
    return nd::compact(x);
  });

#define NEEDLE_UNARY(name, category) \
  m.def(#name, [](const View& x) { return needle::unary(Unary::name, x); });
#define NEEDLE_BINARY(name, category) \
  m.def(#name, [](py::handle a, py::handle b) { return needle::binary(Binary::name, a, b); });
#include "common/ops.inc"
#undef NEEDLE_UNARY
#undef NEEDLE_BINARY

#define NEEDLE_REDUCE(name)                                        \
  m.def(#name, [](const View& x, py::handle axes, bool keepdims) { \
    return needle::reduce(Reduction::name, x, axes, keepdims);     \
  });
  NEEDLE_REDUCE(sum)
  NEEDLE_REDUCE(prod)
  NEEDLE_REDUCE(max)
  NEEDLE_REDUCE(min)
#undef NEEDLE_REDUCE

  m.def("where", &needle::where);
  m.def("argmax", [](const View& x, int64_t axis, bool keepdims) {
    MaybeReleaseGil gil(large(x.size()));
    return nd::arg_reduce(true, x, axis, keepdims);
  });
  m.def("argmin", [](const View& x, int64_t axis, bool keepdims) {
    MaybeReleaseGil gil(large(x.size()));
    return nd::arg_reduce(false, x, axis, keepdims);
  });
  m.def("matmul", [](const View& a, const View& b) {
    MaybeReleaseGil gil(large(a.size(), b.size()));
    return nd::product(a, b);
  });
  m.def("conv2d", &needle::conv2d);
  m.def("conv2d_input", &needle::conv2d_input);
  m.def("conv2d_weight", &needle::conv2d_weight);
  m.def("batch_norm", [](const View& x, const View& weight, const View& bias, double eps) {
    return tuple_of(released(x.size(), [&] { return nd::batch_norm(x, weight, bias, eps); }));
  });
  m.def("batch_norm_grad", [](const View& grad, const View& x, const View& weight, const View& mean,
                              const View& variance, double eps) {
    return tuple_of(released(
        x.size(), [&] { return nd::batch_norm_grad(grad, x, weight, mean, variance, eps); }));
  });
  m.def("lstm_gates", [](const View& sums, const View& cell) {
    return tuple_of(released(sums.size(), [&] { return nd::lstm_gates(sums, cell); }));
  });
  m.def("lstm_gates_grad", [](const View& sums, const View& cell, const View& next,
                              const View* grad_h, const View* grad_c) {
    return tuple_of(released(
        sums.size(), [&] { return nd::lstm_gates_grad(sums, cell, next, grad_h, grad_c); }));
  });
  m.def("lstm_sequence", [](const View& projected, const View& h, const View& c, const View& w) {
    auto found = released(projected.size(), [&] { return nd::lstm_sequence(projected, h, c, w); });
    return py::make_tuple(found.hidden, found.cells, found.sums);
  });
  m.def("lstm_sequence_grad",
        [](const View& h, const View& c, const View& w, const View& hidden, const View& cells,
           const View& sums, const View* grad_hidden, const View* grad_cells) {
          auto found = released(sums.size(), [&] {
            return nd::lstm_sequence_grad(h, c, w, {hidden, cells, sums}, grad_hidden, grad_cells);
          });
          return py::make_tuple(found.projected, found.h, found.c, found.w);
        });
  m.def("gather", [](const View& x, const View& index, int64_t axis) {
    MaybeReleaseGil gil(large(x.size(), index.size()));
    return nd::gather(x, index, axis);
  });
  m.def("scatter", [](const View& dst, const View& index, const View& src, int64_t axis) {
    MaybeReleaseGil gil(large(dst.size(), src.size()));
    nd::scatter(dst, index, src, axis, false);
    dst.buffer()->mark_written();
  });
  m.def("scatter_add", [](const View& dst, const View& index, const View& src, int64_t axis) {
    MaybeReleaseGil gil(large(dst.size(), src.size()));
    nd::scatter(dst, index, src, axis, true);
    dst.buffer()->mark_written();
  });
  m.def("take_along", [](const View& x, const View& index, int64_t axis) {
    MaybeReleaseGil gil(large(index.size()));
    return nd::take_along(x, index, axis);
  });
  m.def("put_along", [](const View& x, const View& index, const View& src, int64_t axis,
                        const std::string& how) {
    const Put chosen = put_of(how);
    MaybeReleaseGil gil(large(x.size(), index.size()));
    return nd::put_along(x, index, src, axis, chosen);
  });
  m.def("sgd_step", [](const View& param, const View& grad, const View* velocity, double lr,
                       double momentum, double dampening, double weight_decay) {
    MaybeReleaseGil gil(large(param.size()));
    nd::sgd_step(param, grad, velocity, {lr, momentum, dampening, weight_decay});
    param.buffer()->mark_written();
    if (velocity) velocity->buffer()->mark_written();
  });
  m.def("adam_step", [](const View& param, const View& grad, const View& m1, const View& m2,
                        double lr, double beta1, double beta2, double eps, double weight_decay,
                        double correction1, double correction2, bool decoupled) {
    MaybeReleaseGil gil(large(param.size()));
    nd::adam_step(param, grad, m1, m2,
                  {lr, beta1, beta2, eps, weight_decay, correction1, correction2, decoupled});
    for (const View* written : {&param, &m1, &m2}) written->buffer()->mark_written();
  });
  bind_moves(m);
  m.def("writes", &writes);
  m.def("mark_written", [](const py::args& views) {
    for (const py::handle& each : views)
      if (!py::isinstance<View>(each)) throw TypeError("mark_written: takes only views");
    for (const py::handle& each : views) py::cast<const View&>(each).buffer()->mark_written();
  });
  const auto device = py::arg("device") = 0;
  m.def("memory_allocated", [](int on) { return memory_allocated(checked_device(on)); }, device);
  m.def(
      "max_memory_allocated", [](int on) { return max_memory_allocated(checked_device(on)); },
      device);
  m.def("reset_peak_memory", [](int on) { reset_peak_memory(checked_device(on)); }, device);
  m.def("memory_cached", [](int on) { return memory_cached(checked_device(on)); }, device);
  m.def("empty_cache", [](int on) { empty_cache(checked_device(on)); }, device);

  py::list unary_ops, binary_ops;
  for (const OpInfo& op : kUnary) unary_ops.append(op.name);
  for (const OpInfo& op : kBinary) binary_ops.append(op.name);
  m.attr("UNARY") = py::tuple(unary_ops);
  m.attr("BINARY") = py::tuple(binary_ops);
}

}  // namespace needle
