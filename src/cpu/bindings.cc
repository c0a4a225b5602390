// The Python module `_cpu`.
#include "common/bind.h"
#include "cpu/blas.h"
#include "cpu/exchange.h"
#include "cpu/grid.h"
#include "cpu/kernel_table.h"
#include "cpu/scan.h"
#include "threads/thread_pool.h"

namespace {

// Kernels that only the CPU has; other devices compute these functions on the host.
void bind_scans(pybind11::module_& m) {
  using namespace needle;
  const auto define = [&m](const char* name, Scan kind) {
    m.def(name, [kind](const View& x, int axis, bool reverse) {
      pybind11::gil_scoped_release free;
      return scan(kind, x, axis, reverse);
    });
  };
  define("cumsum", Scan::sum);
  define("cumprod", Scan::prod);
  define("logcumsumexp", Scan::logsumexp);
  m.def("linear_scan", [](const View& a, const View& b, int axis, bool reverse) {
    pybind11::gil_scoped_release free;
    return linear_scan(a, b, axis, reverse);
  });
  m.def("resample", [](const View& x, const View& index, const View& weight, int axis) {
    pybind11::gil_scoped_release free;
    return resample(x, index, weight, axis);
  });
  const auto extreme = [&m](const char* name, bool max) {
    m.def(name, [max](const View& x, int axis) {
      pybind11::gil_scoped_release free;
      return scan_extreme(max, x, axis);
    });
  };
  extreme("cummax", true);
  extreme("cummin", false);
  m.def("sort", [](const View& x, int axis, bool descending) {
    pybind11::gil_scoped_release free;
    return sort(x, axis, descending);
  });
  m.def("topk", [](const View& x, int axis, bool descending, int64_t k) {
    pybind11::gil_scoped_release free;
    return topk(x, axis, descending, k);
  });
  m.def("philox", [](const View& state, int64_t count, bool wide) {
    pybind11::gil_scoped_release free;
    return philox(state, count, wide);
  });
  m.def("group_norm", [](const View& x, const View& weight, const View& bias, int axis,
                         int64_t groups, double eps) {
    pybind11::gil_scoped_release free;
    return group_norm(x, weight, bias, axis, groups, eps);
  });
  m.def("group_norm_grad", [](const View& grad, const View& x, const View& weight, int axis,
                              int64_t groups, double eps) {
    std::optional<Normalized> made;
    {
      pybind11::gil_scoped_release free;
      made = group_norm_grad(grad, x, weight, axis, groups, eps);
    }
    return pybind11::make_tuple(made->y, made->mean, made->variance);
  });
  m.def("grid_sample", [](const View& x, const View& grid, const std::string& mode,
                          const std::string& padding, bool align_corners) {
    const Sampling how{mode, padding, align_corners};
    pybind11::gil_scoped_release free;
    return grid_sample(x, grid, how);
  });
  m.def("grid_sample_grad",
        [](const View& grad, const View& x, const View& grid, const std::string& mode,
           const std::string& padding, bool align_corners) {
          const Sampling how{mode, padding, align_corners};
          pybind11::gil_scoped_release free;
          return grid_sample_grad(grad, x, grid, how);
        });
  m.def("searchsorted", [](const View& x, const View& values, bool right) {
    pybind11::gil_scoped_release free;
    return searchsorted(x, values, right);
  });
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  using namespace needle;
  select_isa();
  init_threads();
  init_blas();
  bind(m);
  bind_scans(m);
  m.def("synchronize", [] {});
  m.def("set_num_threads", &set_num_threads);
  m.def("get_num_threads", &num_threads);
  m.def("array_exchange", &array_exchange);
  m.def("tensor_exchange", &tensor_exchange);
  m.def("isa", [] { return kernels().isa; });
  m.def("blas", &blas_status);
}
