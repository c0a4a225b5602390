"""A rung's trace at a size small enough to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel_lab.rung import Rung
from kernel_lab.sizes import drawn_size
from kernel_lab.trace import NotLowered, Trace, TraceTooLarge, trace
from kernel_lab.workload import Case, Workload, describe
from needle_runtime.artifact.tolerance import compare

PICTURE = 2_500_000  # accesses that can be drawn and counted in a few seconds
_SMALLEST = 4  # no dimension is made smaller than this


@dataclass(frozen=True)
class ScaledTrace:
    """A trace, its size, and its result's largest error against NumPy in float64, relative to the
    largest magnitude."""

    trace: Trace
    size: dict[str, Any]
    full: dict[str, Any]
    error: float

    @property
    def note(self) -> str:
        """The picture's note about the size."""
        if self.size == self.full:
            return f"traced at {describe(self.size)}, the size of the run"
        return f"scaled down: traced at {describe(self.size)} (the run has {describe(self.full)})"


def scaled_trace(
    workload: Workload, rung: Rung, case: Case, limit: int = PICTURE, ignore: tuple[str, ...] = ()
) -> ScaledTrace:
    """Trace a rung at the smallest size at which its loops behave as at the case's own size.

    `drawn_size` chooses it. While that makes more than `limit` accesses, a dimension is halved: the
    largest whose half the rung claims, or else the largest. Sizes that TVM cannot lower are
    skipped. Raises TraceTooLarge if no size is left, and whatever `trace` raises.
    """
    start = drawn_size(workload, rung, case)
    for size in smaller(start, rung.claims):
        if rung.claims(size) is not None:
            continue
        try:
            return trace_at(workload, rung, Case(size, case.processor), case, limit, ignore)
        except (TraceTooLarge, NotLowered):
            continue
    raise TraceTooLarge(f"trace: rung {rung.name!r} has no size of at most {limit:,} accesses")


def trace_at(
    workload: Workload,
    rung: Rung,
    small: Case,
    full: Case,
    limit: int = PICTURE,
    ignore: tuple[str, ...] = (),
) -> ScaledTrace:
    """Trace a rung at the size of `small`, for a picture of the run at the size of `full`."""
    arrays = workload.inputs(small.size)
    found = trace(rung.module(small), arrays, limit=limit, ignore=ignore, follow=True)
    exact = workload.reference(small.size, arrays)
    result = list(found.arrays.values())[len(arrays)].reshape(exact.shape)
    error = compare(exact, result, same_dtype=False).relative
    return ScaledTrace(found, dict(small.size), dict(full.size), error)


def smaller(
    size: Mapping[str, Any], claims: Callable[[Mapping[str, Any]], str | None]
) -> list[dict[str, Any]]:
    """Return the size, then smaller and smaller sizes down to a few elements. Each step halves one
    dimension: the largest whose half is claimed (`claims` returns None), or else the largest."""
    sizes = [dict(size)]
    while True:
        last = sizes[-1]
        numbers = {name: n for name, n in last.items() if isinstance(n, int) and n >= 2 * _SMALLEST}
        halves = [
            {**last, name: numbers[name] // 2}
            for name in sorted(numbers, key=lambda name: -numbers[name])
        ]
        if not halves:
            return sizes
        sizes.append(next((half for half in halves if claims(half) is None), halves[0]))
