"""Factories of contestants for needle_runtime.process.timing; a contest's child processes call
them.

Each returns (call, outputs) and imports only the modules that its contestant needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from needle_runtime.process.timing import Calls, ClockedCalls, load_arrays


def library(path: str, inputs: str, output: Sequence[int], dtype: str = "float32") -> Calls:
    """Load a rung's compiled library, which runs without TVM's compiler."""
    from needle_runtime._tvm.ffi import load_ffi
    from needle_runtime.memory import aligned_copy

    ffi = load_ffi()
    function = ffi.load_module(path)["main"]
    arrays = [aligned_copy(array) for array in load_arrays(inputs)]
    result = aligned_copy(unwritten(output, dtype))
    tensors = [ffi.from_dlpack(array) for array in (*arrays, result)]
    return lambda: function(*tensors), lambda: [result]


def unwritten(shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    """Return an array of values that no correct result has: NaN, or the least integer."""
    kind = np.dtype(dtype)
    return np.full(tuple(shape), np.nan if kind.kind == "f" else np.iinfo(kind).min, kind)


def device_library(
    path: str, inputs: str, output: Sequence[int], dtype: str = "float32"
) -> ClockedCalls:
    """Load a rung's library for a GPU. A call launches the kernel and waits for it."""
    from needle_runtime._tvm.ffi import load_cuda_runtime
    from needle_runtime.device_clock import contestant
    from needle_runtime.memory import CudaMemory

    memory = CudaMemory(0)
    function = load_cuda_runtime().load_module(path)["main"]
    arrays = [*load_arrays(inputs), unwritten(output, dtype)]
    tensors = [memory.copied(array) for array in arrays]
    return contestant(
        lambda: function(*tensors),
        memory.synchronize,
        lambda: [memory.to_numpy(tensors[-1])],
    )


def numpy_gemm(inputs: str) -> Calls:
    a, b = load_arrays(inputs)
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    return lambda: np.matmul(a, b, out=out), lambda: [out]


def numpy_conv1d(inputs: str, mode: Literal["full", "same"]) -> Calls:
    a, w = load_arrays(inputs)
    return lambda: np.convolve(a, w, mode), lambda: [np.convolve(a, w, mode)]


def numpy_vector_add(inputs: str) -> Calls:
    a, b = load_arrays(inputs)
    out = np.empty_like(a)
    return lambda: np.add(a, b, out=out), lambda: [out]


def torch_peer(
    work: str,
    inputs: str,
    threads: int,
    mode: str = "full",
    device: str = "cpu",
    precision: str = "float32",
) -> Calls | ClockedCalls:
    """Set up PyTorch to compute a workload without autograd. `precision` is "float32" (without
    TF32), "tf32", or the dtype of floating-point operands. Floating-point results are returned as
    float32."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    dtype = torch.float32 if precision == "tf32" else getattr(torch, precision)
    tensors = [torch.from_numpy(array).to(device) for array in load_arrays(inputs)]
    tensors = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
    compute = _TORCH[work](torch, tensors, mode)

    def outputs() -> list[Any]:
        result = compute()
        return [(result.float() if result.is_floating_point() else result).cpu().numpy()]

    if device == "cpu":
        return compute, outputs
    from needle_runtime.device_clock import contestant

    return contestant(compute, torch.cuda.synchronize, outputs)


def _torch_gemm(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    a, b = tensors
    out = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
    return lambda: torch.mm(a, b, out=out)


def _torch_vector_add(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    a, b = tensors
    out = torch.empty_like(a)
    return lambda: torch.add(a, b, out=out)


def _torch_conv1d(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    """Return a call to PyTorch's conv1d. It is a correlation, so it gets the reversed kernel; the
    reversal is not timed."""
    signal, kernel = tensors[0][None, None], tensors[1].flip(0)[None, None]
    extent, taps = tensors[0].shape[0], tensors[1].shape[0]
    conv1d = torch.nn.functional.conv1d
    if mode == "full":
        return lambda: conv1d(signal, kernel, padding=taps - 1)[0, 0]
    if taps % 2:
        return lambda: conv1d(signal, kernel, padding="same")[0, 0]
    start = (taps - 1) // 2  # NumPy pads an even kernel differently from PyTorch
    return lambda: conv1d(signal, kernel, padding=taps - 1)[0, 0, start : start + extent]


def _torch_depthwise(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    image, kernel = tensors[:2]
    weight, groups = kernel[:, None], kernel.shape[0]
    before = (kernel.shape[-1] - 1) // 2
    after = kernel.shape[-1] - 1 - before
    conv2d, pad = torch.nn.functional.conv2d, torch.nn.functional.pad
    if before == after:
        return lambda: conv2d(image, weight, padding=before, groups=groups)
    return lambda: conv2d(pad(image, (before, after, before, after)), weight, groups=groups)


def _torch_separable(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    deep = _torch_depthwise(torch, tensors, mode)
    point = tensors[2][:, :, None, None]
    return lambda: torch.nn.functional.conv2d(deep(), point)


def _torch_gelu_matmul(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    a, b, bias = tensors
    return lambda: torch.nn.functional.gelu(torch.addmm(bias, a, b))


def _torch_int8_gemm(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    a, b = tensors
    return lambda: torch._int_mm(a, b)


def _torch_softmax(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    (x,) = tensors
    out = torch.empty_like(x)
    return lambda: torch.softmax(x, -1, out=out)


def _torch_layer_norm(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    x, gamma, beta = tensors
    return lambda: torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta)


def _torch_attention(torch: Any, tensors: list[Any], mode: str) -> Callable[[], Any]:
    q, k, v = (tensor[None] for tensor in tensors)
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)[0]


_TORCH = {
    "vector_add": _torch_vector_add,
    "conv1d": _torch_conv1d,
    "depthwise": _torch_depthwise,
    "separable": _torch_separable,
    "gemm": _torch_gemm,
    "gelu_matmul": _torch_gelu_matmul,
    "int8_gemm": _torch_int8_gemm,
    "softmax": _torch_softmax,
    "layer_norm": _torch_layer_norm,
    "attention": _torch_attention,
}
