// The Python module `_cpu`.
#include "common/bind.h"
#include "cpu/blas.h"
#include "cpu/exchange.h"
#include "cpu/kernel_table.h"
#include "cpu/thread_pool.h"

PYBIND11_MODULE(_cpu, m) {
  using namespace needle;
  select_isa();
  init_threads();
  init_blas();
  bind(m);
  m.def("synchronize", [] {});
  m.def("set_num_threads", &set_num_threads);
  m.def("get_num_threads", &num_threads);
  m.def("array_exchange", &array_exchange);
  m.def("tensor_exchange", &tensor_exchange);
  m.def("isa", [] { return kernels().isa; });
  m.def("blas", &blas_status);
}
