"""The lists of workloads and ladders. Importing this does not import TVM."""

from __future__ import annotations

from kernel_lab.errors import LabUsageError
from kernel_lab.ladders import (
    attention_cpu,
    conv1d_cpu,
    conv1d_cuda,
    depthwise_cpu,
    depthwise_cuda,
    gelu_matmul_cpu,
    gelu_matmul_cuda,
    gemm_cpu,
    gemm_tensor_core,
    int8_gemm_cpu,
    layer_norm_cpu,
    softmax_cpu,
    vector_add_cpu,
    vector_add_cuda,
)
from kernel_lab.rung import Ladder
from kernel_lab.workload import Workload

_LADDERS = (
    vector_add_cpu.ladder,
    conv1d_cpu.ladder,
    depthwise_cpu.ladder,
    depthwise_cpu.separable,
    gemm_cpu.ladder,
    gelu_matmul_cpu.ladder,
    int8_gemm_cpu.ladder,
    softmax_cpu.ladder,
    layer_norm_cpu.ladder,
    attention_cpu.ladder,
    vector_add_cuda.ladder,
    conv1d_cuda.ladder,
    depthwise_cuda.ladder,
    depthwise_cuda.separable,
    gemm_tensor_core.ladder,
    gelu_matmul_cuda.ladder,
)
LADDERS: dict[tuple[str, str], Ladder] = {
    (ladder.workload.name, ladder.device): ladder for ladder in _LADDERS
}
WORKLOADS: dict[str, Workload] = {
    ladder.workload.name: ladder.workload for ladder in LADDERS.values()
}


def workload(name: str) -> Workload:
    """Return the workload with this name. Raises LabUsageError if there is none."""
    if name not in WORKLOADS:
        raise LabUsageError(f"unknown workload {name!r}: must be one of {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def ladder(name: str, device: str) -> Ladder:
    """Return a workload's ladder on a device. Raises LabUsageError if there is none."""
    workload(name)
    if (name, device) not in LADDERS:
        devices = [d for n, d in LADDERS if n == name]
        raise LabUsageError(f"{name} has no ladder for {device!r}: it has {', '.join(devices)}")
    return LADDERS[name, device]
