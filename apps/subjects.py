"""A model ready to be compiled, compared and timed, and its contestants."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import needle as ndl
import needle_tvm
from apps import peers
from apps.contestants import CODE, EAGER, RUNTIME, fresh
from apps.models import Model
from needle.trace import trace
from needle_runtime.process.timing import Contestant, save_arrays
from needle_tvm.frontend.float64_values import evaluate


@dataclass
class Subject:
    """A model in eval mode and its example inputs. `options` are the keywords of its factory;
    `folder` has its weights and inputs after `save`, and takes further files. PyTorch rounds
    operands of matmuls and convolutions to `precision`."""

    kind: Model
    options: Mapping[str, Any]
    model: Any
    inputs: tuple[np.ndarray, ...]
    precision: str = "float32"
    folder: Path = Path()

    def save(self, folder: Path) -> Subject:
        """Write weights and inputs to the folder, and return this subject."""
        self.folder = folder
        save_arrays(self.files.weights, self.state)
        save_arrays(self.files.inputs, {f"x{i}": x for i, x in enumerate(self.inputs)})
        return self

    @property
    def files(self) -> peers.Files:
        """The saved weights and inputs."""
        weights, inputs = (str(self.folder / f"{name}.npz") for name in ("weights", "inputs"))
        return peers.Files(weights, inputs, self.folder)

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The model's weights by name."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}

    @property
    def tensors(self) -> list[ndl.Tensor]:
        """The inputs as needle's Tensors."""
        return [ndl.Tensor(x, requires_grad=False) for x in self.inputs]

    @property
    def recipe(self) -> dict[str, Any]:
        """Keywords for `apps.contestants.load_needle` to load the same model in another process."""
        return {
            "factory": self.kind.factory,
            "options": dict(self.options),
            "weights": self.files.weights,
            "inputs": self.files.inputs,
        }

    def compile(self, threads: int, **search: Any) -> Any:
        """Compile the model, or load it from needle_tvm's cache if nothing changed."""
        return needle_tvm.compile(self.model, *self.tensors, threads=threads, **search)

    def to_compile(self, name: str, **options: Any) -> dict[str, Any]:
        """Return a setup for `bench.compiling.serve` that compiles the model with these options."""
        path = str(self.folder / name.replace(" ", "-"))
        return {"recipe": self.recipe, "options": options, "path": path}

    def exact(self) -> list[np.ndarray]:
        """Compute the float64 outputs for each set of inputs, op by op on the NumPy device."""
        graph = trace(self.model, *self.tensors)
        found = []
        for arrays in fresh(self.inputs):
            values = evaluate(graph, arrays)
            found += [values[node].numpy() for node in graph.outputs]
        return found

    def eager(self, threads: int, device: str = "cpu") -> Contestant:
        """Return the eager model, on one of needle's own devices, as a contestant."""
        kwargs = {**self.recipe, "device": device}
        return Contestant(EAGER, "apps.contestants:eager", kwargs, threads=threads)

    def called(self, name: str, threads: int, **search: Any) -> Contestant:
        """Return the compiled model as a contestant that is called with Tensors, as users call it.

        It is compiled here; the contestant's process loads it from needle_tvm's cache.
        """
        self.compile(threads, **search)
        kwargs = {**self.recipe, "choices": {"threads": threads, **search}}
        return Contestant(name, "apps.contestants:executable", kwargs, threads=threads)

    def compiled(
        self, name: str, executable: Any, threads: int, way: str = "artifact"
    ) -> Contestant:
        """Return an executable as a contestant, exported to its own artifact (see `exported`)."""
        path = self.folder / f"artifact-{len(list(self.folder.iterdir()))}"
        return self.exported(name, executable.export(path), threads, way)

    def loaded(self, name: str, path: Path | str) -> Contestant:
        """Return the GPU code at `path` as a contestant, called with Tensors on the GPU like the
        result of `needle_tvm.load`. The code gets this subject's weights."""
        kwargs = {"path": str(path), "weights": self.files.weights, "inputs": self.files.inputs}
        return Contestant(name, "apps.contestants:loaded", kwargs)

    def exported(
        self, name: str, path: Path | str, threads: int, way: str = "artifact"
    ) -> Contestant:
        """Return the artifact at `path` as a contestant: its code alone or, if `way` is "program",
        called as users of the runtime call it."""
        kwargs = {"path": str(path), "inputs": self.files.inputs}
        return Contestant(name, f"apps.contestants:{way}", kwargs, threads=threads)

    def ways(self, name: str, threads: int, **search: Any) -> list[Contestant]:
        """Return three contestants: the model called with Tensors, the model called by the runtime,
        and the model's code alone."""
        code = self.compiled(name + CODE, self.compile(threads, **search), threads)
        runtime = self.exported(name + RUNTIME, code.kwargs["path"], threads, "program")
        return [self.called(name, threads, **search), runtime, code]

    def peers(self, names: Collection[str], threads: int, **more: Any) -> list[Contestant]:
        """Return the peers among `names` (keys of apps/peers.py) that are installed and can run
        this model; `more` may set `device` and `code` (see `peers.contestants`)."""
        return peers.contestants(
            self.kind,
            self.files,
            threads,
            options=self.options,
            images=any(x.ndim == 4 for x in self.inputs),
            names=names,
            precision=self.precision,
            **more,
        )
