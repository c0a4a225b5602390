"""The memory that a compiled program works on: the host's or a GPU's.

It is allocated and copied by functions of TVM's runtime; those for GPUs are in a library that is
loaded on first use.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from needle_runtime._tvm.ffi import load_cuda_runtime, native
from needle_runtime.artifact import bfloat16
from needle_runtime.target.features import WIDEST
from needle_runtime.target.kind import is_gpu

# The alignment of a vector, in bytes. Compiled code crashes if the memory of an input is less
# aligned, unless it was built for inputs at any address. The weights and the code's own memory are
# always aligned.
ALIGNMENT = WIDEST

_CPU, _CUDA = 1, 2  # DLPack's device types
# The virtual machine's allocators. The naive one asks the system each time. The pooled one keeps
# freed memory for the next allocation of the same size; it is not used if sizes differ from call to
# call, because it would keep memory for every size seen so far.
_NAIVE_ALLOCATOR, _POOLED_ALLOCATOR = 1, 2
_LARGE_PAGE = 2 << 20  # bytes, on x86 and on Arm with 4 KiB pages
_MADV_COLLAPSE = 25  # since Linux 6.1


class HostMemory:
    """The host's memory, where NumPy's arrays are; arrays are copied only if necessary.

    `pooled` says whether freed memory is kept for the next call.
    """

    def __init__(self, pooled: bool = True) -> None:
        self._native = native()
        self.machine_arguments = (_CPU, 0, _POOLED_ALLOCATOR if pooled else _NAIVE_ALLOCATOR)

    def copied(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tensor with a copy of the array."""
        return self._tensor(aligned_copy(array))

    def shared(self, array: np.ndarray[Any, Any], alignment: int) -> Any:
        """Return a tensor over the array's own memory, or over a copy if the code cannot read that
        memory or it does not begin at a multiple of `alignment` bytes."""
        flags = array.flags
        fits = flags.c_contiguous and flags.writeable and array.size
        fits = fits and _address(array) % alignment == 0
        return self._tensor(array) if fits else self.copied(array)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return self._native.tensor(array, array.shape, *bfloat16.dlpack_type(array.dtype))

    def use_large_pages(self, tensors: Iterable[Any]) -> None:
        """Put the tensors' memory into large pages as far as the system allows.

        A call reads every weight. With small pages, about ten megabytes of weights occupy more
        pages than the processor's TLB holds, and looking up the remaining pages takes up to a
        tenth of a call's time.
        """
        if not sys.platform.startswith("linux"):
            return
        collapse = ctypes.CDLL(None).madvise
        collapse.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for array in map(self.to_numpy, tensors):
            start, size = _address(array), array.nbytes
            begin = -(-start // _LARGE_PAGE) * _LARGE_PAGE
            end = (start + size) // _LARGE_PAGE * _LARGE_PAGE
            if begin < end:
                # A failure (an older Linux, no contiguous memory) leaves the pages as they are.
                collapse(begin, end - begin, _MADV_COLLAPSE)

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return the tensor's elements, over the same memory."""
        array: np.ndarray[Any, Any] = tensor.array(bfloat16.dtype_named(tensor.dtype))
        return array

    def synchronize(self) -> None:
        """Do nothing: a call returns once its results are computed."""


class CudaMemory:
    """A GPU's memory: NumPy arrays are copied there and back; a copy is complete on return."""

    def __init__(self, index: int) -> None:
        self._ffi = ffi = load_cuda_runtime()
        self.index = index
        self._device = ffi.device("cuda", index)
        self._new = ffi.get_global_func("runtime.TVMTensorAllocWithScope")
        self._fill = ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
        self._read = ffi.get_global_func("runtime.TVMTensorCopyToBytes")
        self._wait = ffi.get_global_func("runtime.Device_StreamSync")
        # The CPU is for values that the virtual machine itself computes, such as shapes.
        self.machine_arguments = (
            *(_CUDA, index, _POOLED_ALLOCATOR),
            *(_CPU, 0, _POOLED_ALLOCATOR),
        )

    def holds(self, value: Any) -> bool:
        """Return whether `value` is an array with `__dlpack__` on this GPU."""
        return hasattr(value, "__dlpack_device__") and tuple(
            map(int, value.__dlpack_device__())
        ) == (_CUDA, self.index)

    def imported(self, value: Any) -> Any:
        """Return a tvm_ffi tensor over the memory of an array on this GPU (see `holds`)."""
        return self._ffi.from_dlpack(value)

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised tvm_ffi tensor on the GPU."""
        return self._new(self._ffi.Shape(shape), dtype.name, self._device, None)

    def copied(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a tvm_ffi tensor on the GPU with the array's elements."""
        tensor = self.empty(array.shape, array.dtype)
        if array.size:
            rows = np.ascontiguousarray(array)
            self._fill(tensor, ctypes.c_void_p(rows.ctypes.data), rows.nbytes)
        return tensor

    def shared(self, array: np.ndarray[Any, Any], alignment: int) -> Any:
        """Return a tvm_ffi tensor on the GPU with the array's elements."""
        return self.copied(array)

    def use_large_pages(self, tensors: Iterable[Any]) -> None:
        """Do nothing: a GPU's driver chooses the pages of its memory."""

    def to_numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return a NumPy array with the tensor's elements, once they are computed."""
        array = np.empty(tuple(tensor.shape), bfloat16.dtype_named(str(tensor.dtype)))
        if array.size:
            if self.stream():  # reading waits only for the default stream
                self.synchronize()
            self._read(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
        return array

    def synchronize(self) -> None:
        """Wait until all work on this thread's stream is done."""
        self._wait(self._device, self.stream())

    def stream(self) -> int:
        """Return the stream of this thread's calls to compiled code; 0 is CUDA's default stream."""
        return int(self._ffi.get_raw_stream(self._device))

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        """Return a context in which this thread's calls to compiled code go to `stream`."""
        return self._ffi.use_raw_stream(self._device, stream)


Memory = HostMemory | CudaMemory


def of(target: Mapping[str, Any], device: int = 0, pooled: bool = True) -> Memory:
    """Return the memory that code for a manifest's target works on.

    `device` is the index of the GPU that the code runs on. Without `pooled`, the host's memory is
    freed as soon as a call no longer needs it.
    """
    return CudaMemory(device) if is_gpu(target) else HostMemory(pooled)


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a C-contiguous copy of `array` whose memory starts at a multiple of ALIGNMENT."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    # A slice would not do: NumPy does not move the pointer of an empty slice.
    copy = np.ndarray(array.shape, array.dtype, memory, -_address(memory) % ALIGNMENT)
    copy[...] = array
    if not copy.size:
        # TVM considers an empty array contiguous only if it has the strides of a row-major array.
        strides = [array.itemsize * math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
        return np.lib.stride_tricks.as_strided(copy, strides=strides)
    return copy


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]  # quicker than array.ctypes
    return address
