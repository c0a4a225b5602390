"""The contestants of a contest (rungs, peers and probes) and the check of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab import build, peers, roofline
from kernel_lab.errors import ContestantError, NotCompiled, WrongResult
from kernel_lab.results import Check, RungResult
from kernel_lab.workload import Array, Case, Workload, describe
from needle_runtime.artifact.tolerance import compare
from needle_runtime.process import timing
from needle_runtime.process.threads import available_cores
from needle_runtime.text import error_line
from needle_tvm.errors import CudaCompilerError

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target


class Field:
    """The contestants of one contest: libraries and inputs in a folder.

    An entry that fails or is wrong raises ContestantError or TimingError. With `keep_going`, the
    entry's `refused` gets the reason instead, and the other entries continue.
    """

    def __init__(
        self,
        workload: Workload,
        case: Case,
        target: Target | None,  # None if no library needs compiling
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

    def add_rung(self, entry: RungResult, library: Path | None = None) -> None:
        """Add a rung with its `library`, which is compiled here if it is None; raises NotCompiled
        if nvcc rejects it."""
        shape = list(self.workload.shapes(self.case.size)[-1])
        try:
            path = library or self._compile(entry.name, entry.module)
        except NotCompiled as error:
            self._refuse(entry, error)
        else:
            dtype = self.workload.result_dtype
            self._add_library(entry.name, path, self.inputs, shape, dtype)
            self.entries.append(entry)

    def add_peer(self, entry: RungResult) -> None:
        """Add the peer that `entry` names."""
        (peer,) = (p for p in peers.of(self.workload, self.device) if p.name == entry.name)
        threads = self.case.processor.cores if self.device == "cpu" else available_cores()
        self.add(entry, peers.contestant(peer, self.workload, self.inputs, self.case.size, threads))

    def add(self, entry: RungResult, contestant: timing.Contestant) -> None:
        """Add a contestant that computes the workload from the saved `inputs`."""
        self.entries.append(entry)
        self.contestants.append(contestant)

    def add_probes(self) -> dict[str, roofline.Probe]:
        working_set = self.workload.bytes(self.case.size)
        probes = roofline.probes(self.case.processor, working_set)
        for number, (name, probe) in enumerate(probes.items()):
            inputs = str(self.folder / f"probe{number}.npz")
            _save(inputs, [np.zeros(shape, np.float32) for shape in probe.shapes[:-1]])
            path = self._compile(name, probe.module)
            self._add_library(name, path, inputs, list(probe.shapes[-1]))
        return probes

    def _compile(self, name: str, module: Any) -> Path:
        path = self.folder / f"{len(self.contestants)}.so"
        assert self.target is not None  # a run that compiles has a target
        compile_rung(self.workload, name, module, self.target, path)
        return path

    def _add_library(
        self, name: str, path: Path, inputs: str, output: list[int], dtype: str = "float32"
    ) -> None:
        kwargs = {"path": str(path), "inputs": inputs, "output": output, "dtype": dtype}
        factory = "library" if self.device == "cpu" else "device_library"
        self.contestants.append(
            timing.Contestant(
                name,
                f"kernel_lab.contestants:{factory}",
                kwargs,
                threads=self.case.processor.cores,
            )
        )

    def check(self, outputs: Mapping[str, Sequence[Array]]) -> None:
        """Record the error of every entry; raise WrongResult for the first wrong one, unless
        `keep_going`."""
        expected = self.workload.reference(self.case.size, self.arrays)
        for entry in self.entries:
            if entry.refused is not None:
                continue
            tolerance = self.workload.tolerance(self.case.size, entry.precision)
            compared = compare(expected, outputs[entry.name][0], tolerance, same_dtype=False)
            entry.check = Check(compared.relative, tolerance)
            if not compared.right:
                wrong = WrongResult(
                    f"{self.workload.name}: {entry.name} differs from NumPy in float64 by "
                    f"{entry.check.error:.1e} of the largest value at {describe(self.case.size)}; "
                    f"{tolerance:.1e} is allowed",
                    entry.name,
                )
                self._refuse(entry, wrong)

    def leave_out(self, error: timing.TimingError) -> bool:
        """Return whether the contest goes on without a contestant that failed."""
        for entry in self.entries:
            if error.child == entry.name and self.keep_going:
                entry.refused = entry.refused or error_line(error)
                return True
        return False

    def _refuse(self, entry: RungResult, error: ContestantError) -> None:
        if not self.keep_going:
            raise error
        entry.refused = error_line(error)


def compile_rung(
    workload: Workload, name: str, module: IRModule, target: Target, path: Path
) -> None:
    """Write a rung's library; raises NotCompiled if nvcc rejects it."""
    try:
        build.write_library(module, target, path)
    except CudaCompilerError as error:
        raise NotCompiled(f"{workload.name}: {name}: {error}", name) from error


def _save(path: str, arrays: Sequence[Array]) -> None:
    timing.save_arrays(path, {f"input_{number}": array for number, array in enumerate(arrays)})
