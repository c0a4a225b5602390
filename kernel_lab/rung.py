"""Rungs and ladders: a ladder is a list of rungs, each of which is one step from another rung."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernel_lab.errors import LabUsageError
from kernel_lab.workload import Case, Size, Workload

if TYPE_CHECKING:
    from kernel_lab.search import Space
    from needle_tvm._tvm.names import IRModule, Schedule

ScheduleFunction = Callable[["Schedule", Case], Any]
Definition = Callable[[Case], list[Any]]
Claim = Callable[[Size], "str | None"]

# The first words of those paragraphs of a rung's docstring that are shown separately.
_PREDICTION, _PICTURE = "Prediction:", "Picture:"


def any_size(size: Size) -> str | None:
    """Return None: the claim of a rung that works at every size."""
    return None


def generation(arch: str) -> int:
    """Return the number in the name of a GPU architecture: 75 for "sm_75". Raises LabUsageError if
    there is none."""
    digits = arch.removeprefix("sm_").rstrip("af")  # sm_90a: features of that generation alone
    if not digits.isdigit():
        raise LabUsageError(f"GPU architecture {arch!r}: must be like sm_75 or sm_90")
    return int(digits)


@dataclass(frozen=True)
class Rung:
    """One step: a schedule function and, for a rewrite, a definition of its own.

    `reason` is the function's docstring: the reason for the step and, in a paragraph that begins
    with "Prediction:", the derivation of the expected gain. A paragraph of the docstring that
    begins with "Picture:" is not part of the reason; it is the `caption`, which describes a picture
    of the accesses. `after` is the rung that this one starts from, and `expected` the lowest and
    highest expected factor against it. `claims` returns None for a size at which the rung is right,
    else the reason for refusing it. `explained` says why the measured factor differs from
    `expected`, and on which machine. `precision` is the dtype that the definition rounds its
    operands to, if lower than the workload's float32; sums are float32. `needs` is the oldest GPU
    architecture whose instructions the schedule uses, such as "sm_80". `rewrites` says whether the
    rung has a definition of its own.
    """

    name: str
    kind: str
    reason: str
    schedule: ScheduleFunction
    define: Definition
    after: str | None
    expected: tuple[float, float]
    claims: Claim = any_size
    explained: str | None = None
    precision: str = "float32"
    needs: str | None = None
    rewrites: bool = False
    caption: str = ""

    @property
    def prediction(self) -> str:
        """The derivation of `expected`, in one line; "" if the reason has none."""
        found = (part for part in self.reason.split("\n\n") if part.startswith(_PREDICTION))
        return " ".join(next(found, "").removeprefix(_PREDICTION).split())

    def refuses(self, size: Size, arch: str | None = None) -> str | None:
        """Return the reason for refusing `size`, or a GPU of architecture `arch`; None if both are
        accepted.

        Without `arch` (on a CPU, or if code is only inspected) any architecture will do.
        """
        if arch and self.needs and generation(arch) < generation(self.needs):
            return f"it needs {self.needs} or newer, and the code is for {arch}"
        return self.claims(size)

    def module(self, case: Case) -> IRModule:
        """Return the scheduled module; its only function is named "main".

        Raises LabUsageError, naming the rung, at a size that it does not claim.
        """
        from needle_tvm._tvm.names import Schedule, te

        refusal = self.claims(case.size)
        if refusal:
            raise LabUsageError(f"rung {self.name!r} does not take this size: {refusal}")
        sch = Schedule(te.create_prim_func(self.define(case)))
        self.schedule(sch, case)
        return sch.mod

    @property
    def source(self) -> str:
        """The Python source of the schedule function, and, for a rewrite, of the definition."""
        parts = [inspect.getsource(self.schedule)]
        if self.rewrites:
            parts.insert(0, inspect.getsource(self.define))
        return "\n\n".join(parts)


@dataclass
class Ladder:
    """The rungs of a workload on a device, in order.

    The lab's own search looks through `space`. `tuned_from` names the rung whose definition
    meta_schedule gets (the naive one, or a rewrite that a tuner cannot find by itself).
    """

    workload: Workload
    device: str
    rungs: list[Rung] = field(default_factory=list)
    space: Space | None = None
    tuned_from: str = "naive"

    def rung(
        self,
        *,
        expected: tuple[float, float],
        kind: str = "schedule",
        after: Callable[..., Any] | str | None = None,
        define: Definition | None = None,
        precision: str | None = None,
        claims: Claim | None = None,
        needs: str | None = None,
        explained: str | None = None,
        name: str | None = None,
    ) -> Callable[[ScheduleFunction], ScheduleFunction]:
        """Return a decorator that adds a schedule function to the ladder under its own name.

        Defaults come from the rung `after` or, without it, from the last rung that did not fail:
        the new rung inherits its definition (with the `precision`), `claims` and `needs`.
        """

        def add(function: ScheduleFunction) -> ScheduleFunction:
            previous = self._previous(after)
            inherited = previous.precision if previous and define is None else "float32"
            said = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            captions = [part for part in said if part.startswith(_PICTURE)]
            self.rungs.append(
                Rung(
                    name=name or function.__name__.strip("_"),
                    kind=kind,
                    reason="\n\n".join(part for part in said if part not in captions),
                    schedule=function,
                    define=define or (previous.define if previous else self.workload.define),
                    after=previous.name if previous else None,
                    expected=expected,
                    claims=claims or (previous.claims if previous else any_size),
                    explained=explained,
                    precision=precision or inherited,
                    needs=needs or (previous.needs if previous else None),
                    rewrites=define is not None,
                    caption=" ".join(" ".join(captions).removeprefix(_PICTURE).split()),
                )
            )
            return function

        return add

    def _previous(self, after: Callable[..., Any] | str | None) -> Rung | None:
        if after is not None:
            return self[after if isinstance(after, str) else after.__name__]
        standing = [rung for rung in self.rungs if rung.kind != "failed"]
        return standing[-1] if standing else None

    def __getitem__(self, name: str) -> Rung:
        for rung in self.rungs:
            if rung.name == name:
                return rung
        known = ", ".join(rung.name for rung in self.rungs)
        raise LabUsageError(
            f"{self.workload.name} on {self.device} has no rung {name!r}: it has {known}"
        )

    def select(self, names: Sequence[str] | None) -> list[Rung]:
        """Return the rungs with these `names`, in the ladder's order; all rungs if `names` is None.

        Raises LabUsageError for an unknown name.
        """
        if names is None:
            return list(self.rungs)
        wanted = {self[name].name for name in names}
        return [rung for rung in self.rungs if rung.name in wanted]
