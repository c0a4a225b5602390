"""A program: a loaded artifact that this machine can run and that is called with arrays.

    import needle_runtime
    model = needle_runtime.load("out/mlp")
    y = model(x)

Only the libraries of TVM's runtime (3 MB) and of tvm-ffi are loaded. `tvm` is never imported, and
`tvm_ffi` only for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from needle_runtime import weights
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.layout import PARAMS
from needle_runtime.artifact.replacing import undisturbed
from needle_runtime.artifact.summary import summary
from needle_runtime.calls import Calls
from needle_runtime.errors import ArtifactError, ParameterError, UsageError
from needle_runtime.executor import Executor
from needle_runtime.process.forks import loading
from needle_runtime.process.paths import StrPath, as_path
from needle_runtime.state import OwnState, stepped

Arrays = dict[str, np.ndarray[Any, Any]]


class Program:
    """A loaded artifact: call it with arrays, get arrays. Safe to call from any thread.

    `device` is the index of the GPU that GPU code runs on. Raises TargetError if this machine
    cannot run the artifact, ArtifactError if another version of TVM built it or its files have
    changed.

    `executor` has the program's parts: conversions, tensors, virtual machines.
    """

    def __init__(self, artifact: Artifact, device: int = 0) -> None:
        self.artifact = artifact
        with loading:
            self.executor = Executor(artifact, device)
            self._calls = Calls(self.executor, share=lambda tensor: tensor)
        self.kept: OwnState | None = None  # a model's state, once it is given

    def __repr__(self) -> str:
        return summary(type(self).__name__, self.artifact.manifest, self.artifact.main)

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """Name, shape and dtype of each input, in order."""
        return self._described("inputs")

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Shape and dtype of each output, in order, and its name if the model names it."""
        return self._described("outputs")

    @property
    def params(self) -> list[dict[str, Any]]:
        """Name, shape and dtype of each parameter, in order."""
        return self._described("params")

    def _described(self, kind: str) -> list[dict[str, Any]]:
        return list(self.artifact.manifest["functions"]["main"][kind])

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Use the weights `params` from now on: arrays by name, which are copied and packed.

        They include a model's state, which starts again from these values. Raises ParameterError,
        which lists every name that does not fit (see `weights.in_order`); the current weights then
        stay in use.
        """
        main = self.artifact.main
        arrays = weights.in_order(main, params)
        count = len(main.params)
        self.executor.use(self.executor.copied(arrays[:count]))
        self.begin(arrays[count:])

    def set_weights(self, params: Mapping[str, Any]) -> None:
        """Use the weights `params` from now on, like `set_params`, but keep the model's state."""
        arrays = weights.in_order(self.artifact.main, params, state=False)
        self.executor.use(self.executor.copied(arrays))

    def begin(self, state: Sequence[np.ndarray[Any, Any]]) -> None:
        """Use copies of these arrays as the model's state."""
        names = [spec.name for spec in self.artifact.main.state]
        self.kept = OwnState(dict(zip(names, state, strict=True))) if names else None

    def state(self) -> Arrays:
        """Return a copy of the state after the calls so far: arrays by name, such as weights and
        moments of a training step. The copy is empty for a model without state. Raises
        ParameterError if the state has not been given yet."""
        return self._own_state().arrays() if self.artifact.main.state else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, arrays by name as `state()` returns them.

        Raises ParameterError, which lists every name that is missing, unexpected, or of another
        shape or dtype; the state then stays as it was.
        """
        own = self._own_state() if self.artifact.main.state else None
        arrays = weights.in_order(self.artifact.main, state, weights=False)
        if own is not None:
            own.replace(arrays)

    def _own_state(self) -> OwnState:
        if self.kept is None:
            raise ParameterError("this artifact carries no state: call set_params first")
        return self.kept

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `main` on arrays in the structure that the model was traced with.

        Takes NumPy arrays and anything with `__dlpack__`; an array that is not contiguous or not
        aligned is copied. Returns NumPy arrays in the structure that the model returns. If all
        inputs are on the code's GPU, returns tvm_ffi Tensors (with DLPack) on that GPU. If
        `out=` gives arrays in that structure, the results are written to them and `out` is
        returned, unless the model has an argument of that name. A model with state continues from
        the previous call.

        Raises InputError for an argument whose structure, shape or dtype does not fit the compiled
        code, for indices out of range (indices in a GPU's memory are not checked), and for an `out`
        that does not fit, is read-only, or overlaps an input.
        """
        if self.artifact.main.state:
            return stepped(self.executor, self._calls, self._own_state(), args, kwargs)
        return self._calls(args, kwargs)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run `main` on `values`, a flat list of arrays, one per input; return a flat list.

        A model's state comes last in both lists, and nothing is kept between calls. Takes and
        returns the same kinds of arrays as a call, and raises the same errors.
        """
        return self._calls.run(values)


def load(path: StrPath, *, require_signature: StrPath | None = None, device: int = 0) -> Program:
    """Verify the artifact at `path`, then load it.

    With `require_signature`, the PEM file of an Ed25519 public key, only an artifact signed with
    that key is loaded. `device` is the index of the GPU that GPU code runs on.

    Raises ArtifactError if the artifact is absent, damaged or built by another version of TVM,
    TargetError if this machine cannot run it, SignatureError if it is not signed by that key,
    KeyFileError if the file holds no key, InstallError without the package `cryptography`,
    UsageError for a value that is not a path or an index. In all these cases, no part of the
    artifact is loaded.
    """
    folder = as_path(path, "path", ArtifactError)
    if type(device) is not int or device < 0:
        raise UsageError(f"device={device!r}: must be the index of a GPU")

    def read() -> Program:
        artifact, params = _verified(folder, require_signature)
        program = Program(artifact, device)
        if params is not None:
            executor = program.executor
            arrays, count = weights.in_order(artifact.main, params), len(artifact.main.params)
            tensors = executor.copied(arrays[:count])
            program.begin(arrays[count:])
            del params, arrays  # the file's bytes; packing needs as much memory again
            executor.use(tensors)
        return program

    with loading:
        return undisturbed(folder, read)


def load_with_params(
    path: StrPath, require_signature: StrPath | None = None
) -> tuple[Program, Arrays | None]:
    """Load the artifact at `path` like `load`; return it and the weights stored in it, or None if
    it has no weights. `require_signature` is as for `load`."""
    folder = as_path(path, "path", ArtifactError)

    def read() -> tuple[Program, Arrays | None]:
        artifact, params = _verified(folder, require_signature)
        return Program(artifact), params

    with loading:
        program, params = undisturbed(folder, read)
        if params is not None:
            program.set_params(params)
    return program, params


def _verified(folder: Path, require_signature: StrPath | None) -> tuple[Artifact, Arrays | None]:
    """Return an artifact that this machine can run, with every file checked, and its weights."""
    artifact = Artifact.open(folder, require_signature, unread=(PARAMS,))
    artifact.check_runs_here()  # before reading the weights, which may take long
    return artifact, artifact.read_arrays(PARAMS)
