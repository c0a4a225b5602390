"""Runs the loaded code of an artifact: `main` on tensors of its device and the current weights.

Users call `Program`, which is built on this module. Use the executor itself to time, profile or
capture the code without conversions.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle_runtime import memory
from needle_runtime._tvm.ffi import load_library, native
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.bfloat16 import dtype_named
from needle_runtime.artifact.layout import LIBRARY
from needle_runtime.artifact.sizes import shape_at
from needle_runtime.errors import ArtifactError, CaptureError, ParameterError
from needle_runtime.inputs import Input, Inputs
from needle_runtime.process.forks import loading
from needle_runtime.process.threads import available_cores, configure_tvm_threads

if TYPE_CHECKING:
    from needle_runtime.replay import Replay


class Executor:
    """`main` of an artifact that this machine can run; GPU code runs on the GPU `device`.

    Safe to use from any thread. CPU code is unloaded once no reference to the executor and to its
    virtual machines is left; results do not keep it loaded. GPU code stays loaded. Raises
    TargetError if this machine cannot run the code, ArtifactError if another version of TVM built
    it or its files have changed.
    """

    def __init__(self, artifact: Artifact, device: int = 0) -> None:
        artifact.check_runs_here()
        self.device = device
        self.main = artifact.main
        self._path = artifact.path
        self.inputs, self.results = (
            [
                Input(spec.name, spec.shape, dtype, spec.range, self._alignment(dtype))
                for spec in specs
                for dtype in [self._dtype(spec.dtype)]
            ]
            for specs in (self.main.inputs, self.main.outputs)
        )
        cores = available_cores()
        # A kernel may run on fewer threads than it was scheduled for.
        self.threads = min(artifact.target.get("num-cores", cores), cores)
        configure_tvm_threads(self.threads)  # for code that does not use needle's threads
        self.memory = memory.of(artifact.target, device, pooled=not self.main.dims)
        self._inputs = Inputs(self.inputs, self.memory, self.main.sizes)
        # When the code is dropped, a GPU may still be running kernels of calls that have returned.
        library = load_library(artifact.read(LIBRARY), for_gpu=artifact.for_gpu)
        self._executable = library["vm_load_executable"]
        self._local = threading.local()
        self._making = threading.Lock()  # acquired inside `loading`, as a machine is made
        # The current weights, packed as the code reads them; None if there are none yet.
        self.bound: tuple[Any, ...] | None = None if self.main.params else ()
        self._graph = self.main.graph  # None if there is no CUDA graph to capture

    def _alignment(self, dtype: np.dtype[Any]) -> int:
        return dtype.itemsize if self.main.any_address else memory.ALIGNMENT

    def _dtype(self, name: str) -> np.dtype[Any]:
        try:
            return dtype_named(name)
        except TypeError:
            raise ArtifactError(f"{self._path}: dtype {name!r} is unknown") from None

    @property
    def weights(self) -> tuple[Any, ...]:
        """The current weights, packed. Raises ParameterError if there are none yet."""
        if self.bound is None:
            raise ParameterError("this artifact carries no weights: call set_params first")
        return self.bound

    def copied(self, arrays: Iterable[np.ndarray[Any, Any]]) -> list[Any]:
        """Return copies of arrays as tensors on the device."""
        return [self.memory.copied(array) for array in arrays]

    def use(self, tensors: Sequence[Any]) -> None:
        """Pack these tensors, given in the order of `main.params`, and use them as weights from
        now on."""
        self.bound = self.packed(tensors)

    def packed(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return weights, given in the order of `main.params`, packed as the code reads them."""
        with loading:
            transform = self.main.transform
            if transform is not None and tensors:
                tensors = self._machine()[transform](tensors)
            self.memory.use_large_pages(tensors)
        return tuple(tensors)

    def run(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Run `main` on a list of arrays, one per input; return NumPy arrays.

        Raises InputError for arrays that do not fit, ParameterError if there are no weights.
        """
        if self._graph is not None:
            replay = self._replay()
            checked = self._inputs.check(values)
            try:
                return replay.run(checked)
            except CaptureError as error:
                self._go_on_without_graph(error)
        return self.to_arrays(self._call(self._inputs.convert(values)))

    def results_for(self, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Input]:
        """Return specs of a call's results; the shapes of `inputs` determine the sizes.

        Raises InputError for inputs that do not fit.
        """
        if not self.main.dims:
            return self.results
        checked = self._inputs.check(inputs)
        sizes = self.main.sizes.of([array.shape for array in checked])
        return [each._replace(shape=shape_at(each.shape, sizes)) for each in self.results]

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether the code's GPU holds all `values`; False for a CPU or an empty list."""
        here = self.memory
        return isinstance(here, memory.CudaMemory) and bool(values) and all(map(here.holds, values))

    def convert(self, values: Sequence[Any]) -> list[Any]:
        """Check arrays against the signature and wrap them for `call`, copying where needed.

        Raises InputError for arrays that do not fit.
        """
        return self._inputs.convert(values)

    def call(self, tensors: Sequence[Any]) -> list[Any]:
        """Run `main` on the result of `convert`; return new tensors. Benchmarks time this."""
        if self._graph is not None:
            replay = self._replay()
            try:
                return replay.call(tensors)
            except CaptureError as error:
                self._go_on_without_graph(error)
        return self._call(tensors)

    def synchronize(self) -> None:
        """Wait until the results of every `call` are computed; on a GPU, `call` returns earlier."""
        self.memory.synchronize()

    def to_arrays(self, tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Return NumPy arrays of the results of `call`: copies from a GPU, else the same memory."""
        to_numpy = self.memory.to_numpy
        return [to_numpy(tensor) for tensor in tensors]

    def new_machine(self) -> Any:
        """Return a virtual machine for the code; one thread at a time may use it."""
        # TVM fills a map of the executable, which all machines share, without a lock.
        with loading, self._making:
            machine = self._executable()
            machine["vm_initialization"](*self.memory.machine_arguments)
        return machine

    def _machine(self) -> Any:
        """Return this thread's own virtual machine; a machine is not thread-safe."""
        machine = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = self.new_machine()
        return machine

    def entry(self) -> Any:
        """Return `main` of this thread's virtual machine; it takes tensors and the weights."""
        main = getattr(self._local, "main", None)
        if main is None:  # looking it up at every call would take a microsecond
            main = self._local.main = self._machine()["main"]
        return main

    def into(self) -> Any:
        """Return this thread's variant of `main` that takes memory for the results after the
        inputs; None if the code has no such function."""
        return self._variant("main_into")

    def in_place(self) -> Any:
        """Return this thread's variant of `main` that writes the results listed in
        `main.in_place` over inputs and returns the others; None if the code has none."""
        return self._variant("main_in_place") if self.main.in_place else None

    def _variant(self, name: str) -> Any:
        try:
            return self._machine()[name]
        except AttributeError:
            return None

    def run_with(self, weights: Sequence[Any], values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """Run like `run`, with these `packed` weights in place of the current ones."""
        return self.to_arrays(self._call(self._inputs.convert(values), weights))

    def _call(self, tensors: Sequence[Any], weights: Sequence[Any] | None = None) -> list[Any]:
        native().use_threads(self.threads)
        result = self.entry()(*tensors, *(self.weights if weights is None else weights))
        return [result] if self.main.bare_output else list(result)

    def _replay(self) -> Replay:
        """Return this thread's CUDA graph, with the current weights."""
        from needle_runtime.replay import Replay  # only code for a GPU has a graph

        weights = self.weights
        replay: Replay | None = getattr(self._local, "replay", None)
        if replay is None or replay.params is not weights:
            assert self._graph is not None and isinstance(self.memory, memory.CudaMemory)
            self._local.replay = None  # frees the old one's memory for the new one
            inputs = [(shape_at(spec.shape, {}), spec.dtype) for spec in self._inputs.specs]
            replay = Replay(
                self.memory,
                self._machine(),
                self._graph,
                inputs,
                len(self.main.outputs),
                weights,
            )
            self._local.replay = replay
        return replay

    def _go_on_without_graph(self, error: CaptureError) -> None:
        self._graph = self._local.replay = None
        warnings.warn(f"{self._path}: {error}; kernels are launched one by one", stacklevel=5)
