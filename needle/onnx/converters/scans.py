"""Loops whose states are running sums, products, extremes or linear recurrences.

A `Plan` finds out from a loop's body alone whether needle has an op for each of its states, and
then computes all iterations at once: operators of slices on whole sequences, whose steps are on
axis 0, and each state by its op. It is Unfit for any other loop, which must be unrolled.

A state is followed from its value before an iteration to its value after it:

- Operators that combine it with values that do not depend on it, all of one kind (Add and Sub; Mul;
  Max; Min; Or; And), make it a cumsum, cumprod, cummax or cummin. Sums and products of a floating
  state are a linear_scan with a step for each product, so that infinities and NaN arise where they
  do in the body: factors are not multiplied, and terms not added, before the state has them.
- The bodies that needle's exporter writes for logcumsumexp, cummax and cummin are known by form.
- It may also stay what it is, or be a value that does not depend on it.

A state that is found is a sequence like any other, for further states and for outputs. What depends
on sequences must be elementwise, or a Gather from an outer value. Floating states are kept in
float64 and rounded for each step, as these ops do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...backend_ndarray.dtypes import astype, is_floating
from ...errors import ModelError, ShapeError
from ...extents import is_symbolic, same
from ...spec import broadcast_shapes
from ...tensor import Tensor
from ..emit import Value as Symbol
from ..emit import Writer
from ..emit.order import logaddexp, takes
from ..execute import applied, run_node
from ..graph import Graph, Node
from ..values import Value, dtype_of, is_known, normal_axis, tensor
from .elementwise import ELEMENTWISE

_MOST_NODES = 1000  # of a body; a longer one is not looked at
_OPSET = 20  # of the exporter's forms, which are the same in all
_DEFAULTS = {("saturate", 1), ("round_mode", "up"), ("detect_negative", 1), ("detect_positive", 1)}
_KINDS = {"Add": "Add", "Sub": "Add", "Sum": "Add", "Mul": "Mul", "Neg": "Mul",
          "Max": "Max", "Min": "Min", "Or": "Max", "And": "Min"}  # fmt: skip
_RUNNING: dict[str, Callable[[Tensor], Tensor]] = {
    "Add": lambda x: ops.cumsum(x, 0),
    "Mul": lambda x: ops.cumprod(x, 0),
    "Max": lambda x: ops.cummax(x, 0)[0],
    "Min": lambda x: ops.cummin(x, 0)[0],
    "LogAddExp": lambda x: ops.logcumsumexp(x, 0),
    "Given": lambda x: x,
}


class Unfit(Exception):
    """The loop must be unrolled."""


@dataclasses.dataclass(frozen=True)
class _Term:
    """A value of the body. `inputs` are the numbers of others, and it is output number `output` of
    `node`, unless it is given or belongs to one of the exporter's forms."""

    op: str
    inputs: tuple[int | None, ...] = ()
    node: Node | None = None
    output: int = 0
    elementwise: bool = False


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A state: its numbers before and after an iteration, its first value, and how one comes of the
    other: kinds, and the numbers of what it is combined with."""

    before: int
    after: int
    first: Value
    steps: tuple[tuple[str, int], ...]


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
        if len(body.nodes) > _MOST_NODES:
            raise Unfit
        self._terms: list[_Term] = []
        self._numbers: dict[Any, int] = {}
        self._values: dict[int, tuple[Value, bool]] = {}  # and whether they have an axis of steps
        self._free: set[int] = set()  # terms that can be computed
        self._varying: set[int] = set()  # those of them that differ between iterations
        self._outer = {**outer, **body.initialisers}
        self._names = {n: self._number(("given", n), _Term("given")) for n in [*states, *slices]}
        self._dtypes = {self._names[name]: dtype for name, dtype in slices.items()}
        self._free |= self._dtypes.keys()
        self._varying |= self._dtypes.keys()
        for node in body.nodes:
            self._read(node)
        self._outputs = [self._named(name) for name in outputs]
        self._rules: list[_Rule] = []
        self._taken: dict[int, int] = {}  # extremes by the condition that they take a slice
        self._places: dict[int, Value] = {}  # of extremes, counted from the first value
        self._solve({self._names[n]: first for n, first in states.items()})
        wanted = [*self._outputs, *(number for rule in self._rules for _, number in rule.steps)]
        self._used = self._below(wanted, {rule.after for rule in self._rules})

    # The body as terms: equal operators of equal values are one, as its states and forms must be
    # found however the values are named.

    def _number(self, key: Any, term: _Term) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._terms)
            self._terms.append(term)
        return self._numbers[key]

    def _named(self, name: str) -> int:
        if name not in self._names:
            if name not in self._outer:
                raise Unfit
            self._names[name] = self._constant(self._outer[name], name)
        return self._names[name]

    def _constant(self, value: Value, name: str = "") -> int:
        key: Any = ("outer", name)
        if is_known(value) and value.ndim == 0 and value.dtype != object:
            key = ("number", dtype_of(value), value.tobytes())  # type: ignore[union-attr]
        number = self._number(key, _Term("constant"))
        self._values[number] = value, False
        self._free.add(number)
        return number

    def _elementwise(
        self,
        op: str,
        inputs: Iterable[int | None],
        attributes: Mapping[str, Any],
        node: Node | None = None,
    ) -> int:
        numbers = tuple(inputs)
        kept = sorted((n, repr(v)) for n, v in attributes.items() if (n, v) not in _DEFAULTS)
        return self._number((op, numbers, *kept), _Term(op, numbers, node, 0, True))

    def _read(self, node: Node) -> None:
        if any(isinstance(value, Graph) for value in node.attributes.values()):
            raise Unfit
        inputs = [self._named(name) if name else None for name in node.inputs]
        standard = node.domain == "" and node.opset >= 7  # operands broadcast as NumPy's
        if standard and node.op_type == "Identity":
            self._names[node.outputs[0]] = self._named(node.inputs[0])
        elif standard and node.op_type == "Constant":
            name = node.outputs[0]
            self._names[name] = self._constant(run_node(node, [], {})[0], name)
        elif standard and node.op_type in ELEMENTWISE:
            made = self._elementwise(node.op_type, inputs, node.attributes, node)
            self._names[node.outputs[0]] = made
        else:
            for i, name in enumerate(node.outputs):
                term = _Term(node.op_type, tuple(inputs), node, i)
                self._names[name] = self._number((id(node), i), term)

    def _form(self, write: Callable[..., Sequence[Symbol]], **given: tuple[int, str]) -> list[int]:
        """The numbers of what the exporter writes for values of these numbers and dtypes."""
        w, names = Writer(_OPSET), {name: number for name, (number, _) in given.items()}
        made = write(w, **{name: Symbol(name, dtype, ()) for name, (_, dtype) in given.items()})
        for each in w.nodes:
            inputs = [
                names[n] if n in names else self._constant(w.arrays[n], n) for n in each.inputs
            ]
            names[each.outputs[0]] = self._elementwise(each.op_type, inputs, each.attributes)
        return [names[each.name] for each in made]

    # States

    def _solve(self, states: Mapping[int, Value]) -> None:
        """Find a rule for each state, in an order in which each depends on those before it."""
        left = dict(zip(states, self._outputs, strict=False))
        found = True
        while found and left:
            self._spread()
            found = False
            for before, after in left.items():
                steps = self._steps(before, after, states[before])
                if steps is not None:
                    self._rules.append(_Rule(before, after, states[before], steps))
                    self._free |= {before, after}
                    self._varying |= {before, after} if steps else set()
                    del left[before]
                    found = True
                    break
        self._spread()
        if left or not self._free.issuperset(self._outputs):
            raise Unfit

    def _spread(self) -> None:
        """Note which terms can be computed by now. Each comes after its inputs."""
        for number, term in enumerate(self._terms):
            inputs = {i for i in term.inputs if i is not None}
            if number in self._free or term.node is None or not inputs <= self._free:
                continue
            varies = bool(inputs & self._varying)
            gathers = term.op == "Gather" and term.inputs[0] not in self._varying
            if not varies or term.elementwise or gathers:
                self._free.add(number)
                self._varying |= {number} if varies else set()

    def _steps(self, before: int, after: int, first: Value) -> tuple[tuple[str, int], ...] | None:
        """How a state's value after an iteration comes of that before it, or None."""
        dtype = dtype_of(first)
        if is_known(first) and first.dtype == object:
            return None
        if after in self._free:
            return (("Given", after),)
        steps = self._chain(before, after, dtype)
        if steps is not None:
            kinds = {kind for kind, _ in steps}
            if kinds == {"Add", "Mul"} and is_floating(dtype):
                return self._pairs(steps, dtype)
            fits = len(kinds) < 2 and (dtype != "bool" or kinds <= {"Max", "Min"})
            return tuple(steps) if fits else None
        for x in self._dtypes:
            if self._dtypes[x] == dtype and (kind := self._formed(before, after, x, dtype)):
                return ((kind, x),)
        return self._place(before, after, first)

    def _pairs(self, steps: Iterable[tuple[str, int]], dtype: str) -> tuple[tuple[str, int], ...]:
        """Sums and products as pairs of a factor and a term, 1 and -0.0 where there is none."""
        one, none = (self._constant(astype(np.array(n), dtype)) for n in (1.0, -0.0))
        made: list[tuple[str, int]] = []
        for kind, number in steps:
            if kind == "Mul":
                made += [("Mul", number), ("Add", none)]
            elif made and made[-1] == ("Add", none):
                made[-1] = "Add", number
            else:
                made += [("Mul", one), ("Add", number)]
        return tuple(made)

    def _place(self, before: int, after: int, first: Value) -> tuple[tuple[str, int]] | None:
        """The positions, from 0 on, of an extreme with the exporter's form."""
        term = self._terms[after]
        if term.op != "Where" or term.inputs[0] not in self._taken or term.inputs[2] != before:
            return None
        counts = (("Add", self._constant(np.array(1, "int64"))),)
        counters = [r.before for r in self._rules if r.steps == counts and _is_all(r.first, 0)]
        if term.inputs[1] not in counters or not _is_all(first, 0):
            return None
        return (("Place", self._taken[term.inputs[0]]),)

    def _chain(self, before: int, at: int, dtype: str) -> list[tuple[str, int]] | None:
        steps: list[tuple[str, int]] = []  # from the last to the first
        while at != before:
            term = self._terms[at]
            through = [
                i for i, n in enumerate(term.inputs) if n is not None and n not in self._free
            ]
            if len(through) != 1 or term.op not in _KINDS or not term.elementwise:
                return None
            kind, others = _KINDS[term.op], [n for n in term.inputs if n in self._free]
            if term.op == "Sub" and through == [0]:
                others = [self._negative(others[0], term.node)]
            steps += [(kind, n) for n in reversed(others) if n is not None]
            if term.op == "Neg" or (term.op == "Sub" and through == [1]):
                steps.append(("Mul", self._constant(astype(np.array(-1), dtype))))
            at = term.inputs[through[0]]  # type: ignore[assignment]
        return steps[::-1]

    def _negative(self, number: int, node: Node | None) -> int:
        made = self._elementwise(
            "Neg", [number], {}, node and dataclasses.replace(node, op_type="Neg", attributes={})
        )
        self._free.add(made)
        self._varying |= {made} if number in self._varying else set()
        return made

    def _formed(self, before: int, after: int, x: int, dtype: str) -> str | None:
        """The kind of a state and a slice whose step has the exporter's form."""
        given = {"a": (before, dtype), "x": (x, dtype)}
        if is_floating(dtype):
            if self._form(lambda w, a, x: [logaddexp(w, a, x)], **given) == [after]:
                return "LogAddExp"
        for kind, beats in (("Cummax", "GreaterOrEqual"), ("Cummin", "LessOrEqual")):

            def write(w: Writer, a: Symbol, x: Symbol, beats: str = beats) -> list[Symbol]:
                taken = takes(w, beats, a, x)
                return [taken, w.op("Where", taken, x, a)]

            taken, made = self._form(write, **given)
            if made == after:
                self._taken[taken] = before
                return kind
        return None

    def _below(self, numbers: Iterable[int], known: Collection[int]) -> set[int]:
        """These terms and all that they are computed of, down to those that are known."""
        found: set[int] = set()
        left = list(numbers)
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                if number not in known:
                    left += [i for i in self._terms[number].inputs if i is not None]
        return found

    def is_true(self, name: str) -> bool:
        """Whether a value of the body is True in all iterations, and known to be."""
        value, _ = self._values.get(self._named(name), (None, False))
        return isinstance(value, np.ndarray) and value.dtype == bool and bool(value.all())

    # Values

    def run(self, sequences: Sequence[Value], count: Any) -> list[Value]:
        """The last states, then the other outputs of all steps along axis 0, for sequences with
        `count` steps along axis 0, at least one. Raises Unfit where dtypes or shapes do not fit."""
        self._count = count
        self._values.update(zip(self._dtypes, ((x, True) for x in sequences), strict=True))
        try:
            for rule in self._rules:
                self._run(rule)
            made = [self._value(number) for number in self._outputs]
        except ModelError:
            raise Unfit from None  # unrolled, it has an error that names the iteration's shapes
        states = len(self._rules)
        lasts = [value[-1] if varies else value for value, varies in made[:states]]
        return [*lasts, *(self._whole(*each) for each in made[states:])]

    def _run(self, rule: _Rule) -> None:
        """Compute a state before and after all steps."""
        first, kinds = rule.first, [kind for kind, _ in rule.steps]
        if not kinds:
            self._values[rule.before] = self._values[rule.after] = first, False
            return
        if kinds == ["Place"]:
            after: Value = ops.maximum(self._places[rule.steps[0][1]] - 1, 0)
        else:
            parts = [self._operand(number, first) for _, number in rule.steps]
            after = self._running(rule, kinds, parts)
        every = len(kinds) // len(set(kinds))  # of these values is a step's last
        if rule.before in self._used:
            self._values[rule.before] = applied(_joined, first, after)[:-1][::every], True
        self._values[rule.after] = after[every - 1 :: every], True

    def _running(self, rule: _Rule, kinds: Sequence[str], parts: Sequence[Value]) -> Value:
        """A state after each of its combinations, in all steps."""
        first, dtype = rule.first, dtype_of(rule.first)
        if len(set(kinds)) > 1:
            return applied(_linear, first, *parts)[1:]
        flat = applied(_interleaved, *parts) if len(parts) > 1 else parts[0]
        kind = kinds[0]
        if kind == "Given":
            return flat
        if kind in ("Cummax", "Cummin"):
            running = ops.cummax if kind == "Cummax" else ops.cummin
            values, places = running(_joined(tensor(first), tensor(flat)), 0)
            self._places[rule.before] = places[1:]
            return values[1:]
        whole = applied(lambda a, x: ops.cast(_RUNNING[kind](_joined(a, x)), dtype), first, flat)
        return whole[1:]

    def _operand(self, number: int, first: Value) -> Value:
        """What a state is combined with in all steps, in the state's shape."""
        value, varies = self._value(number)
        shape = tuple(first.shape)
        if dtype_of(value) != dtype_of(first) or value.ndim - varies > len(shape):
            raise Unfit
        try:
            common = broadcast_shapes("Scan", tuple(value.shape)[varies:], shape)
        except ShapeError:
            raise Unfit from None
        if not same(common, shape):
            raise Unfit
        return self._whole(value, varies, shape)

    def _whole(self, value: Value, varies: bool, shape: Any = None) -> Value:
        """A value with an axis of steps, and broadcast to the shape if it is given."""
        if varies and shape is None:
            return value
        target = (self._count, *(tuple(value.shape) if shape is None else shape))
        value = self._aligned(value, varies, len(target) - 1)
        if same(tuple(value.shape), target):
            return value
        if is_symbolic(target):
            value = tensor(value)
        return applied(lambda x: ops.broadcast_to(x, target), value)

    def _value(self, number: int) -> tuple[Value, bool]:
        for each in sorted(self._below([number], self._values)):  # inputs have lower numbers
            if each not in self._values:
                self._values[each] = self._computed(self._terms[each])
        return self._values[number]

    def _computed(self, term: _Term) -> tuple[Value, bool]:
        node = term.node
        if node is None:
            raise Unfit
        given = [(None, False) if i is None else self._values[i] for i in term.inputs]
        varies = any(each for _, each in given)
        if not varies:
            return run_node(node, [value for value, _ in given], {})[term.output], False
        if term.elementwise:
            rank = max(value.ndim - v for value, v in given if value is not None)
            inputs = [
                value if value is None else self._aligned(value, v, rank) for value, v in given
            ]
            return run_node(node, inputs, {})[0], True
        (data, _), (places, _) = given  # of a Gather
        if data is None or places is None or places.ndim != 1:
            raise Unfit
        axis = normal_axis(node, node.integer("axis", 0), data.ndim)
        return moved(run_node(node, [data, places], {})[0], axis, 0), True

    def _aligned(self, value: Value, varies: bool, rank: int) -> Value:
        """A value whose elements at a step broadcast from the right, as they do in the body."""
        missing = rank + varies - value.ndim
        if not varies or missing <= 0:
            return value
        return applied(lambda x: ops.unsqueeze(x, tuple(range(1, 1 + missing))), value)


def _is_all(value: Value, number: float) -> bool:
    """Whether a value is known and nothing but this number."""
    return isinstance(value, np.ndarray) and bool((value == number).all())


def moved(value: Value, source: int, to: int) -> Value:
    """A value with an axis moved."""
    if source == to:
        return value
    return np.moveaxis(value, source, to) if is_known(value) else ops.moveaxis(value, source, to)


def turned(value: Value) -> Value:
    """A value from the end of axis 0."""
    return value[::-1] if is_known(value) else ops.flip(value, 0)


def _joined(first: Tensor, others: Tensor) -> Tensor:
    return ops.concat([ops.unsqueeze(first, 0), others], 0)


def _interleaved(*parts: Tensor) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    count, *shape = parts[0].shape
    return ops.reshape(ops.stack(parts, 1), (count * len(parts), *shape))


def _linear(first: Tensor, *parts: Tensor) -> Tensor:
    """A state, first, and after each of its steps, a factor and a term each."""
    factors, terms = _interleaved(*parts[::2]), _interleaved(*parts[1::2])
    # Nothing comes before the first element, whose factor is never read.
    return ops.linear_scan(_joined(first, factors), _joined(first, terms), 0)
