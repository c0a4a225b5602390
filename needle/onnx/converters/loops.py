"""The converter of Loop. A Loop becomes a `needle.scan` if the number of iterations is known before
the loop. If the number is known only during a call, the Loop becomes a `needle.while_loop`, which
cannot return a value of every iteration.

Values that the body computes only from known values (a counter, most conditions, shapes) are
computed for all iterations first. They determine the number of iterations and are known after the
loop. A body is unrolled if it cannot be a cell, because it carries a sequence, its shapes change
from iteration to iteration, or it must know a value that is known only within an iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...common.state import state
from ...conversion import budget
from ...conversion.unrolling import Room, check_count, stacked
from ...conversion.values import (
    Carried,
    Items,
    Rows,
    Value,
    known_integer,
    known_number,
    tensor,
)
from ...errors import ShapeError
from ...loops import while_loop
from ...sizes.extents import is_symbolic
from ..execute import Scope
from ..graph import Node, used_names
from ..registry import converter
from .scans import NO_CELL, keep, scanned, single, unknown_names

_TRUE = np.array(True)


@converter("Loop", since=1, scoped=True, known=(0, 1))
def loop(
    node: Node,
    scope: Scope,
    trips: Value | None = None,
    condition: Value | None = None,
    *states: Carried,
) -> tuple[Carried, ...]:
    body = node.graph("body")
    count = len(states)
    if len(body.inputs) != count + 2 or len(body.outputs) <= count:
        raise node.invalid(
            f"its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs; for {count} "
            f"states it has {count + 2} inputs and at least {count + 1} outputs"
        )
    if state.trace is not None and (isinstance(trips, Tensor) or isinstance(condition, Tensor)):
        what = "the trip count" if isinstance(trips, Tensor) else "the condition"
        return _while(node, scope, what, trips, condition, states)
    most = None if trips is None else known_integer(node, trips, "the trip count")
    again = condition is None or bool(known_number(node, condition, "the condition"))
    run = _Loop(node, scope, states, most, condition is not None)
    if not again or (not run.is_open and most is not None and most < 1):
        return *states, *[run.collected(i, []) for i in range(len(body.outputs) - count - 1)]
    if run.ends_in_a_call and state.trace is not None:
        what = "the condition after iteration 1"
        return _while(node, scope, what, trips, condition, states)
    try:
        made = run.scanned()
    except NO_CELL as error:
        if run.is_open:
            raise node.unsupported(
                f"the trip count {most}, which a Dim leaves open, for a body that must be unrolled "
                f"({error})"
            ) from error
        made = None
    return run.unrolled() if made is None else made


def _while(
    node: Node,
    scope: Scope,
    what: str,
    trips: Value | None,
    condition: Value | None,
    states: Sequence[Carried],
) -> tuple[Any, ...]:
    """Return the last states of a loop whose end depends on `what`, a value that is known only
    during a call."""
    body, count = node.graph("body"), len(states)
    try:
        wanted = [i for i in range(count, len(body.outputs) - 1) if node.wants(i)]
        if wanted:
            name = body.outputs[wanted[0] + 1].name
            raise ShapeError(f"its output {name!r} has one element per iteration")
        most = None if trips is None else ops.reshape(tensor(trips), ())
        again = tensor(_TRUE if condition is None else condition)

        def test(now: Any) -> Tensor:
            number, again, _ = now
            return again if most is None else ops.logical_and(again, number < most)

        def step(now: Any) -> Any:
            number, again, states = now
            after, *made = scope.run(body, number, _TRUE, *states)[: count + 1]
            goes_on = again if condition is None else ops.reshape(single(after), ())
            return number + 1, goes_on, [single(x) for x in made]

        first = tensor(np.array(0, np.int64)), ops.reshape(again, ()), [*map(single, states)]
        return tuple(while_loop(test, step, first)[2])
    except NO_CELL as error:
        raise node.unsupported(
            f"{what} depends on values that only a call knows, and the loop cannot be a "
            f"needle.while_loop ({error}); if they come from an input of the model, give it a "
            "value with fixed={...}"
        ) from error


class _Loop:
    """A Loop that runs at least once. `fixed` has the indices of the states that are computed only
    from known values; `varying` has the names of the values in the body that are not."""

    def __init__(
        self, node: Node, scope: Scope, states: Sequence[Carried], most: Any, conditional: bool
    ) -> None:
        self._node, self._scope = node, scope
        self._states: list[Any] = list(states)
        self._body = body = node.graph("body")
        self._most = most
        self.is_open = most is not None and is_symbolic((most,))
        number, _, *self._names = [each.name for each in body.inputs]
        self._after, *self._outputs = [each.name for each in body.outputs]
        self._unknown = unknown_names(scope, body)
        self._conditional = conditional
        if conditional and self._after not in self._reached({number, *self._names}):
            self._ends_by_count()
        self.fixed = [] if self.is_open else self._known_states()
        sequences = [i for i, x in enumerate(states) if isinstance(x, Items)]
        varying = self._reached({self._names[i] for i in self._others() if i not in sequences})
        # Known values stay known in an unrolled loop.
        self._growing = [
            i
            for i in sequences
            if (value := self._appended(i)) and (self.is_open or value in varying)
        ]
        self.varying = self._reached({self._names[i] for i in self._others()})
        self.ends_in_a_call = (
            self._conditional and self._most != 1 and (self.is_open or self._after in self.varying)
        )

    def _appended(self, i: int) -> str:
        """Return the name of the value that each iteration appends to a sequence state, or "" if
        the body uses the sequence in another way."""
        name, after = self._names[i], self._outputs[i]
        readers = [node for node in self._body.nodes if {name, after} & used_names(node)]
        if len(readers) != 1 or readers[0].op_type != "SequenceInsert":
            return ""
        sequence, value, *place = readers[0].inputs
        plain = sequence == name and value != name and not any(place)
        return value if plain and after in readers[0].outputs else ""

    def _others(self) -> list[int]:
        return [i for i in range(len(self._states)) if i not in self.fixed]

    def _reached(self, names: set[str]) -> set[str]:
        """Return the names of the body's values that depend on `names` or on unknown outer
        values."""
        found = names | self._unknown
        for node in self._body.nodes:
            if node.is_random or not found.isdisjoint(used_names(node)):
                found.update(filter(None, node.outputs))
        return found

    def _known_states(self) -> list[int]:
        fixed = {i for i, x in enumerate(self._states) if isinstance(x, np.ndarray)}
        while True:
            others = {name for i, name in enumerate(self._names) if i not in fixed}
            reached = self._reached(others)
            less = {i for i in fixed if self._outputs[i] not in reached}
            if less == fixed:
                return sorted(fixed)
            fixed = less

    def _ends_by_count(self) -> None:
        """Evaluate a condition that is the same after each iteration."""
        (again,) = self._part([self._after], 0, {})
        self._conditional = False
        if not known_number(self._node, again, "the condition after iteration 1"):
            self._most, self.is_open = 1, False

    def _part(self, outputs: Sequence[str], number: int, states: dict[int, Any]) -> Any:
        """Compute those `outputs` of an iteration that depend only on its `number` and on
        `states`."""
        wanted, nodes = set(outputs), []
        for node in reversed(self._body.nodes):
            if not wanted.isdisjoint(node.outputs):
                wanted |= used_names(node)
                nodes.append(node)
        infos = {each.name: each for each in self._body.outputs}
        part = dataclasses.replace(
            self._body, outputs=tuple([infos[n] for n in outputs]), nodes=tuple(nodes[::-1])
        )
        given = [states.get(i) for i in range(len(self._states))]
        return self._scope.run(part, np.array(number, np.int64), _TRUE, *given)  # type: ignore[arg-type]

    # Iterations

    def scanned(self) -> tuple[Any, ...] | None:
        """Compute the results with a `needle.scan`. Return None for a loop whose end depends on a
        value that is known only within an iteration, or whose results are all known. Raises one of
        the errors in NO_CELL for a body that cannot be a cell."""
        if self.varying.isdisjoint(self._outputs) and not self.is_open:
            return None
        if self.ends_in_a_call:
            return None
        if self._most is None and not self._conditional:
            return None  # endless: `unrolled` raises the error
        if self.fixed or self._conditional:
            known = self._known_iterations()
            length: Any = len(known) - 1
        else:
            known, length = [], self._most
            if not self.is_open:
                budget.check_iterations(length)
        others = [i for i in self._others() if i not in self._growing]
        numbers, same, changing = ops.arange(length, dtype="int64"), {}, {}
        for i in self.fixed:
            values = [each[i] for each in known]
            if any(x.shape != values[0].shape for x in values[:-1]):
                raise ShapeError(f"state {self._names[i]!r} changes its shape")
            if all(x is values[0] or np.array_equal(x, values[0]) for x in values[:-1]):
                same[i] = values[0]
            else:
                changing[i] = np.stack(values[:-1])

        def step(now: Sequence[Any], slices: Sequence[Any]) -> Any:
            number, *rest = slices
            given = {**same, **dict(zip(others, now, strict=True))}
            given |= dict(zip(changing, rest, strict=True))
            given |= dict.fromkeys(self._growing, Items(()))
            states = [given[i] for i in range(len(self._states))]
            made: list[Any]
            _, *made = self._scope.run(self._body, number, _TRUE, *states)
            outputs = [*made[len(states) :], *[made[i].values[0] for i in self._growing]]
            for y in outputs:
                budget.bounded((length, *y.shape))
            return [made[i] for i in others], outputs

        first = [single(self._states[i]) for i in others]
        lasts, stacks = scanned(step, first, [numbers, *changing.values()], length)
        ends: dict[int, Any] = dict(zip(others, lasts, strict=True))
        if self.fixed:
            ends |= known[-1]
        kept = len(stacks) - len(self._growing)
        for i, y in zip(self._growing, stacks[kept:], strict=True):
            before = self._states[i].values
            ends[i] = Items((*before, *Rows(y)) if before else Rows(y))
        return *[ends[i] for i in range(len(self._states))], *stacks[:kept]

    def _known_iterations(self) -> list[dict[int, Any]]:
        """Return the known states before each iteration and after the last."""
        names = [self._after, *[self._outputs[i] for i in self.fixed]]
        if not self._conditional:
            del names[0]
        iterations = [{i: self._states[i] for i in self.fixed}]
        again = True
        while again and (self._most is None or len(iterations) <= self._most):
            outputs = list(self._part(names, len(iterations) - 1, iterations[-1]))
            if self._conditional:
                label = f"the condition after iteration {len(iterations)}"
                again = bool(known_number(self._node, outputs.pop(0), label))
            iterations.append(dict(zip(self.fixed, outputs, strict=True)))
            budget.iterate()
        return iterations

    def unrolled(self) -> tuple[Any, ...]:
        """Compute the results with one copy of the body per iteration."""
        node, most = self._node, self._most
        states: Sequence[Any] = self._states
        kept: list[list[Value]] = [[] for _ in self._outputs[len(states) :]]
        room = Room(node)
        done, again = 0, True
        while again and (most is None or done < most):
            count = most if most is not None and not self._conditional else done + 1
            check_count(node, count)
            number = np.array(done, np.int64)
            after, *made = self._scope.run(self._body, number, _TRUE, *states)
            states = made[: len(states)]
            keep(kept, made[len(states) :])
            done += 1
            room.check(done, max(count, done))
            if self._conditional and (most is None or done < most):
                what = f"the condition after iteration {done}"
                again = bool(known_number(node, after, what))
        return *states, *[self.collected(i, values) for i, values in enumerate(kept)]

    def collected(self, number: int, values: list[Value]) -> Value:
        """Return the values of one scan output in all iterations, stacked."""
        if values:
            return stacked(values, 0)
        info = self._body.outputs[1 + len(self._states) + number]
        if info.dtype is None or info.shape is None:
            raise self._node.unsupported(
                f"no iterations, and the shape of the body's output {info.name!r} is not declared"
            )
        shape = [n if isinstance(n, int) else 0 for n in info.shape]
        return np.zeros((0, *shape), info.dtype)
