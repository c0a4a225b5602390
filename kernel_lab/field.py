"""The contestants of a contest (rungs, peers and probes) and the check of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab import build, peers, roofline
from kernel_lab.errors import NotCompiled, WrongResult
from kernel_lab.results import Check, RungResult
from kernel_lab.workload import Array, Case, Workload, describe
from needle_tvm.errors import CudaCompilerError
from needle_tvm.process import timing

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target

LAUNCHES = 100  # of a GPU kernel in a row, to measure its own time
PLACE = "cuda"  # the device of GPU contestants as TVM and PyTorch name it; a test may say "cpu"


def one_launch(name: str) -> str:
    """The name of the contestant that waits for each single launch of a GPU kernel."""
    return f"{name}, one launch"


class Field:
    """The contestants of one contest: libraries and inputs in a folder."""

    def __init__(
        self,
        workload: Workload,
        case: Case,
        target: Target,
        folder: Path,
        seed: int,
        device: str,
    ) -> None:
        self.workload, self.case, self.target, self.folder = workload, case, target, folder
        self.device = device
        self.arrays = workload.inputs(case.size, seed)
        self.inputs = str(folder / "inputs.npz")
        _save(self.inputs, self.arrays)
        self.contestants: list[timing.Contestant] = []

    def add_rung(self, entry: RungResult) -> None:
        shape = list(self.workload.shapes(self.case.size)[-1])
        self._add_library(entry.name, entry.module, self.inputs, shape)

    def add_peer(self, name: str) -> None:
        (peer,) = (p for p in peers.of(self.workload, self.device) if p.name == name)
        for label, launches in self._calls(name):
            options = {"device": "cpu" if self.device == "cpu" else PLACE, "launches": launches}
            one = peers.contestant(
                peer,
                self.workload,
                self.inputs,
                self.case.size,
                self.case.processor.cores,
                options,
            )
            self.contestants.append(replace(one, name=label))

    def _calls(self, name: str) -> list[tuple[str, int]]:
        """A contestant's timed calls: (label, launches per call)."""
        if self.device == "cpu":
            return [(name, 1)]
        return [(name, LAUNCHES), (one_launch(name), 1)]

    def add_probes(self) -> dict[str, roofline.Probe]:
        working_set = self.workload.bytes(self.case.size)
        probes = roofline.probes(self.case.processor, working_set)
        for number, (name, probe) in enumerate(probes.items()):
            inputs = str(self.folder / f"probe{number}.npz")
            _save(inputs, [np.zeros(shape, np.float32) for shape in probe.shapes[:-1]])
            self._add_library(name, probe.module, inputs, list(probe.shapes[-1]))
        return probes

    def _add_library(self, name: str, module: Any, inputs: str, output: list[int]) -> None:
        path = self.folder / f"{len(self.contestants)}.so"
        try:
            build.write_library(module, self.target, path)
        except CudaCompilerError as error:
            raise NotCompiled(f"{self.workload.name}: {name}: {error}", name) from error
        kwargs: dict[str, Any] = {"path": str(path), "inputs": inputs, "output": output}
        factory = "library" if self.device == "cpu" else "device_library"
        for label, launches in self._calls(name):
            if self.device != "cpu":
                kwargs = {**kwargs, "launches": launches, "device": PLACE}
            self.contestants.append(
                timing.Contestant(
                    label,
                    f"kernel_lab.contestants:{factory}",
                    kwargs,
                    threads=self.case.processor.cores,
                )
            )

    def check(self, outputs: Mapping[str, Sequence[Array]], entries: Sequence[RungResult]) -> None:
        """Record every entry's error; raise WrongResult naming the first one that is wrong."""
        expected = self.workload.reference(self.case.size, self.arrays)
        for entry in entries:
            tolerance = self.workload.tolerance(self.case.size, entry.precision)
            entry.check = compare(outputs[entry.name][0], expected, tolerance)
            if not entry.check.error <= tolerance:
                raise WrongResult(
                    f"{self.workload.name}: {entry.name} differs from NumPy in float64 by "
                    f"{entry.check.error:.1e} of the largest value at {describe(self.case.size)}, "
                    f"{tolerance:.1e} is allowed",
                    entry.name,
                )


def compare(result: Array, expected: Array, tolerance: float) -> Check:
    """The largest difference relative to the largest expected magnitude; infinite for a NaN."""
    if result.shape != expected.shape or not np.isfinite(result).all():
        return Check(float("inf"), tolerance)
    scale = float(np.max(np.abs(expected), initial=0.0)) or 1.0
    return Check(float(np.max(np.abs(result - expected), initial=0.0)) / scale, tolerance)


def _save(path: str, arrays: Sequence[Array]) -> None:
    named: dict[str, Any] = {f"input_{number}": array for number, array in enumerate(arrays)}
    np.savez(path, **named)
