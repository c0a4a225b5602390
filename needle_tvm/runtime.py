"""Run an exported model with NumPy, without needle and without TVM's compiler.

    from needle_tvm import runtime
    model = runtime.load("out/mlp")
    y = model(x)

Only TVM's runtime library (3 MB) and tvm-ffi are loaded; `tvm` itself is never imported.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm import artifact, bfloat16, trees
from needle_tvm.errors import ArtifactError, InputError, ParameterError
from needle_tvm.ffi import load_ffi
from needle_tvm.threads import configure_tvm_threads

ALIGNMENT = 64  # bytes; a vectorised kernel given less aligned memory kills the process

_CPU, _POOLED_ALLOCATOR = 1, 2  # DLPack's device type, and the VM's allocator


def load(path: str | os.PathLike[str]) -> Program:
    """Verify the artifact at `path`, then load it.

    Raises ArtifactError when it is absent, damaged or built by another TVM, TargetError when this
    processor cannot run it; nothing of it is loaded in either case.
    """
    manifest = artifact.verify(path)
    program = Program(Path(path), manifest)
    if artifact.PARAMS in manifest["files"]:
        from safetensors.numpy import load_file

        program.set_params(load_file(Path(path) / artifact.PARAMS))
    return program


class Program:
    """A loaded artifact: call it with arrays, get arrays. Safe to call from any thread."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._main = manifest["functions"]["main"]
        self._ffi = load_ffi()
        configure_tvm_threads(manifest["target"].get("num-cores"))
        self._executable = _load_library(self._ffi, path, manifest)["vm_load_executable"]
        self._local = threading.local()
        self._params: tuple[Any, ...] | None = None if self._main["params"] else ()

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

        The arrays are copied. Raises ParameterError that lists every name that is missing,
        unexpected or of another shape or dtype; the weights in use stay as they were.
        """
        problems = [f"unexpected {name!r}" for name in sorted(set(params) - self._param_names())]
        arrays = []
        for spec in self._main["params"]:
            if spec["name"] not in params:
                problems.append(f"missing {spec['name']!r}")
                continue
            array = np.asarray(_as_numpy(params[spec["name"]]))
            if list(array.shape) != spec["shape"] or str(array.dtype) != spec["dtype"]:
                problems.append(
                    f"{spec['name']!r} is {_describe(array.shape, str(array.dtype))}, "
                    f"not {_describe(spec['shape'], spec['dtype'])}"
                )
            arrays.append(array)
        if problems:
            raise ParameterError("weights do not fit: " + "; ".join(problems))
        tensors = [bfloat16.to_tensor(self._ffi, aligned_copy(array)) for array in arrays]
        transform = self._main["transform"]
        if transform is not None and tensors:
            self._params = tuple(self._machine()[transform](tensors))
        else:
            self._params = tuple(tensors)

    def _param_names(self) -> set[str]:
        return {spec["name"] for spec in self._main["params"]}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `main` on arrays in the structure the model was traced with.

        Takes NumPy arrays and anything with `__dlpack__`; an array that is not contiguous or not
        aligned is copied. Returns NumPy arrays in the structure the model returns. Raises
        InputError when an argument's structure, shape or dtype is not the compiled one's.
        """
        return self.unflatten(self.run(self.flatten(args, kwargs)))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arrays among the arguments, in the order of `inputs`."""
        return trees.flatten_arguments(self._main["arguments"], args, kwargs)

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """`outputs`, one per output, in the structure the model returns."""
        return trees.unflatten(self._main["output_tree"], outputs)

    def random_inputs(self, seed: int = 0) -> list[np.ndarray[Any, Any]]:
        """Arrays that fit the signature: standard normal, or zeros and ones for integers."""
        rng = np.random.default_rng(seed)
        arrays = []
        for spec in self._main["inputs"]:
            dtype = np.dtype(spec["dtype"])
            if dtype.kind == "f" or dtype.name == "bfloat16":
                arrays.append(rng.standard_normal(spec["shape"]).astype(dtype))
            else:
                arrays.append(rng.integers(0, 2, spec["shape"]).astype(dtype))
        return arrays

    def run(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """`main` on a flat list of arrays; a flat list of arrays back."""
        outputs = self.call(self.convert(values))
        return [bfloat16.to_array(tensor) for tensor in outputs]

    def convert(self, values: Sequence[Any]) -> list[Any]:
        """Check arrays against the signature and wrap them for `call`, copying where needed."""
        specs = self._main["inputs"]
        if len(values) != len(specs):
            raise InputError(f"takes {len(specs)} arrays, was given {len(values)}")
        return [self._wrap(value, spec) for value, spec in zip(values, specs, strict=True)]

    def call(self, tensors: Sequence[Any], machine: Any = None) -> list[Any]:
        """`main` on what `convert` made; tvm_ffi tensors back. This is what there is to time.

        It runs on the calling thread's virtual machine, or on one that `new_machine` made.
        """
        if self._params is None:
            raise ParameterError("this artifact carries no weights: call set_params first")
        result = (machine or self._machine())["main"](*tensors, *self._params)
        if self._main["bare_output"]:
            return [result]
        return list(result)

    def _wrap(self, value: Any, spec: Mapping[str, Any]) -> Any:
        array = _as_numpy(value)
        if list(array.shape) != spec["shape"] or str(array.dtype) != spec["dtype"]:
            raise InputError(
                f"input {spec['name']!r} is {_describe(array.shape, str(array.dtype))}, "
                f"the model was compiled for {_describe(spec['shape'], spec['dtype'])}"
            )
        usable = array.flags.c_contiguous and array.flags.writeable and array.size
        if not usable or array.ctypes.data % ALIGNMENT:
            array = aligned_copy(array)
        return bfloat16.to_tensor(self._ffi, array)

    def _machine(self) -> Any:
        """This thread's VM: its registers are not locked, the code below them is shared."""
        machine = getattr(self._local, "machine", None)
        if machine is None:
            machine = self._local.machine = self.new_machine()
        return machine

    def new_machine(self) -> Any:
        """A virtual machine of its own for this program; one thread at a time may use it."""
        machine = self._executable()
        machine["vm_initialization"](_CPU, 0, _POOLED_ALLOCATOR)
        return machine


def self_test(program: Program) -> float:
    """Run the artifact's golden example; the largest difference from its recorded outputs.

    Raises ArtifactError when the artifact carries no example.
    """
    if artifact.GOLDEN not in program.manifest["files"]:
        raise ArtifactError(f"{program.path}: carries no {artifact.GOLDEN}")
    from safetensors.numpy import load_file

    golden = load_file(program.path / artifact.GOLDEN)
    results = program.run([golden[f"input.{i}"] for i in range(len(program.inputs))])
    worst = 0.0
    for i, result in enumerate(results):
        expected = golden[f"output.{i}"]
        if np.array_equal(result, expected) or not result.size:
            continue
        have, want = result.astype(np.float64), expected.astype(np.float64)
        if not np.array_equal(have, want, equal_nan=True):
            gap = np.abs(have - want)
            worst = max(worst, float(np.nanmax(gap)))
    return worst


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A C-contiguous copy of `array` whose memory starts at a multiple of ALIGNMENT bytes."""
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    # Not a slice: NumPy leaves the pointer of an empty one where it was.
    copy = np.ndarray(array.shape, array.dtype, memory, start)
    copy[...] = array
    if not copy.size:
        # TVM calls an empty array contiguous only if each stride is the product of what follows.
        strides = [array.itemsize * math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
        return np.lib.stride_tricks.as_strided(copy, strides=strides)
    return copy


def _as_numpy(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return bfloat16.to_array(value)
    return np.asarray(value)


def _describe(shape: Sequence[int], dtype: str) -> str:
    return f"{dtype}({', '.join(str(extent) for extent in shape)})"


def _load_library(ffi: Any, path: Path, manifest: Mapping[str, Any]) -> Any:
    """The artifact's library, from a private copy of the very bytes that were hashed.

    The loader hands out what it has already loaded under a path's name, whatever the file holds
    by now, and a file that is overwritten changes under the process that runs it: so the copy has
    a name of its own, which is gone once it is loaded.
    """
    code = (path / artifact.LIBRARY).read_bytes()
    if hashlib.sha256(code).hexdigest() != manifest["files"][artifact.LIBRARY]:
        raise ArtifactError(f"{path / artifact.LIBRARY}: was changed while it was being loaded")
    with tempfile.TemporaryDirectory(prefix="needle-load-") as folder:
        copy = Path(folder) / f"{Path(folder).name}.so"
        copy.write_bytes(code)
        return ffi.load_module(str(copy))
