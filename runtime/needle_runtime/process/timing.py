"""Side-by-side timing: every contestant in its own process, in alternating blocks.

Benchmarks, `apps` and `tune.whole_model` use it. Two numeric runtimes in one process slow
each other down by orders of magnitude, because their thread pools spin against each other. So a
contest starts one child process per contestant and collects their outputs first: nothing is timed
before the caller has seen that the outputs agree. It warms up each contestant, and then times short
blocks in turn, with idle time between them so that the last block's threads sleep. A temporary
disturbance of the machine then affects neighbouring blocks of all contestants alike, and the ratio
of each round stays meaningful.

A contestant's factory is named as `package.module:function` or `path/file.py:function`. It runs in
the child and returns `(call, outputs)`: `call()` does one synchronised inference, `outputs()`
returns the results as a list of NumPy arrays (the type `Calls`). A third value, `clock(calls)`,
returns the seconds per call by a device's own clock, or None if it cannot measure them; every block
then has that time too.

This module uses only the standard library and NumPy, so it can be imported without needle and TVM.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from needle_runtime.process.child import Child, ChildError, Messages, load_function
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import thread_environment

Outputs = list[np.ndarray]
Calls = tuple[Callable[[], object], Callable[[], Outputs]]  # a factory returns this
Clock = Callable[[int], float | None]
ClockedCalls = tuple[Callable[[], object], Callable[[], Outputs], Clock]  # or this, with a clock
Progress = Callable[[int, int, str], None]

# Idle time after a block: TVM's CPU workers spin for this time before they sleep; a call on a GPU
# leaves no threads that spin.
IDLE_SECONDS = {"cpu": 0.3, "cuda": 0.03}

_WAKE_SECONDS = 0.01  # untimed calls that open each block: they wake threads and fill caches


# A contestant failed, died or did not answer in time: see `ChildError`.
TimingError = ChildError


@dataclass(frozen=True)
class Contestant:
    """One thing to time.

    `kwargs` (JSON values) are passed to the factory. `threads` limits the usual numeric libraries
    to this many threads through their environment variables; `env` is set on top of them. A call
    does its work `repeats` times, and times are for one repeat.
    """

    name: str
    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    repeats: int = 1


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute the spread of a sample. Raises ValueError if it is empty."""
        if not values:
            raise ValueError("a spread needs at least one value")
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass
class Result:
    """One contestant's results: `seconds[i]` is the mean time of a call in round i; `device[i]` is
    the same time by the device's clock (`device` is empty if there is no such clock); `first` is
    the time of the very first call, in seconds."""

    name: str
    outputs: Outputs
    seconds: list[float] = field(default_factory=list)
    calls: int = 0
    device: list[float] = field(default_factory=list)
    first: float | None = None

    @property
    def spread(self) -> Spread:
        """Median and quartiles of the seconds per call."""
        return Spread.of(self.seconds)

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return self.spread.median

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; times in seconds per call."""
        spread = self.spread
        return {
            "name": self.name,
            "median": spread.median,
            "lower_quartile": spread.lower,
            "upper_quartile": spread.upper,
            "blocks": list(self.seconds),
            "calls": self.calls,
            "first": self.first,
            **({"device": asdict(Spread.of(self.device))} if self.device else {}),
        }


def ratio(ours: Result, peer: Result) -> Spread:
    """Return the spread of the per-round ratio peer's time / our time (above 1: ours is faster).

    Raises ValueError if the two were not timed over the same rounds.
    """
    _check_rounds("ratio", ours, peer)
    pairs = zip(ours.seconds, peer.seconds, strict=True)
    return Spread.of([theirs / mine for mine, theirs in pairs])


def difference(one: Result, other: Result) -> Spread:
    """Return the spread of the per-round difference in seconds per call: `one` minus `other`.

    Raises ValueError if the two were not timed over the same rounds.
    """
    _check_rounds("difference", one, other)
    return Spread.of([a - b for a, b in zip(one.seconds, other.seconds, strict=True)])


def _check_rounds(what: str, one: Result, other: Result) -> None:
    if len(one.seconds) != len(other.seconds):
        raise ValueError(
            f"{what} of {one.name} ({len(one.seconds)} rounds) and {other.name} "
            f"({len(other.seconds)} rounds): they must come from one contest"
        )


def contest(
    contestants: Sequence[Contestant],
    *,
    rounds: int = 10,
    block_seconds: float = 0.2,
    min_calls: int = 5,
    idle_seconds: float = IDLE_SECONDS["cpu"],
    warmup_seconds: float = 0.3,
    check: Callable[[dict[str, Outputs]], None] | None = None,
    leave_out: Callable[[TimingError], bool] | None = None,
    alone: Collection[str] = (),
    progress: Progress | None = None,
    timeout: float = 300.0,
) -> list[Result]:
    """Time the contestants against each other; return their results in the order given.

    Each of the `rounds` gives every contestant one block of about `block_seconds`, with at least
    `min_calls` calls, or with one call if a single call takes longer than the block; the order
    rotates by one each round. `idle_seconds` pass between blocks, and each contestant warms up for
    `warmup_seconds`. `check` receives all outputs by name before anything is timed and may raise.
    `progress(done, total, text)` is called at each step. `timeout` (seconds) is the limit for any
    single step of a child: start, warm-up or block.

    `leave_out(error)` is called for each contestant that fails: True leaves it out of the contest
    and of the results. Contestants named in `alone` tune themselves by timing: the others start
    first, all at once, and then each of these starts when all before it are ready.

    No child outlives the call, however it ends.

    Raises TimingError naming the contestant that failed and was not left out, or the last
    contestant to fail if all have failed; ValueError for bad arguments.
    """
    names = [contestant.name for contestant in contestants]
    if not names or len(set(names)) != len(names):
        raise ValueError(
            f"there must be at least one contestant, and their names must be distinct: got {names}"
        )
    for label, value, least in (("rounds", rounds, 1), ("min_calls", min_calls, 1)):
        if value < least:
            raise ValueError(f"{label}={value}: must be at least {least}")
    for label, seconds in (("block_seconds", block_seconds), ("timeout", timeout)):
        if not seconds > 0:
            raise ValueError(f"{label}={seconds}: must be above 0")
    report = progress or (lambda done, total, text: None)
    total = len(names) * (rounds + 2)
    steps = itertools.count()

    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("needle-timing-"))

        def starting(by_itself: bool) -> Iterator[_Contender]:
            chosen = [each for each in contestants if (each.name in alone) == by_itself]
            return _start(stack, chosen, folder, timeout)

        racing: dict[_Contender, Result] = {}
        failed: list[str] = []

        @contextmanager
        def attempt(child: _Contender) -> Iterator[None]:
            try:
                yield
            except TimingError as error:
                racing.pop(child, None)
                if leave_out is None or not leave_out(error) or len(failed) + 1 == len(names):
                    raise
                failed.append(child.name)
                child.child.close(error)

        for child in itertools.chain(list(starting(False)), starting(True)):
            report(next(steps), total, f"{child.name}: starting")
            with attempt(child):
                racing[child] = Result(child.name, child.outputs(), first=child.first)
        if check is not None:
            check({result.name: result.outputs for result in racing.values()})
        for child in list(racing):
            report(next(steps), total, f"{child.name}: warming up")
            with attempt(child):
                child.ask(command="warmup", seconds=warmup_seconds)
            time.sleep(idle_seconds)
        for number in range(rounds):
            for child in _rotated(list(racing), number):
                report(next(steps), total, f"{child.name}: round {number + 1} of {rounds}")
                with attempt(child):
                    answer = child.ask(command="block", seconds=block_seconds, min_calls=min_calls)
                    calls = answer["calls"]
                    racing[child].seconds.append(answer["seconds"] / calls / child.repeats)
                    racing[child].calls += calls
                    if answer["device"] is not None:
                        racing[child].device.append(answer["device"] / child.repeats)
                time.sleep(idle_seconds)
        report(total, total, "done")
    return sorted(racing.values(), key=lambda result: names.index(result.name))


def collect_outputs(
    contestants: Sequence[Contestant], *, timeout: float = 300.0
) -> dict[str, Outputs]:
    """Return each contestant's outputs by name, computed in its own process; times nothing.

    Raises TimingError naming the contestant that failed.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("needle-timing-"))
        children = list(_start(stack, contestants, folder, timeout))
        return {child.name: child.outputs() for child in children}


def _rotated(children: list[_Contender], by: int) -> list[_Contender]:
    by %= len(children)
    return children[by:] + children[:by]


def _start(
    stack: ExitStack, contestants: Sequence[Contestant], folder: Path, timeout: float
) -> Iterator[_Contender]:
    for contestant in contestants:
        contender = _Contender(contestant, folder / f"{uuid4().hex}.npz", timeout)
        stack.push(contender.child.close)
        yield contender


class _Contender:
    """A contestant and the process that runs it."""

    def __init__(self, contestant: Contestant, outputs_path: Path, timeout: float) -> None:
        self.name, self.repeats = contestant.name, contestant.repeats
        self._outputs_path = outputs_path
        self.first: float | None = None
        environment = {} if contestant.threads is None else thread_environment(contestant.threads)
        self.child = Child(
            contestant.name,
            "needle_runtime.process.timing:serve",
            {
                "factory": contestant.factory,
                "kwargs": dict(contestant.kwargs),
                "outputs": str(outputs_path),
            },
            timeout=timeout,
            environment={**environment, **contestant.env},
        )

    def outputs(self) -> Outputs:
        """Wait until the factory has run, and return its first results."""
        answer = self.child.receive("start")
        self.first = answer.get("first")  # another commit's code may lack it
        with np.load(self._outputs_path, allow_pickle=False) as arrays:
            return [arrays[f"output_{index}"] for index in range(answer["outputs"])]

    def ask(self, **message: Any) -> dict[str, Any]:
        return self.child.ask(**message)


def save_arrays(path: Path | str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file of the arrays under their own names."""
    named: dict[str, Any] = dict(arrays)
    np.savez(path, **named)


def load_arrays(path: Path | str) -> list[np.ndarray]:
    """Return the arrays of an .npz file in the order in which they were saved."""
    with np.load(path, allow_pickle=False) as arrays:
        return [arrays[name] for name in arrays.files]


# The child's side.


def serve(setup: dict[str, Any], messages: Messages) -> Iterator[dict[str, Any]]:
    """Serve the child's side (a service of `process.child`): one answer per message."""
    call, outputs, *clocks = load_function(setup["factory"])(**setup["kwargs"])
    first = _run(call, 1)
    arrays = [np.asarray(array) for array in outputs()]
    # An .npz file cannot hold bfloat16.
    arrays = [a.astype(np.float32) if a.dtype.name == "bfloat16" else a for a in arrays]
    for array in arrays:
        if array.dtype.kind not in "biufc":
            raise TypeError(f"an output has dtype {array.dtype}: outputs must be numeric arrays")
    named: dict[str, Any] = {f"output_{index}": array for index, array in enumerate(arrays)}
    np.savez(setup["outputs"], **named)
    yield {"outputs": len(arrays), "first": first}

    estimate = 0.0
    for message in messages:
        if message["command"] == "warmup":
            estimate = _warm_up(call, message["seconds"])
            yield {"estimate": estimate}
        else:
            calls = max(1, round(message["seconds"] / estimate))
            if estimate < message["seconds"]:
                calls = max(calls, message["min_calls"])
                _run(call, max(1, min(calls, int(_WAKE_SECONDS / estimate))))
            seconds = _run(call, calls)
            estimate = max(seconds / calls, 1e-9)
            device = clocks[0](calls) if clocks else None
            yield {"calls": calls, "seconds": seconds, "device": device}


def _warm_up(call: Callable[[], object], seconds: float) -> float:
    """Call for about `seconds`, at least once; return the last batch's seconds per call."""
    start, calls = time.perf_counter(), 1
    while True:
        taken = _run(call, calls)
        if time.perf_counter() - start >= seconds:
            return max(taken / calls, 1e-9)
        if taken < seconds / 8:
            calls *= 2


def _run(call: Callable[[], object], calls: int) -> float:
    """Return the total seconds of `calls` calls, with the garbage collector off."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            call()
        return time.perf_counter() - start
    finally:
        if collecting:
            gc.enable()
