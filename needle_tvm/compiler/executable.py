"""`Executable`: a compiled model that can be called and exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import needle
import needle_runtime
from needle.backend_ndarray import NDArray
from needle.backend_ndarray.dtypes import DTYPES
from needle_runtime import weights
from needle_runtime.artifact import Artifact, trees
from needle_runtime.artifact.arrays import as_numpy
from needle_runtime.artifact.function import Function
from needle_runtime.artifact.golden import Golden
from needle_runtime.artifact.layout import GOLDEN, LIBRARY, PARAMS, SCRIPT
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.artifact.replacing import writing
from needle_runtime.artifact.summary import summary
from needle_runtime.artifact.tolerance import estimated_tolerances
from needle_runtime.calls import Calls
from needle_runtime.errors import ArtifactError, TargetError
from needle_runtime.executor import Executor
from needle_runtime.process.paths import StrPath
from needle_runtime.random_inputs import random_inputs
from needle_runtime.state import OwnState, State, stepped
from needle_tvm.frontend import reference
from needle_tvm.frontend.source import FixedWeights, Source, Weights, to_numpy

if TYPE_CHECKING:
    Arrays = dict[str, np.ndarray[Any, Any]]


class Executable:
    """A compiled model. Call it like the model, with Tensors, NumPy or DLPack arrays.

    Results are Tensors. They are on the code's GPU if all inputs are there.

    The code follows the weights of the model it was compiled from: a call uses their values as
    last written by an optimizer, `load_state_dict` or any other write through needle. Calls under
    way finish with the weights they began with. Writes by other libraries to shared memory (DLPack)
    are not seen. The weights of a PyTorch model, of a loaded model, and of any executable after
    `set_params` stay fixed. The model's state (the tensors that its calls write) is read from the
    model's tensors and written to them.

    An executable for another machine has an `artifact`, which can be inspected and exported, but no
    program.

    >>> model = nn.Linear(8, 4)
    >>> x = ndl.randn(3, 8)
    >>> compiled = needle_tvm.compile(model.eval(), x)
    >>> folder = compiled.export("linear")
    >>> loaded = needle_tvm.load("linear")
    >>> np.allclose(loaded(x).numpy(), model(x).numpy(), atol=1e-5)
    True
    """

    def __init__(
        self,
        artifact: Artifact,
        program: needle_runtime.Program | None,
        *,
        from_cache: bool = False,
        source: Source | None = None,
        params: Arrays | None = None,
    ) -> None:
        self.artifact = artifact
        self._program = program
        self._calls = None if program is None else calls_of(program)
        self.from_cache = from_cache
        self._source = source
        self._weights: Weights | None = None if params is None else FixedWeights(params)
        self._loaded_weights = self._weights
        self._state: State | None = None if program is None else program.kept
        if source is not None:
            self._weights = source.weights
            self._state = source.state
            if program is not None:
                program.set_weights(source.weights.values())

    def __repr__(self) -> str:
        artifact = self.artifact
        cannot = {} if self._program is not None else {"here": f"cannot run: {artifact.obstacle}"}
        return summary(type(self).__name__, artifact.manifest, artifact.main, **cannot)

    @property
    def program(self) -> needle_runtime.Program:
        """The loaded code. Raises TargetError if this machine cannot run it."""
        if self._program is None:
            raise TargetError(self.artifact.obstacle)
        return self._program

    @property
    def path(self) -> Path:
        """The folder of the artifact."""
        return self.artifact.path

    @property
    def manifest(self) -> dict[str, Any]:
        """The artifact's manifest: functions, target, versions, files."""
        return self.artifact.manifest

    @property
    def script(self) -> str:
        """The TVMScript of the module the library was built from."""
        return (self.path / SCRIPT).read_text()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Use the weights `params` (a `state_dict`) from now on; stop following the model's.

        Buffers that are not in a `state_dict` may be left out. The model's state, if it has one,
        then starts from its values in `params` and is no longer shared with the model.

        Raises ParameterError as `needle_runtime.Program.set_params` does.
        """
        values = params
        if isinstance(params, Mapping):
            values = {
                name: each.numpy() if isinstance(each, needle.Tensor) else each
                for name, each in params.items()
            }
        main = self.artifact.main
        if isinstance(values, Mapping) and self._weights is not None:
            now = self._weights.values()
            values = {**{name: now[name] for name in main.unsaved if name in now}, **values}
        arrays = weights.in_order(main, values)
        if self._program is not None:  # without a program, params are only exported
            self._program.set_params(values)
        count = len(main.params)
        if main.state:
            self._state = self._program.kept if self._program is not None else None
            self._state = self._state or OwnState(_named(main, arrays[count:]))
        pairs = zip(main.params, arrays[:count], strict=True)
        copies = {spec.name: np.array(array) for spec, array in pairs}
        self._weights = FixedWeights(copies)

    def with_state(self, state: State) -> Executable:
        """Make `state` the executable's own state; return the executable."""
        self._state = state
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; return Tensors in the structure that the model returns.

        `out=` takes arrays in that structure (Tensors, NDArrays, NumPy or DLPack arrays): the
        results are written to them, and `out` is returned. If the model itself has an argument
        named `out`, the value is passed to the model. An array that does not fit, is read-only, or
        overlaps an input raises InputError.

        Raises InputError if an argument differs from the compiled structure, shape or dtype,
        ParameterError if a weight of the model now has another shape or dtype, ChangedError if a
        weight no longer exists or a tensor that was compiled as a constant has been written to,
        TargetError if this machine cannot run the code.
        """
        program, calls = self._program, self._calls
        if program is None or calls is None:
            raise TargetError(self.artifact.obstacle)
        if self._weights is not None:
            self._weights.follow(program.set_weights)
        if self._state is None:
            results = calls(args, kwargs)
        else:
            results = stepped(program.executor, calls, self._state, args, kwargs)
        if kwargs and results is kwargs.get("out"):
            for each in trees.flatten(self.artifact.main.output_tree, results, "out"):
                array = each.realize_cached_data() if isinstance(each, needle.Tensor) else each
                if isinstance(array, NDArray):
                    array.device.kernels.mark_written(array.view)
        return results

    def export(self, path: StrPath, *, sign: StrPath | None = None) -> Path:
        """Write the artifact, weights and a golden example included, to the folder `path`.

        The weights are the current ones. The golden example has the inputs that the model was
        compiled with and the eager model's outputs for them with these weights; a model compiled
        with `dims` has further examples at the least and the largest sizes. An existing artifact is
        replaced as a whole or not at all. With `sign`, the PEM file of an Ed25519 private key, the
        manifest is signed.

        Raises ArtifactError if the artifact cannot be written or `path` holds something else,
        KeyFileError if the key cannot be used, InstallError without the package `cryptography`.
        """
        from safetensors.numpy import save_file

        if self._weights is None and self.artifact.main.params:
            raise ArtifactError(f"{path}: no weights to export")
        params = {} if self._weights is None else _arrays(self._weights)
        if self._state is not None:
            params |= _named(self.artifact.main, self._state.values())
        golden = self._golden(params)
        manifest = {k: v for k, v in self.manifest.items() if k not in ("key", "golden")}
        with writing(path) as folder:
            for name in (LIBRARY, SCRIPT):
                (folder / name).write_bytes(self.artifact.read(name))
            try:
                save_file(_contiguous(params), folder / PARAMS)
                save_file(_contiguous(golden.arrays()), folder / GOLDEN)
            except Exception as error:  # safetensors raises its own type for a full disk
                raise OSError(str(error)) from error
            write_manifest(folder, {**manifest, "golden": golden.facts()}, sign)
        return Path(path)

    def _golden(self, params: Arrays) -> Golden:
        """Return the golden example for these weights."""
        carried = self.artifact.golden()
        if carried is not None and self._weights is self._loaded_weights:
            return carried
        if self._source is not None:
            source = self._source
            first, *others = [
                Golden(each, source.reference(each, params), reference.EAGER, tolerances)
                for each in source.examples
                for tolerances in [source.tolerances(each)]
            ]
            return replace(first, others=others)
        # The artifact was loaded and then given other weights; its eager model is not available.
        if carried is None:
            return self._compiled_golden(random_inputs(self.artifact))
        others = [self._compiled_golden(each.inputs) for each in carried.others]
        return replace(self._compiled_golden(carried.inputs), others=others)

    def _compiled_golden(self, inputs: Sequence[np.ndarray[Any, Any]]) -> Golden:
        program = self.program
        outputs = program.run(inputs)
        described = [{"shape": each.shape, "dtype": str(each.dtype)} for each in outputs]
        tolerances = estimated_tolerances(described, program.params, self.artifact.precision)
        return Golden(inputs, outputs, reference.COMPILED, tolerances)


def _named(main: Function, state: Sequence[Any]) -> Arrays:
    """Return copies of a state's arrays by name."""
    return {
        spec.name: np.array(as_numpy(array, spec.name))
        for spec, array in zip(main.state, state, strict=True)
    }


def calls_of(program: needle_runtime.Program) -> Calls:
    """Return a program's Calls, whose results are Tensors."""
    executor = program.executor
    stored = _result(executor)
    share = None if stored is None else needle.from_dlpack
    return Calls(executor, stored, _tensor, share)


def _result(executor: Executor) -> type | None:
    """Return the class of results; None if needle stores the dtype of a result, such as PyTorch's
    int8, as another dtype."""
    stored = all(str(spec.dtype) in DTYPES for spec in executor.results)
    return needle.Tensor if stored else None


def _tensor(array: np.ndarray[Any, Any]) -> needle.Tensor:
    return needle.Tensor(array, requires_grad=False)


def _arrays(weights: Weights) -> Arrays:
    return {name: to_numpy(value) for name, value in weights.values().items()}


def _contiguous(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}
