"""A compiled model, to be called and exported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import needle
from needle.backend_ndarray.threads import rest_threads
from needle_tvm import runtime
from needle_tvm.artifact import artifact
from needle_tvm.artifact.tolerance import estimated_tolerances
from needle_tvm.errors import ArtifactError
from needle_tvm.frontend import reference
from needle_tvm.frontend.source import FixedWeights, Source, Weights, to_numpy
from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    Arrays = dict[str, np.ndarray[Any, Any]]


class Executable:
    """A compiled model: call it as the model is called, with Tensors, NumPy or DLPack arrays.

    It follows the weights of the model it was compiled from: what an optimizer, `load_state_dict`
    or any other write through needle has done to them by the time of a call is what the call uses.
    Calls under way finish with the weights they began with. Writes of other libraries to shared
    memory (DLPack) are not seen. A model of PyTorch's, and a loaded one, keeps the weights that it
    has; so does any after `set_params`.
    """

    def __init__(
        self,
        program: runtime.Program,
        *,
        from_cache: bool = False,
        source: Source | None = None,
        params: Arrays | None = None,
    ) -> None:
        self.program = program
        self.from_cache = from_cache
        self._source = source
        self._weights: Weights | None = None if params is None else FixedWeights(params)
        self._loaded_weights = self._weights
        if source is not None:
            self._weights = source.weights
            if program.refusal is None:
                program.set_params(source.weights.values())

    @property
    def path(self) -> Path:
        """The artifact directory the code was loaded from."""
        return self.program.path

    @property
    def manifest(self) -> dict[str, Any]:
        """What the artifact says of itself: functions, target, versions, files."""
        return self.program.manifest

    @property
    def script(self) -> str:
        """TVMScript of the module the library was built from."""
        return (self.path / artifact.SCRIPT).read_text()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Use other weights (as a `state_dict`) from now on, and follow the model's no more; see
        `runtime.Program.set_params`."""
        given = params
        if isinstance(params, Mapping):
            given = {
                name: each.numpy() if isinstance(each, needle.Tensor) else each
                for name, each in params.items()
            }
        arrays = self.program.in_order(given)
        if self.program.refusal is None:  # else it is for an export: there is nowhere to put them
            self.program.set_params(given)
        names = [spec["name"] for spec in self.program.params]
        copies = {n: np.array(array) for n, array in zip(names, arrays, strict=True)}
        self._weights = FixedWeights(copies)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; Tensors in the structure the model returns.

        Raises InputError when an argument's structure, shape or dtype is not the compiled one's,
        ParameterError when a weight of the model has got another shape or dtype, ChangedError when
        one is gone, or a tensor that was a constant has been written.
        """
        arrays = self.program.flatten(args, kwargs)
        if self._weights is not None:
            self._weights.follow(self.program.set_params)
        rest_threads()  # needle's own, which TVM's would find on their cores
        outputs = self.program.run(arrays)
        tensors = [needle.Tensor(output, requires_grad=False) for output in outputs]
        return self.program.unflatten(tensors)

    def export(
        self, path: str | os.PathLike[str], *, sign: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write the artifact, weights and a golden example included, to the folder `path`.

        The weights are those of this moment. The example is the inputs the model was compiled with,
        and what the eager model gives for them with these weights. An artifact that is there is
        replaced, whole or not at all. With `sign`, the PEM file of an Ed25519 private key, the
        manifest is signed.

        Raises ArtifactError when it cannot be written, or when something else is there,
        KeyFileError when the key cannot be used, InstallError without the package `cryptography`.
        """
        from safetensors.numpy import save_file

        if self._weights is None and self.program.params:
            raise ArtifactError(f"{path}: no weights to export")
        params = {} if self._weights is None else _arrays(self._weights)
        example, facts = self._golden(params)
        manifest = {k: v for k, v in self.manifest.items() if k not in ("key", "golden")}
        with artifact.writing(path) as folder:
            for name in (artifact.LIBRARY, artifact.SCRIPT):
                (folder / name).write_bytes(artifact.read_file(self.path, self.manifest, name))
            try:
                save_file(_contiguous(params), folder / artifact.PARAMS)
                save_file(_contiguous(example), folder / artifact.GOLDEN)
            except Exception as error:  # safetensors raises a type of its own for a full disk
                raise OSError(str(error)) from error
            artifact.write_manifest(folder, {**manifest, "golden": facts}, sign)
        return Path(path)

    def _golden(self, params: Arrays) -> tuple[Arrays, dict[str, Any]]:
        """The arrays of the golden example, and what the manifest says of it."""
        carried = runtime.read_arrays(self.path, self.manifest, artifact.GOLDEN)
        if carried is not None and self._weights is self._loaded_weights:
            return carried, self.manifest["golden"]
        if self._source is not None:
            inputs, made_by = self._source.example, reference.EAGER
            outputs = self._source.reference(inputs, params)
            tolerances = self._source.tolerances()
        else:  # loaded, and then given other weights: the model itself is elsewhere
            count = len(self.program.inputs)
            inputs = self.program.random_inputs()
            if carried is not None:
                inputs = [carried[f"input.{i}"] for i in range(count)]
            made_by, outputs = reference.COMPILED, self.program.run(inputs)
            tolerances = estimated_tolerances(
                self.program.outputs, self.program.params, self.manifest.get("precision", FLOAT32)
            )
        arrays = {f"input.{i}": array for i, array in enumerate(inputs)}
        arrays |= {f"output.{i}": array for i, array in enumerate(outputs)}
        return arrays, {"source": made_by, "tolerances": tolerances}


def _arrays(weights: Weights) -> Arrays:
    return {name: to_numpy(value) for name, value in weights.values().items()}


def _contiguous(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}
