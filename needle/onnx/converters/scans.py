"""Loops whose states are running sums, products, extremes or linear recurrences.

A `Plan` finds out from a loop's body alone whether needle has an op for each of its states, and
then computes all iterations at once. It is Unfit for any other loop, which must be unrolled.

A state is followed from its value before an iteration to its value after it:

- Operators that combine it with values that do not depend on it, all of one kind (Add and Sub; Mul;
  Max; Min; Or; And), make it a cumsum, cumprod, cummax or cummin. Sums and products of a floating
  state are a linear_scan with a step for each product, so that infinities and NaN arise where they
  do in the body: factors are not multiplied, and terms not added, before the state has them.
- The bodies that needle's exporter writes for logcumsumexp, cummax and cummin are known by form.
- It may also stay what it is, or be a value that does not depend on it.

A state that is found is a sequence like any other, for further states and for outputs. All values
that are combined with a state have its dtype, and broadcast to its shape. Floating states are kept
in float64 and rounded for each step, as these ops do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import astype, is_floating
from ...conversion.values import Value, dtype_of, tensor
from ...errors import ModelError, ShapeError
from ...extents import same
from ...spec import broadcast_shapes
from ...tensor import Tensor
from ..emit import Value as Symbol
from ..emit import Writer
from ..emit.order import logaddexp, takes
from ..execute import applied
from ..graph import Graph
from .terms import Terms, Unfit, in_all_steps, moved, turned

__all__ = ["Plan", "Unfit", "moved", "turned"]

_KINDS = {"Add": "Add", "Sub": "Add", "Sum": "Add", "Mul": "Mul", "Neg": "Mul",
          "Max": "Max", "Min": "Min", "Or": "Max", "And": "Min"}  # fmt: skip
_RUNNING: dict[str, Callable[[Tensor], Tensor]] = {
    "Add": lambda x: ops.cumsum(x, 0),
    "Mul": lambda x: ops.cumprod(x, 0),
    "Max": lambda x: ops.cummax(x, 0)[0],
    "Min": lambda x: ops.cummin(x, 0)[0],
    "LogAddExp": lambda x: ops.logcumsumexp(x, 0),
}

Steps = Sequence[tuple[str, int]]  # kinds, and the numbers of what a state is combined with


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A state: its numbers before and after an iteration, its first value, and how it changes."""

    before: int
    after: int
    first: Value
    steps: Steps


class Plan:
    """How to compute all iterations of a loop at once."""

    def __init__(
        self,
        body: Graph,
        states: Mapping[str, Value],
        slices: Mapping[str, str],
        outer: Mapping[str, Value],
        outputs: Sequence[str],
    ) -> None:
        """Of the inputs of `body`, `states` has the first values and `slices` the dtypes; `outer`
        has other values that it sees. `outputs` are those wanted: first one for each state, its
        next value. Raises Unfit."""
        self.terms = Terms(body, [*states, *slices], outer)
        self._slices = {self.terms.named(name): dtype for name, dtype in slices.items()}
        self.terms.free |= self._slices.keys()
        self.terms.varying |= self._slices.keys()
        self._outputs = [self.terms.named(name) for name in outputs]
        self._rules: dict[int, _Rule] = {}  # by the number before, in the order of computing
        self._taken: dict[int, int] = {}  # extremes by the condition that they take a slice
        self._places: dict[int, Tensor] = {}  # of extremes, counted from the first value
        self._count = len(states)
        self._solve({self.terms.named(name): first for name, first in states.items()})
        wanted = [n for rule in self._rules.values() for kind, n in rule.steps if kind != "Place"]
        afters = {rule.after for rule in self._rules.values()}
        self._used = self.terms.below([*self._outputs, *wanted], afters)

    def _solve(self, states: Mapping[int, Value]) -> None:
        """Find a rule for each state, in an order in which each depends on those before it."""
        afters, terms = dict(zip(states, self._outputs, strict=False)), self.terms
        found = True
        while found:
            terms.spread()
            found = False
            for before in states.keys() - self._rules.keys():
                rule = self._rule(before, afters[before], states[before])
                if rule is not None:
                    self._rules[before] = rule
                    terms.free |= {before, rule.after}
                    terms.varying |= {before, rule.after} if rule.steps else set()
                    found = True
        if len(self._rules) < len(states) or not terms.free.issuperset(self._outputs):
            raise Unfit

    def _rule(self, before: int, after: int, first: Value) -> _Rule | None:
        dtype = dtype_of(first)
        if isinstance(first, np.ndarray) and first.dtype == object:  # which dims leave open
            return None
        steps: Steps | None
        if after in self.terms.free:
            steps = [("Given", after)]
        else:
            steps = self._chain(before, after, dtype)
            if steps is None:
                steps = self._formed(before, after, dtype) or self._placed(before, after, first)
        return None if steps is None else _Rule(before, after, first, steps)

    def _chain(self, before: int, at: int, dtype: str) -> Steps | None:
        """The steps of a state that is combined with free values only."""
        steps: list[tuple[str, int]] = []  # from the last to the first
        while at != before:
            term = self.terms.terms[at]
            if term.op not in _KINDS or not term.elementwise or term.node is None:
                return None
            given = [n for n in term.inputs if n is not None]
            through = [i for i, n in enumerate(given) if n not in self.terms.free]
            if len(through) != 1:
                return None
            others = [n for n in given if n in self.terms.free]
            if term.op == "Sub" and through == [0]:
                others = [self.terms.negative(others[0], term.node)]
            steps += [(_KINDS[term.op], n) for n in reversed(others)]
            if term.op == "Neg" or (term.op == "Sub" and through == [1]):
                steps.append(("Mul", self._number(-1, dtype)))
            at = given[through[0]]
        steps.reverse()
        kinds = {kind for kind, _ in steps}
        if kinds == {"Add", "Mul"} and is_floating(dtype):
            return self._pairs(steps, dtype)
        return steps if len(kinds) < 2 and (dtype != "bool" or kinds <= {"Max", "Min"}) else None

    def _pairs(self, steps: Steps, dtype: str) -> Steps:
        """Sums and products as pairs of a factor and a term, 1 and -0.0 where there is none."""
        one, none = self._number(1.0, dtype), self._number(-0.0, dtype)
        made: list[tuple[str, int]] = []
        for kind, number in steps:
            if kind == "Mul":
                made += [("Mul", number), ("Add", none)]
            elif made and made[-1] == ("Add", none):
                made[-1] = "Add", number
            else:
                made += [("Mul", one), ("Add", number)]
        return made

    def _number(self, number: float, dtype: str) -> int:
        return self.terms.constant(astype(np.array(number), dtype))

    def _formed(self, before: int, after: int, dtype: str) -> Steps | None:
        """The step of a state and a slice that has a form of the exporter's."""
        for x in [x for x, each in self._slices.items() if each == dtype]:
            given = {"a": (before, dtype), "x": (x, dtype)}
            if is_floating(dtype):
                if self.terms.form(lambda w, a, x: [logaddexp(w, a, x)], **given) == [after]:
                    return [("LogAddExp", x)]
            for kind, beats in (("Cummax", "GreaterOrEqual"), ("Cummin", "LessOrEqual")):

                def write(w: Writer, a: Symbol, x: Symbol, beats: str = beats) -> list[Symbol]:
                    taken = takes(w, beats, a, x)
                    return [taken, w.op("Where", taken, x, a)]

                taken, made = self.terms.form(write, **given)
                if made == after:
                    self._taken[taken] = before
                    return [(kind, x)]
        return None

    def _placed(self, before: int, after: int, first: Value) -> Steps | None:
        """The step of the positions, from 0 on, of an extreme with the exporter's form: they are
        those of a counter where the extreme takes a slice."""
        term = self.terms.terms[after]
        if term.op != "Where" or term.inputs[0] not in self._taken or term.inputs[2] != before:
            return None
        counter = self._rules.get(term.inputs[1])  # type: ignore[arg-type]
        if counter is None or counter.steps != [("Add", self._number(1, "int64"))]:
            return None
        if not _is_zero(counter.first) or not _is_zero(first):
            return None
        return [("Place", self._taken[term.inputs[0]])]

    def run(self, sequences: Sequence[Value], count: Any) -> list[Value]:
        """The last states, then the other outputs of all steps along axis 0, for sequences with
        `count` steps along axis 0, at least one. Raises Unfit where dtypes or shapes do not fit."""
        for number, value in zip(self._slices, sequences, strict=True):
            self.terms.give(number, value, True)
        try:
            for rule in self._rules.values():
                self._compute(rule, count)
            made = [self.terms.value(number) for number in self._outputs]
        except ModelError:
            raise Unfit from None  # unrolled, it has an error that names the iteration's shapes
        lasts = [value[-1] if varies else value for value, varies in made[: self._count]]
        others = [
            in_all_steps(value, varies, tuple(value.shape)[varies:], count)
            for value, varies in made[self._count :]
        ]
        return [*lasts, *others]

    def _compute(self, rule: _Rule, count: Any) -> None:
        """Compute a state before and after all steps."""
        kinds = [kind for kind, _ in rule.steps]
        if not kinds:
            self.terms.give(rule.before, rule.first, False)
            self.terms.give(rule.after, rule.first, False)
            return
        if kinds == ["Place"]:
            after: Value = ops.maximum(self._places[rule.steps[0][1]] - 1, 0)
        else:
            parts = [self._operand(number, rule.first, count) for _, number in rule.steps]
            after = self._states(rule, kinds, parts)
        every = len(kinds) // len(set(kinds))  # of these values is a step's last
        if rule.before in self._used:
            before = applied(_joined, rule.first, after)[:-1]
            self.terms.give(rule.before, before[::every], True)
        self.terms.give(rule.after, after[every - 1 :: every], True)

    def _operand(self, number: int, first: Value, count: Any) -> Value:
        """What a state is combined with in all steps, in the state's shape."""
        value, varies = self.terms.value(number)
        shape, own = tuple(first.shape), tuple(value.shape)[varies:]
        if dtype_of(value) != dtype_of(first) or len(own) > len(shape):
            raise Unfit
        try:
            common = broadcast_shapes("Scan", own, shape)
        except ShapeError:
            raise Unfit from None
        if not same(common, shape):
            raise Unfit
        return in_all_steps(value, varies, shape, count)

    def _states(self, rule: _Rule, kinds: Sequence[str], parts: Sequence[Value]) -> Value:
        """A state after each of its combinations, in all steps."""
        if len(set(kinds)) > 1:
            return applied(_linear, rule.first, *parts)[1:]
        kind, flat = kinds[0], applied(_interleaved, *parts)
        if kind == "Given":
            return flat
        if kind in ("Cummax", "Cummin"):
            running = ops.cummax if kind == "Cummax" else ops.cummin
            values, places = running(_joined(tensor(rule.first), tensor(flat)), 0)
            self._places[rule.before] = places[1:]
            return values[1:]
        dtype = dtype_of(rule.first)  # that of an integer's total is int64
        whole = lambda a, x: ops.cast(_RUNNING[kind](_joined(a, x)), dtype)  # noqa: E731
        return applied(whole, rule.first, flat)[1:]


def _is_zero(value: Value) -> bool:
    """Whether a value is known and nothing but zeros."""
    return isinstance(value, np.ndarray) and not value.any()


def _joined(first: Tensor, others: Tensor) -> Tensor:
    return ops.concat([ops.unsqueeze(first, 0), others], 0)


def _interleaved(*parts: Tensor) -> Tensor:
    """Sequences as one, in which the steps of all of them take turns."""
    if len(parts) == 1:
        return parts[0]
    count, *shape = parts[0].shape
    return ops.reshape(ops.stack(parts, 1), (count * len(parts), *shape))


def _linear(first: Tensor, *parts: Tensor) -> Tensor:
    """A state, first, and after each of its steps, which have a factor and a term each."""
    factors, terms = _interleaved(*parts[::2]), _interleaved(*parts[1::2])
    # Nothing comes before the first element, whose factor is never read.
    return ops.linear_scan(_joined(first, factors), _joined(first, terms), 0)
