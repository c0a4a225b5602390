"""The search's services on the emulated GPU, with kernels reported to spill; see search_checks."""

from dataclasses import replace

from needle_tvm.target import nvcc
from needle_tvm.tune.measure import services

_compile_cubin = nvcc.compile_cubin


def _spilling(source, arch):
    code, kernels = _compile_cubin(source, arch)
    return code, [replace(kernel, spill_stores=1, spill_loads=1) for kernel in kernels]


nvcc.compile_cubin = _spilling


def serve(request):
    return services.serve(request)
