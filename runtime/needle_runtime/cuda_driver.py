"""Calls to the CUDA driver: copies, streams and graphs.

Names, numbers and structures are as in cuda.h, an ABI that only grows; all functions exist from
CUDA 12 on. TVM's own runtime works in the device's primary context, and so does this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from typing import Any

from needle_runtime.errors import CaptureError, CudaError
from needle_runtime.target import gpu

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it and the default stream do not wait for each other
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: a capture does not restrict other threads

_Handle = ctypes.c_void_p
_Address = ctypes.c_uint64  # CUdeviceptr
_ByReference = ctypes.POINTER(ctypes.c_void_p)
_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_ByReference, ctypes.c_int),
    "cuCtxSetCurrent": (_Handle,),
    "cuStreamCreate": (_ByReference, ctypes.c_uint),
    "cuStreamSynchronize": (_Handle,),
    "cuStreamDestroy_v2": (_Handle,),
    "cuStreamBeginCapture_v2": (_Handle, ctypes.c_int),
    "cuStreamEndCapture": (_Handle, _ByReference),
    "cuGraphGetNodes": (_Handle, _ByReference, ctypes.POINTER(ctypes.c_size_t)),
    "cuGraphInstantiateWithFlags": (_ByReference, _Handle, ctypes.c_ulonglong),
    "cuGraphDestroy": (_Handle,),
    "cuGraphLaunch": (_Handle, _Handle),
    "cuGraphExecDestroy": (_Handle,),
    "cuEventCreate": (_ByReference, ctypes.c_uint),
    "cuEventRecord": (_Handle, _Handle),
    "cuEventSynchronize": (_Handle,),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), _Handle, _Handle),
    "cuLaunchHostFunc": (_Handle, _HostFunction, _Handle),
    "cuMemcpyHtoDAsync_v2": (_Address, _Handle, ctypes.c_size_t, _Handle),
    "cuMemcpyDtoHAsync_v2": (_Handle, _Address, ctypes.c_size_t, _Handle),
    "cuMemcpyDtoDAsync_v2": (_Address, _Address, ctypes.c_size_t, _Handle),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


def library() -> ctypes.CDLL:
    """Return the driver's library. Raises OSError if there is none."""
    return ctypes.CDLL(gpu.DRIVER)


@functools.cache
def of(index: int) -> Driver:
    """Return the driver for a GPU of this machine. Raises CudaError if it cannot be used."""
    return Driver(index)


class Driver:
    """The driver's functions for one GPU. Any thread may call them.

    A failing call raises CudaError, which names the function and the driver's error. Streams are
    the driver's handles as integers; 0 is the default stream.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        try:
            found = library()
            for name, arguments in _SIGNATURES.items():
                getattr(found, name).argtypes = arguments
        except (AttributeError, OSError) as error:
            raise CudaError(f"CUDA device {index}: the driver cannot be used: {error}") from None
        self._library = found
        self._launch, self._set_current = found.cuGraphLaunch, found.cuCtxSetCurrent
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(device), index)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context

    def enter(self) -> None:
        """Make this GPU current for the calling thread's next driver calls."""
        code = self._set_current(self._context)
        if code:
            self._fail("cuCtxSetCurrent", code)

    def upload(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy `size` bytes from the host; the host's memory may be reused on return."""
        self._do("cuMemcpyHtoDAsync_v2", to, source, size, stream)

    def download(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy `size` bytes to the host; they have arrived once the stream is synchronized."""
        self._do("cuMemcpyDtoHAsync_v2", to, source, size, stream)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy `size` bytes on the device, in the stream's order."""
        self._do("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    def synchronize(self, stream: int) -> None:
        """Wait until all work on the stream is done."""
        self._do("cuStreamSynchronize", stream)

    def capture(self, submit: Callable[[int], None]) -> Graph:
        """Return a graph of the work that `submit(stream)` puts on its stream, without running it.

        The stream and the default stream do not wait for each other, and the capture is relaxed:
        work of other threads, even on the default stream, neither fails nor is captured. Raises
        CaptureError if the driver refuses, or if `submit` raises a RuntimeError, as TVM does for
        CUDA errors.
        """
        stream, graph, executable = (ctypes.c_void_p() for _ in range(3))
        self.enter()
        self._do("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        count = ctypes.c_size_t()
        try:
            self._do("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                submit(stream.value or 0)
            except BaseException:
                # The capture has to end in any case; the error is already being raised.
                self._library.cuStreamEndCapture(stream, ctypes.byref(graph))
                raise
            self._do("cuStreamEndCapture", stream, ctypes.byref(graph))
            self._do("cuGraphGetNodes", graph, None, ctypes.byref(count))
            self._do("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
        except (CudaError, RuntimeError) as error:
            raise CaptureError(f"cannot be captured as a CUDA graph: {error}") from error
        finally:
            if graph.value:
                self._library.cuGraphDestroy(graph)
            self._library.cuStreamDestroy_v2(stream)
        return Graph(self, executable, count.value)

    def launch(self, graph: ctypes.c_void_p, stream: int) -> None:
        """Launch a whole graph on the stream."""
        code = self._launch(graph, stream)
        if code:
            self._fail("cuGraphLaunch", code)

    def event(self) -> ctypes.c_void_p:
        """Return a new event. It lives as long as the process."""
        event = ctypes.c_void_p()
        self._do("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event: ctypes.c_void_p, stream: int) -> None:
        """Have the stream record the time in the event, once its work so far is done."""
        self._do("cuEventRecord", event, stream)

    def elapsed(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Return the seconds between two recorded events, after waiting for the second."""
        milliseconds = ctypes.c_float()
        self._do("cuEventSynchronize", end)
        self._do("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def call_in_order(self, function: Callable[[], object], stream: int) -> object:
        """Have the stream call a host function and wait for it before its next work.

        The function must not use CUDA. Keep the returned object until the function has run.
        """
        called = _HostFunction(lambda _: function() and None)
        self._do("cuLaunchHostFunc", stream, called, None)
        return called

    def destroy(self, graph: ctypes.c_void_p) -> None:
        """Free a graph that no longer runs."""
        self._do("cuGraphExecDestroy", graph)

    def _do(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            self._fail(name, code)

    def _fail(self, name: str, code: int) -> None:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(text))
        why = (text.value or b"an unknown error").decode(errors="replace")
        raise CudaError(f"CUDA device {self.index}: {name} failed: {why} ({code})")


class Graph:
    """An executable graph of `nodes` kernels and copies."""

    def __init__(self, driver: Driver, handle: ctypes.c_void_p, nodes: int) -> None:
        self.nodes = nodes
        self._driver = driver
        self._handle = handle
        self._stream = 0  # the stream of the last launch

    def launch(self, stream: int) -> None:
        """Run the graph once, in the stream's order; launches run one after another."""
        self._driver.launch(self._handle, stream)
        self._stream = stream

    def close(self) -> None:
        """Free the graph once the stream of its last launch is idle."""
        with contextlib.suppress(CudaError):  # at the end of the process the driver may be gone
            self._driver.enter()
            self._driver.synchronize(self._stream)
            self._driver.destroy(self._handle)
