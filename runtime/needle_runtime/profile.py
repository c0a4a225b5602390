"""The time a compiled model spends in each kernel.

    from needle_runtime import profile
    print(profile.profile(executable.program).text())

TVM's virtual machine calls a Python function, its "instrument", before and after each of its own
calls. This adds a microsecond or two per call, so the time of a shorter kernel is mostly overhead;
the plain call is timed as well, for comparison. Merged kernels are timed one by one, in the copy of
`main` that calls them separately.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from needle_runtime._tvm.ffi import load_ffi
from needle_runtime.errors import UsageError
from needle_runtime.executor import Executor
from needle_runtime.program import Program
from needle_runtime.random_inputs import random_inputs
from needle_runtime.text import printable

_BUILTIN = ("vm.builtin.", "shape_func")  # prefixes of names; shape_func computes extents
_GO_ON = 0  # an instrument's answer to have the call carried out


@dataclass(frozen=True)
class Call:
    """One call by the virtual machine, `start` seconds after its run began; it took `seconds`."""

    name: str
    start: float
    seconds: float
    shapes: tuple[tuple[int, ...], ...]  # of its arrays, the result last
    bytes: int  # the sum of the sizes of these arrays


@dataclass(frozen=True)
class Row:
    """One kernel's calls in a run. `seconds` is their total time, the median over all runs.

    `share` is its share of the time of all kernels; it is 0 for the virtual machine's own calls,
    whose time is mostly the instrument's overhead.
    """

    name: str
    calls: int
    seconds: float
    share: float
    bytes: int
    shapes: tuple[tuple[int, ...], ...]  # of the first call

    @property
    def builtin(self) -> bool:
        """Whether this is one of the machine's own calls (allocation, checks, sizes)."""
        return self.name.startswith(_BUILTIN)


@dataclass
class Profile:
    """`runs` instrumented runs, and the median seconds of one plain call for comparison."""

    plain_seconds: float
    runs: list[list[Call]] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Return kernels and the machine's own calls by name, slowest first."""
        totals: dict[str, list[float]] = {}
        for number, run in enumerate(self.runs):
            for call in run:
                totals.setdefault(call.name, [0.0] * len(self.runs))[number] += call.seconds
        seconds = {name: statistics.median(each) for name, each in totals.items()}
        whole = sum(spent for name, spent in seconds.items() if not name.startswith(_BUILTIN))
        rows = []
        for name, spent in seconds.items():
            calls = [call for call in self.runs[0] if call.name == name]
            share = spent / whole if whole and not name.startswith(_BUILTIN) else 0.0
            moved = sum(call.bytes for call in calls)
            rows.append(Row(name, len(calls), spent, share, moved, calls[0].shapes))
        return sorted(rows, key=lambda row: (-row.seconds, row.name))

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as JSON values, in seconds and bytes."""
        rows = [asdict(row) for row in self.rows()]
        return {"plain_seconds": self.plain_seconds, "runs": len(self.runs), "rows": rows}

    def chrome_trace(self) -> dict[str, Any]:
        """Return the runs in sequence, in the Trace Event Format (chrome://tracing, Perfetto)."""
        events, offset = [], 0.0
        for number, run in enumerate(self.runs):
            for call in run:
                events.append(
                    {
                        "name": call.name,
                        "cat": "vm" if call.name.startswith(_BUILTIN) else "kernel",
                        "ph": "X",  # a complete event; times are in microseconds
                        "ts": (offset + call.start) * 1e6,
                        "dur": call.seconds * 1e6,
                        "pid": 0,
                        "tid": 0,
                        "args": {"run": number, "shapes": call.shapes, "bytes": call.bytes},
                    }
                )
            offset += max((call.start + call.seconds for call in run), default=0.0)
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def text(self) -> str:
        """Return a table, with the machine's own calls summed in one line."""
        kernels = [row for row in self.rows() if not row.builtin]
        rest = [row for row in self.rows() if row.builtin]
        lines = [f"{'kernel':<40} {'calls':>5} {'us':>9} {'share':>6} {'GB/s':>6}  shapes"]
        for row in kernels:
            speed = row.bytes / row.seconds / 1e9 if row.seconds else 0.0
            shapes = " ".join("x".join(map(str, shape)) or "()" for shape in row.shapes)
            lines.append(
                f"{row.name:<40} {row.calls:>5} {row.seconds * 1e6:>9.2f} {row.share:>6.1%} "
                f"{speed:>6.1f}  {shapes}"
            )
        calls, seconds = sum(row.calls for row in rest), sum(row.seconds for row in rest)
        lines.append(f"{'(the machine itself)':<40} {calls:>5} {seconds * 1e6:>9.2f}")
        total = sum(row.seconds for row in self.rows())
        lines.append(
            f"together {total * 1e6:.2f} us; the same call without the instrument: "
            f"{self.plain_seconds * 1e6:.2f} us"
        )
        return "\n".join(map(printable, lines))


def profile(
    program: Program,
    inputs: Sequence[Any] | None = None,
    runs: int = 20,
    sizes: Mapping[str, int] | None = None,
) -> Profile:
    """Time every call of `runs` runs of a `program`, on `inputs`, or on random inputs of these
    `sizes` (see `random_inputs`).

    Raises UsageError for fewer than one run and for a size that the program does not allow,
    InputError for inputs that do not fit, ParameterError if the program has no weights.
    """
    if type(runs) is not int:
        raise UsageError(f"profile: runs={runs!r}: must be an integer")
    if runs < 1:
        raise UsageError(f"profile: runs={runs}: must be at least 1")
    executor = program.executor
    if inputs is None:
        inputs = random_inputs(program.artifact, sizes=sizes)
    tensors = executor.convert(inputs)
    for _ in range(2):  # fills the machine's memory pool
        executor.call(tensors)
    plain = []
    for _ in range(runs):
        start = time.perf_counter()
        executor.call(tensors)
        plain.append(time.perf_counter() - start)
    result = Profile(statistics.median(plain))
    # A separate machine is used, so that the machine of this thread gets no instrument.
    watch = _Watch()
    machine = executor.new_machine()
    machine["set_instrument"](load_ffi().convert(watch))
    for run in range(-1, runs):
        watch.begin()
        _call_by_kernel(executor, machine, tensors)
        if run >= 0:  # the first run fills this machine's pool
            result.runs.append(watch.calls)
    return result


def _call_by_kernel(executor: Executor, machine: Any, tensors: Sequence[Any]) -> None:
    """Call the copy of `main` without merged kernels on one of the executor's machines."""
    machine[executor.main.by_kernel or "main"](*tensors, *executor.weights)


class _Watch:
    """The instrument: it records the calls of a run.

    Calls may nest; a call's time excludes the calls inside it.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.calls: list[Call] = []
        self._open: list[list[float]] = []  # [start, seconds of the calls inside]
        self._zero = time.perf_counter()

    def __call__(self, function: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        now = time.perf_counter()
        if not before:
            start, inside = self._open.pop()
            if self._open:
                self._open[-1][1] += now - start
            arrays = [a for a in args if hasattr(a, "shape") and hasattr(a, "dtype")]
            shapes = tuple(tuple(int(n) for n in a.shape) for a in arrays)
            size = sum(_bytes(a, shape) for a, shape in zip(arrays, shapes, strict=True))
            own = now - start - inside
            self.calls.append(Call(str(name), start - self._zero, own, shapes, size))
            return _GO_ON
        self._open.append([time.perf_counter(), 0.0])
        return _GO_ON


def _bytes(array: Any, shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count * int(array.dtype.itemsize)
