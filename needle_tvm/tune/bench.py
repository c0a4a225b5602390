"""Build and measure a search's candidates, on this machine or on a cluster.

`search.search` opens one `Bench` for its whole run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from needle_runtime.process.scratch import scratch_folder
from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm import names as tvm_names
from needle_tvm.tune.measure.cluster import Cluster
from needle_tvm.tune.measure.workers import OK, Limits, Outcome, Runner, Workers
from needle_tvm.tune.records import facts

WRONG = "wrong"  # kind of a candidate that ran but gave wrong results
UNFIT = "unfit"  # kind of a candidate whose GPU kernels spill too many registers


@dataclass(frozen=True)
class Seconds:
    """Time limits for one request: preparing a gate, building a candidate, or running it."""

    prepare: float
    build: float
    run: float


# By code generator. nvcc takes seconds, and a process's first use of a GPU may also take seconds.
_SECONDS = {CPU: Seconds(300.0, 10.0, 15.0), GPU: Seconds(300.0, 90.0, 30.0)}
_SERVICE = "needle_tvm.tune.measure.services:serve"
# Candidates are timed with meta_schedule's defaults.
_EVALUATOR: dict[str, Any] = {"number": 3, "repeat": 1, "min_repeat_ms": 100}


class Bench:
    """A pool of processes that build, judge and time candidates; a context manager that ends them.

    `target` is TVM's description of the candidates' target, and `device` is this machine's device
    on which they run (`measure.steps.measure`). `threads` is the number of candidates that are
    built at once, and the number of threads of CPU code. `environment` is set in the processes.
    With `cluster`, a Dask scheduler's address, candidates run on its workers. Modules are TVM's
    JSON text; a gate is a folder that `prepare` filled.
    """

    def __init__(
        self,
        target: dict[str, Any],
        device: Sequence[Any],
        threads: int,
        environment: dict[str, str],
        cluster: str | None = None,
    ) -> None:
        self.target, self.is_remote = target, cluster is not None
        self._device, self._threads, self._seconds = device, threads, _SECONDS[target["kind"]]
        self._libraries = 0  # number of libraries named so far
        with ExitStack() as stack:
            self.folder = stack.enter_context(scratch_folder("needle-tune-"))
            self._workers = stack.enter_context(
                Workers(
                    "worker",
                    _SERVICE,
                    processes=threads,
                    limits=Limits(self._seconds.build, _memory()),
                    environment=environment,
                )
            )
            self._run_limits = Limits(self._seconds.run, _memory())
            self._runner: Runner = (
                self._workers
                if cluster is None
                else stack.enter_context(Cluster(cluster, target, limits=self._run_limits))
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, where)

    def prepare(self, modules: Sequence[str], seed: int) -> Iterator[tuple[int, Path, Outcome]]:
        """Write the gates of unscheduled functions; yield (number, gate, outcome) as each is done.

        The outcome's value is the return value of `measure.steps.prepare`.
        """
        # Whatever the candidates' target, this machine's CPU computes the reference results.
        target = {"kind": CPU, "mcpu": tvm_names.host_cpu(), "num-cores": self._threads}
        gates = [self.folder / f"gate-{number}" for number in range(len(modules))]
        requests = [
            {"do": "prepare", "module": module, "target": target, "folder": str(gate), "seed": seed}
            for module, gate in zip(modules, gates, strict=True)
        ]
        limits = Limits(self._seconds.prepare, _memory())
        for number, outcome in self._workers.map(requests, limits):
            yield number, gates[number], outcome

    def measure(
        self, modules: Sequence[str], gates: Sequence[Path], spills: int | None = None
    ) -> Iterator[tuple[int, Path, Outcome]]:
        """Build and run modules; yield (number, library, outcome) as each is done.

        The outcome's value is the return value of `measure.steps.measure`. Its kind is WRONG if the
        gate rejected the results, and UNFIT if a GPU thread spills more bytes than `spills`.
        Everything is built before anything runs, because a running compiler would disturb the
        timing.
        """
        paths = [self.folder / f"{self._libraries + i}.so" for i in range(len(modules))]
        self._libraries += len(modules)
        builds = [
            {
                "do": "build",
                "module": module,
                "target": self.target,
                "path": str(path),
                "spills": spills,
            }
            for module, path in zip(modules, paths, strict=True)
        ]
        built = []
        for number, outcome in self._workers.map(builds):
            outcome = _judged(outcome, UNFIT)
            if outcome.kind == OK:
                built.append(number)
            else:
                yield number, paths[number], outcome
        runs = [self._run(paths[number], gates[number]) for number in built]
        for number, outcome in self._runner.map(runs, self._run_limits, 1):
            yield built[number], paths[built[number]], _judged(outcome, WRONG)

    def speedup(self, rule: Path, candidate: Path, gate: Path) -> float:
        """Return the rule's time over the candidate's time, or 0 if they cannot be compared."""
        request: dict[str, Any] = {"do": "compare", "rule": str(rule), "candidate": str(candidate)}
        request |= {"gate": str(gate), "device": self._device}
        outcome = self._runner.call(request, self._run_limits)
        return float(outcome.value.get("speedup", 0.0)) if outcome.kind == OK else 0.0

    def _run(self, path: Path, gate: Path) -> dict[str, Any]:
        request = {"do": "measure", "path": str(path), "gate": str(gate), "device": self._device}
        return {**request, **_EVALUATOR}


def seconds(outcome: Outcome) -> float | None:
    """Return a candidate's mean seconds per call, or None if it failed."""
    return facts.mean_seconds(outcome.value["run_secs"]) if outcome.kind == OK else None


def _judged(outcome: Outcome, kind: str) -> Outcome:
    """Return the outcome, with its kind changed to `kind` if the service's answer has that key."""
    if outcome.kind != OK or kind not in outcome.value:
        return outcome
    return Outcome(kind, outcome.value, outcome.value[kind], outcome.seconds)


def _memory() -> int:
    """Return the number of bytes of memory that one candidate may use."""
    return int(psutil.virtual_memory().total) // 2
