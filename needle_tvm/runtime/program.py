"""The program of an artifact: verified, loaded, given weights, called with arrays.

    from needle_tvm import runtime
    model = runtime.load("out/mlp")
    y = model(x)

Only TVM's runtime library (3 MB) and tvm-ffi are loaded; `tvm` itself is never imported.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from needle_tvm._tvm.ffi import load_library
from needle_tvm.artifact import artifact, safetensors_reader, trees
from needle_tvm.artifact.arrays import as_numpy, describe
from needle_tvm.artifact.bfloat16 import dtype_named, is_bfloat16
from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.errors import (
    ArtifactError,
    CaptureError,
    InputError,
    ParameterError,
    TargetError,
    UsageError,
)
from needle_tvm.process.paths import as_path
from needle_tvm.process.threads import available_cores, configure_tvm_threads
from needle_tvm.runtime import memory, weights
from needle_tvm.runtime.replay import Replay


def load(
    path: str | os.PathLike[str],
    *,
    require_signature: str | os.PathLike[str] | None = None,
    device: int = 0,
) -> Program:
    """Verify the artifact at `path`, then load it.

    With `require_signature`, the PEM file of an Ed25519 public key, only an artifact signed with
    that key is loaded. `device` is the index of the GPU that code for one runs on.

    Raises ArtifactError when it is absent, damaged or built by another TVM, TargetError when this
    machine cannot run it, SignatureError when it is not signed by that key, KeyFileError when the
    file holds no key, InstallError without the package `cryptography`, UsageError for what is no
    path and no index; nothing of it is loaded in any of these cases.
    """
    folder = as_path(path, "path", ArtifactError)
    if type(device) is not int or device < 0:
        raise UsageError(f"device={device!r}: must be the index of a GPU")

    def read() -> Program:
        manifest, params = _verified(folder, require_signature)
        program = Program(folder, manifest, device=device)
        if params is not None:
            tensors = program.to_tensors(params)
            del params  # the file's bytes: packing needs as much again
            program.use(tensors)
        return program

    return artifact.undisturbed(folder, read)


def load_with_params(
    path: str | os.PathLike[str], require_signature: str | os.PathLike[str] | None = None
) -> tuple[Program, dict[str, np.ndarray[Any, Any]] | None]:
    """As `load`, with the weights as the artifact holds them; None where it holds none."""
    folder = as_path(path, "path", ArtifactError)

    def read() -> tuple[Program, dict[str, np.ndarray[Any, Any]] | None]:
        manifest, params = _verified(folder, require_signature)
        return Program(folder, manifest), params

    program, params = artifact.undisturbed(folder, read)
    if params is not None:
        program.set_params(params)
    return program, params


def _verified(
    folder: Path, require_signature: str | os.PathLike[str] | None
) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]] | None]:
    """The manifest of a whole artifact, and its weights; none of its code is loaded yet."""
    manifest = artifact.verify(folder, require_signature, unread=(artifact.PARAMS,))
    return manifest, read_arrays(folder, manifest, artifact.PARAMS)


def read_arrays(
    folder: Path, manifest: Mapping[str, Any], name: str
) -> dict[str, np.ndarray[Any, Any]] | None:
    """The arrays of one of an artifact's safetensors files; None where it has no such file.

    Raises ArtifactError when the file was changed since it was verified, or is malformed.
    """
    if name not in manifest["files"]:
        return None
    data = artifact.read_file(folder, manifest, name)
    try:
        return safetensors_reader.views(data)
    except ValueError as error:
        raise ArtifactError(f"{folder / name}: cannot be read ({error})") from error


class _Input(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    range: tuple[int, int] | None  # of an index: what is valid


class Program:
    """A loaded artifact: call it with arrays, get arrays. Safe to call from any thread.

    A processor's code is unloaded with the last reference to the program and to the machines taken
    from it; results keep none of it. A GPU's stays. `refusal` is why this machine cannot run it, as
    `artifact.refusal` says: nothing is loaded then, and whatever would take the code raises a
    TargetError with these words. `device` is the index of the GPU that a program for one runs on.
    """

    def __init__(
        self, path: Path, manifest: dict[str, Any], *, refusal: str | None = None, device: int = 0
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.refusal = refusal
        self.device = device
        self._main = manifest["functions"]["main"]
        self._inputs = [
            _Input(spec["name"], tuple(spec["shape"]), self._dtype(spec), _range(spec))
            for spec in self._main["inputs"]
        ]
        self._local = threading.local()
        self._params: tuple[Any, ...] | None = None if self._main["params"] else ()
        # None where it is not to be captured.
        self._graph = self._main.get("graph") if refusal is None else None
        if refusal is not None:
            return
        cores = available_cores()
        # A kernel may run on fewer threads than it was shared out for, here or where it was made.
        configure_tvm_threads(min(manifest["target"].get("num-cores", cores), cores))
        results = {self._dtype(spec) for spec in self._main["outputs"]}
        self._memory_here = memory.of(manifest["target"], results, device)
        code = artifact.read_file(path, manifest, artifact.LIBRARY)
        # A GPU may still run kernels of calls that have returned when the program is dropped.
        stays = manifest["target"].get("kind") == "cuda"
        self._executable = load_library(code, stays=stays)["vm_load_executable"]

    def _dtype(self, spec: Mapping[str, Any]) -> np.dtype[Any]:
        try:
            return dtype_named(spec["dtype"])
        except TypeError:
            raise ArtifactError(f"{self.path}: dtype {spec['dtype']!r} is unknown") from None

    @property
    def _memory(self) -> memory.Memory:
        if self.refusal is not None:
            raise TargetError(self.refusal)
        return self._memory_here

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Name, shape and dtype of each input, in order."""
        return list(self._main["inputs"])

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Shape and dtype of each output, in order."""
        return list(self._main["outputs"])

    @property
    def params(self) -> list[dict[str, Any]]:
        """Name, shape and dtype of each parameter, in order."""
        return list(self._main["params"])

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Use these weights from now on: arrays by name, packed here as the code wants them.

        The arrays are copied. Raises ParameterError that lists all that does not fit, as
        `weights.in_order` does; the weights in use stay as they were.
        """
        self.use(self.to_tensors(params))

    def to_tensors(self, params: Mapping[str, Any]) -> list[Any]:
        """Copies of the weights in the code's order, for `use`; raises as `set_params` does."""
        here = self._memory
        return [here.copied(array) for array in self.in_order(params)]

    def in_order(self, params: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """The weights as NumPy arrays in the code's order; raises as `set_params` does."""
        return weights.in_order(self._main, params)

    def use(self, tensors: Sequence[Any]) -> None:
        """Use the weights that `to_tensors` made, packed here as the code wants them."""
        transform = self._main["transform"]
        if transform is not None and tensors:
            self._params = tuple(self._machine()[transform](tensors))
        else:
            self._params = tuple(tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `main` on arrays in the structure the model was traced with.

        Takes NumPy arrays and anything with `__dlpack__`; an array that is not contiguous or not
        aligned is copied. Returns NumPy arrays in the structure the model returns. Raises
        InputError when an argument's structure, shape or dtype is not the compiled one's, and for
        indices out of range (those in a GPU's memory are not looked at).
        """
        return self.unflatten(self.run(self.flatten(args, kwargs)))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays among the arguments, in the order of `inputs`."""
        return trees.flatten_arguments(self._main["arguments"], args, kwargs)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """`outputs`, one per output, in the structure the model returns."""
        return trees.unflatten(self._main["output_tree"], outputs)

    def random_inputs(self, seed: int = 0) -> list[np.ndarray[Any, Any]]:
        """Arrays that fit the signature: standard normal, or zeros and ones for integers and
        indices (zeros where one is no valid index). UsageError for a seed that is no integer of at
        least 0."""
        if type(seed) is not int or seed < 0:
            raise UsageError(f"seed={seed!r}: must be an integer of at least 0")
        rng = np.random.default_rng(seed)
        arrays = []
        for _, shape, dtype, valid in self._inputs:
            if valid is None and (dtype.kind == "f" or is_bfloat16(dtype)):
                arrays.append(rng.standard_normal(shape).astype(dtype))
            else:
                largest = 1 if valid is None else min(1, max(0, valid[1]))
                arrays.append(rng.integers(0, largest + 1, shape).astype(dtype))
        return arrays

    def run(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """`main` on a flat list of arrays; a flat list of arrays back."""
        replay = self._replay()
        if replay is not None:
            checked = self._checked(values)
            try:
                return replay.run(checked)
            except CaptureError as error:
                self._go_on_without(error)
        return self.to_arrays(self.call(self.convert(values)))

    def to_arrays(self, tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """What `call` gave as NumPy arrays: of a GPU copies, else over the same memory."""
        return [self._memory.to_numpy(tensor) for tensor in tensors]

    def convert(self, values: Sequence[Any]) -> list[Any]:
        """Check arrays against the signature and wrap them for `call`, copying where needed."""
        here = self._memory
        checked = self._checked(values)
        return [here.shared(each) if isinstance(each, np.ndarray) else each for each in checked]

    def _checked(self, values: Sequence[Any]) -> list[Any]:
        """Arrays that fit the signature: of NumPy, or as tensors where they are on the GPU."""
        if not isinstance(values, (list, tuple)):
            raise InputError(f"takes a list of arrays, was given a {type(values).__name__}")
        if len(values) != len(self._inputs):
            raise InputError(f"takes {len(self._inputs)} arrays, was given {len(values)}")
        return [self._check(value, spec) for value, spec in zip(values, self._inputs, strict=True)]

    def call(self, tensors: Sequence[Any]) -> list[Any]:
        """`main` on what `convert` made; tvm_ffi tensors back. This is what there is to time."""
        replay = self._replay()
        if replay is not None:
            try:
                return replay.call(tensors)
            except CaptureError as error:
                self._go_on_without(error)
        main = getattr(self._local, "main", None)
        if main is None:  # looking it up takes a microsecond
            main = self._local.main = self._machine()["main"]
        return self._call(main, tensors)

    def synchronize(self) -> None:
        """Waits until the results of every `call` are there; those on a GPU return before."""
        self._memory.synchronize()

    def call_by_kernel(self, tensors: Sequence[Any], machine: Any) -> list[Any]:
        """As `call`, on a machine that `new_machine` made, with no kernels merged into one."""
        return self._call(machine[self._main.get("by_kernel") or "main"], tensors)

    def _replay(self) -> Replay | None:
        """This thread's graph with the weights in use; None where the program has none."""
        names = self._graph
        if names is None:
            return None
        params = self._weights()
        replay: Replay | None = getattr(self._local, "replay", None)
        if replay is None or replay.params is not params:
            here = self._memory
            assert isinstance(here, memory.CudaMemory)  # only code for a GPU has a graph
            self._local.replay = None  # the old one's memory, for the new one
            inputs = [(spec.shape, spec.dtype) for spec in self._inputs]
            count = len(self._main["outputs"])
            replay = Replay(here, self._machine(), names, inputs, count, params)
            self._local.replay = replay
        return replay

    def _go_on_without(self, error: CaptureError) -> None:
        self._graph = self._local.replay = None
        warnings.warn(f"{self.path}: {error}; its kernels are launched singly", stacklevel=4)

    def _weights(self) -> tuple[Any, ...]:
        if self._params is None:
            raise ParameterError("this artifact carries no weights: call set_params first")
        return self._params

    def _call(self, function: Any, tensors: Sequence[Any]) -> list[Any]:
        result = function(*tensors, *self._weights())
        if self._main["bare_output"]:
            return [result]
        return list(result)

    def _check(self, value: Any, spec: _Input) -> Any:
        here = self._memory
        if isinstance(here, memory.CudaMemory) and here.holds(value):
            tensor = here.imported(value)
            shape, dtype = tuple(tensor.shape), str(tensor.dtype)
            if shape != spec.shape or dtype != str(spec.dtype):
                raise _mismatch(spec, shape, dtype)
            if not tensor.is_contiguous():
                raise InputError(f"input {spec.name!r} is not contiguous: give a contiguous copy")
            return tensor
        # Each name of a dtype takes NumPy some microseconds: they are compared as they are.
        array = as_numpy(value, f"input {spec.name!r}")
        if array.shape != spec.shape or array.dtype != spec.dtype:
            raise _mismatch(spec, array.shape, str(array.dtype))
        if spec.range is not None and array.size:
            # Floats are cut towards zero where they become indices; a NaN is none.
            number = int if array.dtype.kind in "biu" else float
            low, high = number(array.min()), number(array.max())
            if not (spec.range[0] - 1 < low and high < spec.range[1] + 1):
                wrong = high if spec.range[0] - 1 < low else low
                raise InputError(
                    f"input {spec.name!r} has the index {wrong}, "
                    f"which is not within {spec.range[0]}..{spec.range[1]}"
                )
        return array

    def to_capture(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """A function and its arguments for what `convert` made: what it returns is all memory that
        a graph writes to which captures its call. UsageError where the program has none."""
        if self._graph is None:
            raise UsageError(f"{self.path}: has no function to capture as a CUDA graph")
        return self.new_machine()[self._graph["function"]], [*tensors, *self._weights()]

    def _machine(self) -> Any:
        """This thread's VM: its registers are not locked, the code below them is shared."""
        machine = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = self.new_machine()
        return machine

    def new_machine(self) -> Any:
        """A virtual machine of its own for this program; one thread at a time may use it."""
        arguments = self._memory.machine_arguments
        machine = self._executable()
        machine["vm_initialization"](*arguments)
        return machine


@dataclass(frozen=True)
class SelfTest:
    """How far each output of the golden example lies from its recorded value.

    `differences` are relative to the recorded output's largest magnitude, infinite where NaNs or
    infinities stand in different places; `tolerances` are the manifest's. `source` says who
    computed the recorded outputs: "eager", the model itself, or "compiled" where it was not at
    hand.
    """

    differences: tuple[float, ...]
    tolerances: tuple[float, ...]
    source: str

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        pairs = zip(self.differences, self.tolerances, strict=True)
        return all(difference <= tolerance for difference, tolerance in pairs)


def self_test(program: Program) -> SelfTest:
    """Run the artifact's golden example and compare.

    Raises ArtifactError when the artifact carries no example, or one that does not fit it.
    """
    manifest, path = program.manifest, program.path / artifact.GOLDEN
    example = read_arrays(program.path, manifest, artifact.GOLDEN)
    if example is None or "golden" not in manifest:
        raise ArtifactError(f"{program.path}: carries no {artifact.GOLDEN}")
    names = [f"input.{i}" for i in range(len(program.inputs))]
    wanted = [f"output.{i}" for i in range(len(program.outputs))]
    if set(example) != {*names, *wanted}:
        raise ArtifactError(f"{path}: does not hold this model's inputs and outputs")
    try:
        results = program.run([example[name] for name in names])
    except InputError as error:
        raise ArtifactError(f"{path}: {error}") from error
    differences = [
        relative_difference(example[name], result)
        for name, result in zip(wanted, results, strict=True)
    ]
    recorded = manifest["golden"]
    return SelfTest(tuple(differences), tuple(recorded["tolerances"]), str(recorded["source"]))


def _range(spec: Mapping[str, Any]) -> tuple[int, int] | None:
    return tuple(spec["range"]) if "range" in spec else None


def _mismatch(spec: _Input, shape: Sequence[int], dtype: str) -> InputError:
    return InputError(
        f"input {spec.name!r} is {describe(shape, dtype)}, "
        f"the model was compiled for {describe(spec.shape, str(spec.dtype))}"
    )
