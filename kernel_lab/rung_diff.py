"""The changes that a rung makes in the TVMScript of the rung that it starts from.

The functions import TVM's compiler when they are called.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lab.ir_views import tvmscript, unified
from kernel_lab.rung import Ladder, Rung
from kernel_lab.sizes import drawn_size
from kernel_lab.workload import Case, Size, describe


@dataclass(frozen=True)
class RungDiff:
    """A rung's TVMScript (`new`) and the TVMScript of the rung `before` it (`old`), at one size.

    For a first rung, `before` is None and `old` is "".
    """

    name: str
    before: str | None
    old: str
    new: str
    size: Size

    @property
    def text(self) -> str:
        """The changed lines as a unified difference; for a first rung its whole TVMScript."""
        if self.before is None:
            return self.new
        heads = f"--- {self.before}, {describe(self.size)}\n+++ {self.name}, {describe(self.size)}"
        return f"{heads}\n{unified(self.old, self.new)}\n"


def rung_diff(ladder: Ladder, name: str, case: Case, *, small: bool = True) -> RungDiff:
    """Return the difference between the rung `name` and the rung that it starts from.

    With `small`, the two are compared at the smallest size at which their loops behave as at the
    case's own size (`drawn_size`), else at the case's own size. Raises LabUsageError for an unknown
    rung and for a size that one of the two does not claim.
    """
    rung = ladder[name]
    start = ladder[rung.after] if rung.after else None
    both = [rung, start] if start else [rung]
    if small:
        case = _reduced(ladder, both, case)
    old = tvmscript(start.module(case)) if start else ""
    return RungDiff(name, rung.after, old, tvmscript(rung.module(case)), case.size)


def _reduced(ladder: Ladder, rungs: list[Rung], case: Case) -> Case:
    """Return the case at the smallest size that is large enough for all rungs, or the case itself
    if a rung refuses that size."""
    drawn = [drawn_size(ladder.workload, rung, case) for rung in rungs]
    size = {name: max(each[name] for each in drawn) for name in case.size}
    return case if any(rung.claims(size) for rung in rungs) else Case(size, case.processor)
