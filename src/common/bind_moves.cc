// Functions for calls on a few elements, where reading the arguments in Python takes longer than
// the work. Functions that return another view of the same memory accept only plain arguments (ints
// of the class int, slices of ints or None, tuples and lists). For other arguments, and arguments
// that do not fit, they return None; Python code shared with the reference device then takes over.
#include "common/bind_moves.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "common/bind.h"
#include "common/moves.h"

namespace py = pybind11;

namespace needle {

namespace {

// Returns a plain int of 64 bits, or nothing.
std::optional<int64_t> number(PyObject* o) {
  if (!PyLong_CheckExact(o)) return std::nullopt;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (overflow) return std::nullopt;
  return value;
}

// Returns one plain int, or the ints of a tuple or list, which may be alone in a tuple.
std::optional<Dims> numbers(PyObject* o) {
  if (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) == 1) {
    PyObject* only = PyTuple_GET_ITEM(o, 0);
    if (PyTuple_CheckExact(only) || PyList_CheckExact(only)) o = only;
  }
  Dims d;
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) {
    const std::optional<int64_t> one = number(o);
    if (!one) return std::nullopt;
    d.push(*one);
    return d;
  }
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  if (n > kMaxDims) return std::nullopt;
  for (Py_ssize_t i = 0; i < n; ++i) {
    const std::optional<int64_t> each = number(PySequence_Fast_GET_ITEM(o, i));
    if (!each) return std::nullopt;
    d.push(*each);
  }
  return d;
}

// Returns distinct axes counted from the front; None means all axes.
std::optional<Dims> axes_of(PyObject* o, int ndim) {
  Dims d;
  if (o == Py_None) {
    for (int i = 0; i < ndim; ++i) d.push(i);
    return d;
  }
  std::optional<Dims> given = numbers(o);
  if (!given) return std::nullopt;
  bool seen[kMaxDims] = {};
  for (int i = 0; i < given->ndim; ++i) {
    const int64_t axis = (*given)[i] < 0 ? (*given)[i] + ndim : (*given)[i];
    if (axis < 0 || axis >= ndim || seen[axis]) return std::nullopt;
    seen[axis] = true;
    d.push(axis);
  }
  return d;
}

// Whether a bound of a slice is None, or a plain int that can be compared with a size.
bool is_end(PyObject* o) { return o == Py_None || number(o).has_value(); }

struct Layout {
  Dims shape, strides;
  int64_t offset = 0;
};

// Applies one entry of a key to the next axis of x; false if it does not fit.
bool take(PyObject* entry, const View& x, int* axis, Layout* to) {
  if (entry == Py_None) {
    if (to->shape.ndim == kMaxDims) return false;
    to->shape.push(1);
    to->strides.push(0);
    return true;
  }
  if (*axis >= x.ndim()) return false;
  const int64_t n = x.shape()[*axis], s = x.strides()[*axis];
  ++*axis;
  if (PySlice_Check(entry)) {
    auto* slice = reinterpret_cast<PySliceObject*>(entry);
    if (!is_end(slice->start) || !is_end(slice->stop) || !is_end(slice->step)) return false;
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(entry, &start, &stop, &step) < 0) {
      PyErr_Clear();
      return false;
    }
    const Py_ssize_t count = PySlice_AdjustIndices(n, &start, &stop, step);
    if (to->shape.ndim == kMaxDims) return false;
    if (count > 0) to->offset += start * s;
    to->shape.push(count);
    to->strides.push(count > 1 ? step * s : s);  // a step past the end may be huge
    return true;
  }
  const std::optional<int64_t> i = number(entry);
  if (!i || *i < -n || *i >= n) return false;
  to->offset += (*i < 0 ? *i + n : *i) * s;
  return true;
}

py::object index(const View& x, py::handle key) {
  PyObject* const* entries = &key.ptr();
  PyObject* single = key.ptr();
  Py_ssize_t count = 1;
  if (PyTuple_CheckExact(single)) {
    count = PyTuple_GET_SIZE(single);
    entries = count ? &PyTuple_GET_ITEM(single, 0) : nullptr;
  } else {
    entries = &single;
  }
  if (count > 2 * kMaxDims) return py::none();
  int used = 0, dots = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    used += entries[i] != Py_None && entries[i] != Py_Ellipsis;
    dots += entries[i] == Py_Ellipsis;
  }
  if (dots > 1 || used > x.ndim()) return py::none();
  Layout to;
  int axis = 0;
  const auto whole = [&](int until) {
    for (; axis < until; ++axis) {
      to.shape.push(x.shape()[axis]);
      to.strides.push(x.strides()[axis]);
    }
  };
  int left = used;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (entries[i] == Py_Ellipsis) {
      if (to.shape.ndim + x.ndim() - left - axis > kMaxDims) return py::none();
      whole(x.ndim() - left);
    } else if (!take(entries[i], x, &axis, &to)) {
      return py::none();
    } else {
      left -= entries[i] != Py_None;
    }
  }
  if (to.shape.ndim + x.ndim() - axis > kMaxDims) return py::none();
  whole(x.ndim());
  // An empty view is never read, and an empty buffer allows no offset.
  if (std::any_of(to.shape.at.begin(), to.shape.at.begin() + to.shape.ndim,
                  [](int64_t n) { return n == 0; }))
    to.offset = 0;
  return py::cast(View(x.buffer(), x.dtype(), to.shape, to.strides, x.offset() + to.offset));
}

py::object reshape(const View& x, py::handle shape) {
  std::optional<Dims> to = numbers(shape.ptr());
  if (!to) return py::none();
  int open = -1;
  int64_t size = 1;
  for (int i = 0; i < to->ndim; ++i) {
    const int64_t n = (*to)[i];
    if (n == -1 && open < 0) {
      open = i;
    } else if (n < 0 || __builtin_mul_overflow(size, n, &size)) {
      return py::none();
    }
  }
  if (open >= 0) {
    if (size == 0 || x.size() % size) return py::none();
    (*to)[open] = x.size() / size;
  } else if (size != x.size()) {
    return py::none();
  }
  std::optional<View> made;
  {
    MaybeReleaseGil gil(!x.is_compact() && large(x.size()));
    made.emplace(nd::reshape(x, *to));
  }
  return py::cast(std::move(*made));
}

py::object permute(const View& x, py::handle axes) {
  const std::optional<Dims> order = axes_of(axes.ptr(), x.ndim());
  if (!order || order->ndim != x.ndim() || axes.is_none()) return py::none();
  const Dims shape = permuted(x.shape(), *order), strides = permuted(x.strides(), *order);
  return py::cast(View(x.buffer(), x.dtype(), shape, strides, x.offset()));
}

py::object transpose(const View& x, py::handle pair) {
  const std::optional<Dims> axes = axes_of(pair.ptr(), x.ndim());
  if (x.ndim() < 2 || !axes || (axes->ndim != 2 && !pair.is_none())) return py::none();
  Dims shape = x.shape(), strides = x.strides();
  const int ndim = x.ndim();
  const int first = pair.is_none() ? ndim - 2 : static_cast<int>((*axes)[0]);
  const int second = pair.is_none() ? ndim - 1 : static_cast<int>((*axes)[1]);
  std::swap(shape[first], shape[second]);
  std::swap(strides[first], strides[second]);
  return py::cast(View(x.buffer(), x.dtype(), shape, strides, x.offset()));
}

py::object diagonal(const View& x, py::handle offset, py::handle axis1, py::handle axis2) {
  std::optional<int64_t> given[3] = {number(offset.ptr()), number(axis1.ptr()),
                                     number(axis2.ptr())};
  for (int i = 0; i < 3; ++i) {
    if (!given[i]) return py::none();
    if (i == 0) continue;
    if (*given[i] < 0) *given[i] += x.ndim();
    if (*given[i] < 0 || *given[i] >= x.ndim()) return py::none();
  }
  if (*given[1] == *given[2]) return py::none();
  return py::cast(
      nd::diagonal(x, *given[0], static_cast<int>(*given[1]), static_cast<int>(*given[2])));
}

py::object roll(const View& x, py::handle shifts, py::handle axes) {
  std::optional<Dims> by = numbers(shifts.ptr());
  const std::optional<Dims> along = axes_of(axes.ptr(), x.ndim());
  if (!by || !along || axes.is_none() || by->ndim != along->ndim) return py::none();
  for (int i = 0; i < by->ndim; ++i) {
    const int64_t n = x.shape()[static_cast<int>((*along)[i])];
    (*by)[i] = n ? (*by)[i] % n : 0;
    if ((*by)[i] < 0) (*by)[i] += n;
  }
  std::optional<View> made;
  {
    MaybeReleaseGil gil(large(x.size()));
    made.emplace(nd::roll(x, *by, *along));
  }
  return py::cast(std::move(*made));
}

View mean(const View& x, py::handle axes, bool keepdims) {
  const std::optional<Dims> over = axes_of(axes.ptr(), x.ndim());
  if (!over)
    throw std::invalid_argument("mean: the axes are not distinct axes of shape " + x.shape().str());
  MaybeReleaseGil gil(large(x.size()));
  return nd::mean(x, *over, keepdims);
}

View concat(py::handle parts, int64_t axis, bool stacked) {
  if (!PyTuple_CheckExact(parts.ptr())) throw TypeError("concat: the parts are not a tuple");
  std::vector<const View*> views;
  int64_t size = 0;
  for (py::handle part : py::reinterpret_borrow<py::tuple>(parts)) {
    if (!py::isinstance<View>(part)) throw TypeError("concat: a part is not a View");
    views.push_back(part.cast<const View*>());
    size = std::max(size, views.back()->size());
  }
  MaybeReleaseGil gil(large(size));
  return nd::concat(views, axis, stacked);
}

}  // namespace

void bind_moves(py::module_& m) {
  m.def("index", &index);
  m.def("reshape", &reshape);
  m.def("permute", &permute);
  m.def("transpose", &transpose);
  m.def("diagonal", &diagonal);
  m.def("roll", &roll);
  m.def("mean", &mean);
  m.def("concat", &concat);
  m.def("kron", [](const View& a, const View& b) {
    MaybeReleaseGil gil(static_cast<double>(a.size()) * b.size() >= kReleaseFrom);
    return nd::kron(a, b);
  });
  m.def("softmax", [](const View& x, int64_t axis, bool log) {
    MaybeReleaseGil gil(large(x.size()));
    return nd::softmax(x, axis, log);
  });
}

}  // namespace needle
