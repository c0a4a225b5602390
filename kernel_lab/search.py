"""The last rungs: schedules found by search, over our own few knobs or meta_schedule's space.

A `Space` (a template in AutoTVM) has a definition and a schedule function that take knobs, and the
knobs' values. Candidates are drawn at random without repetition. Each is compiled here, and checked
and timed in a child process, so a candidate that crashes is only rejected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab import build
from kernel_lab.errors import LabError
from kernel_lab.workload import Case, Workload
from needle_runtime.artifact.tolerance import compare
from needle_runtime.errors import NeedleTVMError
from needle_runtime.process.child import Child, ChildError, Messages
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import thread_environment
from needle_tvm.tune.options import Options
from needle_tvm.tune.status import Status

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Schedule, Target

Knobs = Mapping[str, Any]
Say = Callable[[int, int, str], None]

_CANDIDATE_SECONDS = 30.0  # a candidate that takes longer to answer is rejected
_BLOCKS, _BLOCK_SECONDS = 5, 0.02


@dataclass(frozen=True)
class Space:
    """A family of schedules: `define(case, knobs)`, `schedule(sch, case, knobs)`, and
    `knobs(case)`, all choices of knobs."""

    define: Callable[[Case, Knobs], list[Any]]
    schedule: Callable[[Schedule, Case, Knobs], Any]
    knobs: Callable[[Case], Sequence[Knobs]]

    def module(self, case: Case, knobs: Knobs) -> IRModule:
        """Return the scheduled module of one choice of knobs."""
        from needle_tvm._tvm.names import Schedule, te

        sch = Schedule(te.create_prim_func(self.define(case, knobs)))
        self.schedule(sch, case, knobs)
        return sch.mod


@dataclass(frozen=True)
class Found:
    """The best candidate of a search: its module, and notes about the search.

    `tried` holds the knobs of each candidate with the seconds of one call, or with None if the
    candidate was rejected. For meta_schedule, whose candidates have no knobs, it is empty.
    """

    module: IRModule
    notes: dict[str, Any]
    tried: tuple[tuple[Knobs, float | None], ...] = ()


def own(
    space: Space,
    workload: Workload,
    case: Case,
    target: Target,
    trials: int,
    say: Say,
    seed: int = 0,
) -> Found:
    """Return the fastest correct candidate of at most `trials` drawn from a space.

    Raises LabError if no candidate worked.
    """
    choices = list(space.knobs(case))
    random.Random(seed).shuffle(choices)
    choices = choices[:trials]
    best: tuple[float, Knobs] | None = None
    tried: list[tuple[Knobs, float | None]] = []
    with scratch_folder("kernel-lab-search-") as folder:
        setup = _setup(workload, case, folder, seed)
        judge = _Judge(setup, case.processor.cores)
        try:
            for number, knobs in enumerate(choices):
                path = folder / f"{number}.so"
                try:
                    build.write_library(space.module(case, knobs), target, path)
                    seconds = judge.seconds(path)
                except (LabError, RuntimeError, ValueError):
                    # Knobs that do not fit together raise TVM's errors, which are RuntimeErrors.
                    tried.append((knobs, None))
                else:
                    tried.append((knobs, seconds))
                    best = min((seconds, knobs), best or (seconds, knobs), key=lambda b: b[0])
                shown = f", best {best[0] * 1e6:.1f} us" if best else ""
                say(number + 1, len(choices), f"own search: {number + 1}{shown}")
        finally:
            judge.close()
    if best is None:
        raise LabError(f"{workload.name}: none of {len(choices)} candidates worked")
    notes = {
        "candidates": len(choices),
        "rejected": sum(seconds is None for _, seconds in tried),
        "space": len(space.knobs(case)),
        "knobs": dict(best[1]),
    }
    return Found(space.module(case, best[1]), notes, tuple(tried))


def _setup(workload: Workload, case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """Return the data for the judging child: inputs, the exact result and the tolerance."""
    arrays = workload.inputs(case.size, seed)
    named: dict[str, Any] = {f"input_{number}": array for number, array in enumerate(arrays)}
    np.savez(folder / "inputs.npz", **named)
    np.save(folder / "expected.npy", workload.reference(case.size, arrays))
    return {
        "inputs": str(folder / "inputs.npz"),
        "expected": str(folder / "expected.npy"),
        "tolerance": workload.tolerance(case.size),
        "dtype": workload.result_dtype,
    }


class _Judge:
    """The child that checks and times candidates; it is replaced after each crash or hang."""

    def __init__(self, setup: dict[str, Any], threads: int) -> None:
        self._setup, self._threads = setup, threads
        self._child: Child | None = None

    def seconds(self, path: Path) -> float:
        """Return the seconds of one call. Raises LabError for a wrong result, a crash or no
        answer."""
        if self._child is None:
            self._child = Child(
                "candidate",
                "kernel_lab.search:judge",
                self._setup,
                timeout=_CANDIDATE_SECONDS,
                environment=thread_environment(self._threads),
            )
        try:
            answer = self._child.ask(command="judge", path=str(path))
        except ChildError as error:
            self.close(error)
            raise LabError(str(error)) from error
        if "rejected" in answer:
            raise LabError(answer["rejected"])
        return float(answer["seconds"])

    def close(self, error: Exception | None = None) -> None:
        if self._child is not None:
            self._child.close(error)
            self._child = None


def judge(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Run the child's side: load each named library, compare its result, and time it."""
    from kernel_lab.contestants import library

    expected = np.load(setup["expected"], allow_pickle=False)
    for message in messages:
        call, outputs = library(message["path"], setup["inputs"], expected.shape, setup["dtype"])
        call()
        compared = compare(expected, outputs()[0], setup["tolerance"], same_dtype=False)
        if not compared.right:
            yield {"rejected": f"differs from NumPy: {compared.what}"}
        else:
            yield {"seconds": _time(call)}


def _time(call: Callable[[], object]) -> float:
    """Return the time of the fastest of a few blocks, because the load varies over the minutes of a
    search."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    calls = max(1, int(_BLOCK_SECONDS / once))
    fastest = float("inf")
    for _ in range(_BLOCKS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        fastest = min(fastest, (time.perf_counter() - start) / calls)
    return fastest


def meta_schedule(plain: IRModule, threads: int, trials: int, say: Say, seed: int = 0) -> Found:
    """Return the best of `trials` candidates that needle_tvm's tuner finds for an unscheduled
    module.

    Its space is the one that meta_schedule generates for any function. No earlier records are used,
    and none are kept. Raises LabError if no candidate ran or the search died.
    """
    from needle_tvm._tvm.names import make_target, tvm
    from needle_tvm.kernels import cpu
    from needle_tvm.tune import session

    def show(said: Any) -> None:
        if isinstance(said, Status):
            say(said.trials, trials, f"meta_schedule: trial {said.trials}")

    target = {**build.description("cpu"), "num-cores": threads}
    rule = cpu.schedule_function(plain["main"], make_target(target))
    try:
        with scratch_folder("kernel-lab-records-") as folder:
            note = session.search(
                {"main": (plain, 1)},
                {"main": tvm.IRModule({"main": rule})},
                target,
                Options(trials, seed=seed),
                store=folder / "records",
                progress=show,
            )["main"]
    except NeedleTVMError as error:
        raise LabError(f"meta_schedule: {error}") from error
    if note["candidate"] is None:
        raise LabError(f"meta_schedule: none of {note['trials']} candidates ran")
    rejected = sum(note["rejected"].values())
    module = tvm.ir.load_json(note["candidate"])
    return Found(module, {"candidates": note["trials"], "rejected": rejected})
