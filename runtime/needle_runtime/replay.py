"""A compiled model as one CUDA graph: all its kernels in one launch.

A captured graph keeps its addresses, so inputs are copied into the graph's own buffers, and results
are copied out of these buffers. NumPy arrays are copied to the GPU and back anyway, so the graph
adds no copy for them; tensors on the GPU take one more copy on the GPU, on the same stream.

A replay belongs to one thread, like the virtual machine it was captured from, and to one set of
weights, whose addresses it also holds.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from needle_runtime import cuda_driver, memory
from needle_runtime.artifact.bfloat16 import dtype_named
from needle_runtime.artifact.function import GraphNames


class Replay:
    """`main` of a program as a graph, captured by the first call.

    `machine` is a virtual machine of the program, and `names` holds the names of its functions.
    `inputs` has the shape and dtype of each input, `results` is the number of results, and `params`
    are the weights in the code's form.
    """

    def __init__(
        self,
        here: memory.CudaMemory,
        machine: Any,
        names: GraphNames,
        inputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]],
        results: int,
        params: Sequence[Any],
    ) -> None:
        self.params = params
        self.nodes = 0
        self._memory = here
        self._driver = cuda_driver.of(here.index)
        self._main = machine[names.function]
        self._new_results = machine[names.results]
        self._inputs = [here.empty(shape, dtype) for shape, dtype in inputs]
        self._places = [_Place(tensor) for tensor in self._inputs]
        self._results_count = results
        self._results: list[_Place] = []
        self._graph: cuda_driver.Graph | None = None
        self._stream = 0  # the stream of the last call

    def run(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Return the results for NumPy arrays, or tensors on the GPU, that fit the inputs."""
        stream = self._begin()
        self._launch(values, stream)
        arrays = [np.empty(place.shape, place.dtype) for place in self._results]
        for array, place in zip(arrays, self._results, strict=True):
            if place.size:
                self._driver.download(array.ctypes.data, place.address, place.size, stream)
        self._driver.synchronize(stream)
        return arrays

    def call(self, tensors: Sequence[Any]) -> list[Any]:
        """Return new tensors on the GPU for tensors on the GPU; the stream computes them later."""
        stream = self._begin()
        self._launch(tensors, stream)
        found = list(self._new_results())
        for tensor, place in zip(found, self._results, strict=True):
            if place.size:
                self._driver.copy(tensor.data_ptr(), place.address, place.size, stream)
        return found

    def _begin(self) -> int:
        """Return this thread's stream, which may use the buffers from now on."""
        self._driver.enter()
        stream = self._memory.stream()
        if stream != self._stream:  # another stream may still be reading or writing the buffers
            self._driver.synchronize(self._stream)
            self._stream = stream
        return stream

    def _launch(self, values: Sequence[Any], stream: int) -> None:
        driver = self._driver
        for value, place in zip(values, self._places, strict=True):
            if not place.size:
                continue
            if isinstance(value, np.ndarray):
                rows = np.ascontiguousarray(value)
                driver.upload(place.address, rows.ctypes.data, place.size, stream)
            else:
                driver.copy(place.address, value.data_ptr(), place.size, stream)
        if self._graph is None:
            self._graph = self._capture()
        self._graph.launch(stream)

    def _capture(self) -> cuda_driver.Graph:
        # The first run is not captured: it loads modules and fills the allocator's pool, which a
        # graph cannot do. This run needs valid inputs, because some of them may be indices at which
        # kernels read.
        self._main(*self._inputs, *self.params)
        held: list[Any] = []

        def submit(stream: int) -> None:
            with self._memory.on_stream(stream):
                held.extend(self._main(*self._inputs, *self.params))

        graph = self._driver.capture(submit)
        self._held = held  # the results, and all memory that the graph writes to
        self._results = [_Place(tensor) for tensor in held[: self._results_count]]
        self.nodes = graph.nodes
        # Close the graph before its buffers are freed, but not at exit: the driver may be gone.
        weakref.finalize(self, graph.close).atexit = False
        return graph


class _Place:
    """The address, size, shape and dtype of a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.shape = tuple(tensor.shape)
        self.dtype = dtype_named(str(tensor.dtype))
        self.size = math.prod(self.shape) * self.dtype.itemsize
        self.address = tensor.data_ptr()
