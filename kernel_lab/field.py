"""The contestants of a contest (rungs, peers and probes) and the check of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab import build, peers, roofline
from kernel_lab.errors import ContestantError, NotCompiled, WrongResult
from kernel_lab.results import Check, RungResult
from kernel_lab.workload import Array, Case, Workload, describe
from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.errors import CudaCompilerError
from needle_tvm.process import timing
from needle_tvm.words import error_line

if TYPE_CHECKING:
    from needle_tvm._tvm.names import Target

LAUNCHES = 100  # of a GPU kernel in a row, to measure its own time
PLACE = "cuda"  # the device of GPU contestants as TVM and PyTorch name it; a test may say "cpu"


def one_launch(name: str) -> str:
    """The name of the contestant that waits for each single launch of a GPU kernel."""
    return f"{name}, one launch"


class Field:
    """The contestants of one contest: libraries and inputs in a folder.

    An entry that fails or is wrong raises ContestantError or TimingError; with `keep_going` its
    `refused` gets the reason, and the others go on.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        target: Target,
        folder: Path,
        seed: int,
        device: str,
        keep_going: bool = False,
    ) -> None:
        self.workload, self.case, self.target, self.folder = workload, case, target, folder
        self.device, self.keep_going = device, keep_going
        self.arrays = workload.inputs(case.size, seed)
        self.inputs = str(folder / "inputs.npz")
        _save(self.inputs, self.arrays)
        self.contestants: list[timing.Contestant] = []
        self.entries: list[RungResult] = []

    def add_rung(self, entry: RungResult) -> None:
        """Compile a rung; raises NotCompiled if nvcc refuses it."""
        shape = list(self.workload.shapes(self.case.size)[-1])
        try:
            self._add_library(
                entry.name, entry.module, self.inputs, shape, self.workload.result_dtype
            )
        except NotCompiled as error:
            self._refuse(entry, error)
        else:
            self.entries.append(entry)

    def add_peer(self, entry: RungResult) -> None:
        """Add the peer that has this entry."""
        (peer,) = (p for p in peers.of(self.workload, self.device) if p.name == entry.name)
        self.entries.append(entry)
        for label, launches in self._calls(entry.name):
            one = peers.contestant(
                peer,
                self.workload,
                self.inputs,
                self.case.size,
                self.case.processor.cores,
                device="cpu" if self.device == "cpu" else PLACE,
                launches=launches,
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

    def _add_library(
        self, name: str, module: Any, inputs: str, output: list[int], dtype: str = "float32"
    ) -> None:
        path = self.folder / f"{len(self.contestants)}.so"
        try:
            build.write_library(module, self.target, path)
        except CudaCompilerError as error:
            raise NotCompiled(f"{self.workload.name}: {name}: {error}", name) from error
        kwargs: dict[str, Any] = {"path": str(path), "inputs": inputs, "output": output}
        kwargs["dtype"] = dtype
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
                    repeats=launches,
                )
            )

    def check(self, outputs: Mapping[str, Sequence[Array]]) -> None:
        """Note the error of every entry; WrongResult names the first that is wrong."""
        expected = self.workload.reference(self.case.size, self.arrays)
        for entry in self.entries:
            if entry.refused is not None:
                continue
            tolerance = self.workload.tolerance(self.case.size, entry.precision)
            entry.check = compare(outputs[entry.name][0], expected, tolerance)
            if not entry.check.error <= tolerance:
                wrong = WrongResult(
                    f"{self.workload.name}: {entry.name} differs from NumPy in float64 by "
                    f"{entry.check.error:.1e} of the largest value at {describe(self.case.size)}, "
                    f"{tolerance:.1e} is allowed",
                    entry.name,
                )
                self._refuse(entry, wrong)

    def leave_out(self, error: timing.TimingError) -> bool:
        """Whether the contest goes on without a contestant that failed."""
        for entry in self.entries:
            if error.child in (entry.name, one_launch(entry.name)) and self.keep_going:
                entry.refused = entry.refused or error_line(error)
                return True
        return False

    def _refuse(self, entry: RungResult, error: ContestantError) -> None:
        if not self.keep_going:
            raise error
        entry.refused = error_line(error)


def compare(result: Array, expected: Array, tolerance: float) -> Check:
    """The largest difference relative to the largest expected magnitude; infinite for a NaN."""
    return Check(relative_difference(expected, result.astype(expected.dtype)), tolerance)


def _save(path: str, arrays: Sequence[Array]) -> None:
    timing.save_arrays(path, {f"input_{number}": array for number, array in enumerate(arrays)})
