"""Judge a schedule that the reader has written: check, count, draw and time it.

`kernel_lab.show` is `show` below. The functions import TVM's compiler when they are called.
"""

from __future__ import annotations

import html
import inspect
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kernel_lab import build, registry
from kernel_lab.errors import LabError, LabUsageError
from kernel_lab.results import GpuFigures, RungResult
from kernel_lab.rung import Definition, Ladder, Rung, ScheduleFunction
from kernel_lab.scaled import PICTURE, scaled_trace, trace_at
from kernel_lab.sizes import checked_size
from kernel_lab.trace import NotLowered, Trace, TraceTooLarge, statistics, trace
from kernel_lab.workload import Case, Processor, Workload, describe
from needle_runtime.artifact.tolerance import compare
from needle_runtime.process import timing
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.text import duration

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target

_ROUNDS = 5
_SECONDS_BLOCK = 0.05
_YOURS = "yours"  # the contestant's name: a rung may already have the function's name


@dataclass(frozen=True)
class WrongElement:
    """The first element of a result that differs from NumPy's: its index, its value, and NumPy's
    value in float64. `count` is the number of wrong elements."""

    buffer: str
    index: tuple[int, ...]
    value: float
    expected: float
    count: int

    def __str__(self) -> str:
        place = ", ".join(map(str, self.index))
        return (
            f"{self.buffer}[{place}] is {self.value:.6g}, NumPy has {self.expected:.6g}"
            f" ({self.count:,} of its elements {'is' if self.count == 1 else 'are'} wrong)"
        )


class Shown:
    """A judged schedule.

    `right` says whether the result agrees with NumPy's; `wrong` is the first element that does not.
    `error` is the reason that there is no result, such as TVM's reason for refusing the schedule.
    `size` is the size of the run. `traced` is the size at which the result was checked and the
    accesses were counted: the same, or, if a trace of the run would be too large, a smaller size
    that cuts the tiles in the same way. `beside` is the name of the rung that the schedule is timed
    against, or None. `trace` has the accesses, `lines` the cache lines that the instructions touch,
    by buffer of global memory. Times, the picture and a GPU's figures are computed when first read.
    """

    def __init__(
        self,
        workload: Workload,
        rung: Rung,
        beside: Rung | None,
        case: Case,
        target: Target,
        small: Mapping[str, Any] | None,
    ) -> None:
        self.name, self.size = rung.name, dict(case.size)
        self.beside = None if beside is None else beside.name
        self.error: str | None = None
        self.wrong: WrongElement | None = None
        self.traced: dict[str, Any] = {}
        self._workload, self._rung, self._beside = workload, rung, beside
        self._case, self._target = case, target
        self._trace: Trace | None = None
        from needle_tvm._tvm.names import SCHEDULE_ERROR

        try:
            self.module: IRModule = rung.module(case)
            self._trace, self.traced = _traced(workload, rung, case, small)
        except SCHEDULE_ERROR as error:
            self.error = _refusal(rung.schedule, error)
        except LabUsageError:
            raise
        except LabError as error:
            self.error = str(error)
        else:
            if self._on_gpu and self.trace.device != "gpu":
                self.error = "no loop is bound to blocks or threads, so nothing runs on the GPU"
            else:
                self.wrong = self._first_wrong()

    @property
    def _on_gpu(self) -> bool:
        return bool(self._target.kind.name != "llvm")

    def _first_wrong(self) -> WrongElement | None:
        inputs = self._workload.inputs(self.traced)
        exact = self._workload.reference(self.traced, inputs)
        name, result = list(self.trace.arrays.items())[len(inputs)]
        result = result.reshape(exact.shape)
        tolerance = self._workload.tolerance(self.traced, self._rung.precision)
        compared = compare(exact, result, tolerance, same_dtype=False)
        if compared.right:
            return None
        index = min(zip(*(axis.tolist() for axis in compared.wrong.nonzero()), strict=True))
        count = int(compared.wrong.sum())
        return WrongElement(name, index, float(result[index]), float(exact[index]), count)

    @property
    def right(self) -> bool:
        """Whether the schedule has a result, and every element of it is right."""
        return self.error is None and self.wrong is None

    @property
    def trace(self) -> Trace:
        """The accesses at the size `traced`. Raises LabError if the schedule has no result."""
        if self._trace is None:
            raise LabError(f"{self.name} has no trace: {self.error}")
        return self._trace

    @cached_property
    def lines(self) -> dict[str, int]:
        """Cache lines of 64 bytes that the instructions touch, by buffer of global memory.

        Each load or store counts every time. On a GPU, a whole warp executes one instruction. The
        dict is empty if the schedule has no result.
        """
        if self._trace is None:
            return {}
        counts = statistics.buffer_counts(self.trace)
        return {each.name: each.line_accesses for each in counts if each.scope == "global"}

    def misses(self, cache: int) -> int:
        """Return the total misses of LRU caches of `cache` bytes, one for each worker.

        Raises LabUsageError unless `cache` is a number of whole lines, LabError if the schedule has
        no result.
        """
        return statistics.cache(self.trace, cache).misses

    @cached_property
    def gpu(self) -> GpuFigures | None:
        """The sectors and banks of a GPU kernel, and its registers and occupancy as nvcc compiles
        it.

        None for a CPU, and if the schedule has no result. Without nvcc, `missing` says so.
        """
        if self._trace is None or self._trace.device != "gpu":
            return None
        from kernel_lab.gpu_figures import compiled_figures

        arch = str(build.architecture(self._target))
        return compiled_figures(self.module, self.trace, self.traced, arch)

    @cached_property
    def _times(self) -> tuple[float, float | None] | None:
        """The seconds per call, and the other rung's time divided by them."""
        if not self.right or (self._on_gpu and build.why_no_gpu() is not None):
            return None
        from kernel_lab.field import Field
        from kernel_lab.run import hold_contest, own_time

        device = "cuda" if self._on_gpu else "cpu"
        entries = [_entry(_YOURS, self._rung, self.module)]
        if self._beside is not None:
            module = self._beside.module(self._case)
            entries.append(_entry(self._beside.name, self._beside, module))
        with scratch_folder("kernel-lab-") as folder:
            field = Field(self._workload, self._case, self._target, folder, 0, device)
            for entry in entries:
                field.add_rung(entry)
            found = hold_contest(field, _ROUNDS, _SECONDS_BLOCK, lambda done, total, text: None)
        mine, *others = (own_time(found[entry.name]) for entry in entries)
        return mine.median, timing.ratio(mine, others[0]).median if others else None

    @property
    def seconds(self) -> float | None:
        """The seconds per call at the size `size`; None if the result is not right, and for a GPU
        kernel on a machine without a GPU. Raises WrongResult if the compiled code is wrong."""
        return self._times and self._times[0]

    @property
    def faster(self) -> float | None:
        """The time of the rung `beside` divided by the time of this schedule; None without such a
        rung or without times."""
        return self._times and self._times[1]

    @cached_property
    def picture(self) -> str:
        """The accesses over time as an <svg> element; on a GPU, those of one warp.

        Raises LabError if the schedule has no result.
        """
        from kernel_lab import diagrams

        draw = diagrams.warp_view if self.trace.device == "gpu" else diagrams.space_time
        return diagrams.inline_svg(draw(self.trace, self.name, f"at {describe(self.traced)}"))

    @property
    def verdict(self) -> str:
        """One line: right, or wrong and where."""
        if self.error is not None:
            return f"{self.name}: wrong: {self.error}"
        where = f"at {describe(self.traced)}"
        if self.traced != self.size:
            where += f", the size checked in place of {describe(self.size)}"
        if self.wrong is not None:
            return f"{self.name}: wrong {where}: {self.wrong}"
        return f"{self.name}: right {where}"

    @property
    def speed(self) -> str:
        """One line: the time of a call, and the speed relative to the other rung."""
        if self.seconds is None:
            return "not timed: " + str(build.why_no_gpu() if self.right else "it is not right")
        said = f"{duration(self.seconds)} at {describe(self.size)}"
        if self.faster is not None:
            said += f", {self.faster:.3g} times as fast as {self.beside}"
        return said

    def __str__(self) -> str:
        lines = [self.verdict]
        if self.lines:
            each = ", ".join(f"{name} {count:,}" for name, count in self.lines.items())
            lines.append(f"cache lines accessed: {each}")
        lines += _gpu_lines(self.gpu)
        return "\n".join([*lines, self.speed] if self.right else lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        text = "<br>".join(map(html.escape, str(self).splitlines()))
        drawn = "" if self._trace is None else f'<figure class="drawn">{self.picture}</figure>'
        return f'<div class="shown"><p>{text}</p>{drawn}</div>'


def show(
    schedule: ScheduleFunction,
    workload: str = "gemm",
    device: str = "cpu",
    *,
    size: Mapping[str, int] | None = None,
    beside: str | None = None,
    define: Definition | None = None,
    processor: Processor | None = None,
    arch: str | None = None,
) -> Shown:
    """Check, count, draw and time a schedule of your own.

    `schedule(sch, case)` changes the loops of `sch`, as a rung does; `case["M"]` is a dimension and
    `case.processor` has the processor's facts. `size` gives dimensions in place of the workload's
    first size. The result is checked and the accesses are counted at that size if it is given and
    small enough, else at a small size with the same loops and tiles cut in the same way. `beside`
    names a rung to time the schedule against. `define(case)` is a definition of your own, which
    computes the same result. `processor` replaces this machine's processor, so that counts are
    equal on all machines. `arch` is a GPU architecture, such as "sm_75", for a GPU kernel's
    figures.

    Raises LabUsageError, naming the argument, for a schedule that is not a function of (sch, case),
    an unknown workload, device, rung or dimension, and for a size that `beside` does not take.
    """
    ladder = registry.ladder(workload, device)
    _check_function("schedule", schedule, "(sch, case)", 2)
    if define is not None:
        _check_function("define", define, "(case)", 1)
    if processor is not None and not isinstance(processor, Processor):
        raise LabUsageError(f"processor is {processor!r}: must be a kernel_lab Processor")
    if arch is not None and device != "cuda":
        raise LabUsageError(f"arch is {arch!r}: the device is a CPU: leave it out")
    other = None if beside is None else ladder[beside]
    target = build.make_target(device, arch)
    case = Case(
        ladder.workload.size(device, size),
        processor or build.processor(target),
    )
    refused = other and other.refuses(case.size, build.architecture(target))
    if refused:
        raise LabUsageError(f"beside is {beside!r}: it refuses {describe(case.size)}: {refused}")
    own = Ladder(ladder.workload, device)
    name = getattr(schedule, "__name__", "schedule")
    own.rung(expected=(0, math.inf), define=define, name=name)(schedule)
    return Shown(ladder.workload, own.rungs[0], other, case, target, size and case.size)


def _check_function(name: str, value: Any, arguments: str, count: int) -> None:
    try:
        inspect.signature(value).bind(*[None] * count)
    except (TypeError, ValueError):
        raise LabUsageError(
            f"{name} is {value!r}: must be a function of the arguments {arguments}"
        ) from None


def _traced(
    workload: Workload, rung: Rung, case: Case, asked: Mapping[str, Any] | None
) -> tuple[Trace, dict[str, Any]]:
    """Return a rung's trace and the traced size: `asked` if it is small enough, else a smaller size
    that cuts the tiles as the case's size does, else (if even that is too large) a picture's size.
    """
    if asked is not None:
        inputs, cores = workload.inputs(asked), case.processor.cores
        try:
            found = trace(
                rung.module(Case(asked, case.processor)),
                inputs,
                cores=cores,
                limit=PICTURE,
                ignore=("local",),
                follow=True,
            )
        except TraceTooLarge:
            pass
        else:
            return found, dict(asked)
    small = Case(checked_size(workload, rung, case), case.processor)
    try:
        scaled = trace_at(workload, rung, small, case, ignore=("local",))
    except (TraceTooLarge, NotLowered):
        scaled = scaled_trace(workload, rung, case, ignore=("local",))
    return scaled.trace, scaled.size


def _refusal(schedule: ScheduleFunction, error: Exception) -> str:
    """Return TVM's reason for refusing a schedule, and the line that it refuses."""
    reason = str(error).rpartition("Error message: ")[2].strip()
    code = getattr(schedule, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    where = f"line {own[-1].lineno}" if own else "the schedule"
    if own and own[-1].line:
        where += f" ({own[-1].line})"
    return f"TVM refuses {where}: {reason}"


def _entry(name: str, rung: Rung, module: IRModule) -> RungResult:
    entry = RungResult(name, rung.kind, rung.reason, precision=rung.precision)
    entry.module = module
    return entry


def _gpu_lines(figures: GpuFigures | None) -> list[str]:
    if figures is None:
        return []
    lines = []
    asked = figures.requests
    if asked is not None:
        for verb, sectors in (("load", asked.loads), ("store", asked.stores)):
            each = ", ".join(f"{name} {count:.3g}" for name, count in sectors.items())
            lines += [f"sectors of 32 bytes for a warp's {verb}: {each}"] if each else []
        for verb, turns in (("load", asked.load_degree), ("store", asked.store_degree)):
            if turns is not None:
                lines.append(f"most turns of the banks for a {verb} of shared memory: {turns}")
    for kernel in figures.kernels:
        said = f"{kernel.threads} threads a block, {kernel.registers} registers a thread"
        said += f", {kernel.shared:,} bytes of shared memory"
        if kernel.occupancy is not None:
            held = kernel.occupancy
            said += f": {held.warps} of {held.most} warps ({', '.join(held.limits)})"
        lines.append(f"{figures.arch}: {said}")
    return [*lines, *figures.missing]
