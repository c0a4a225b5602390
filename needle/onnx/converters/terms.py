"""The body of a loop as terms, which are read once and computed for all steps at once.

A term is a value of the body. Equal operators of equal values are one term, so that states and
forms are found however a file names its values. What is computed of sequences, whose steps are on
axis 0, must be elementwise, a reduction along known axes, or a Gather from a value that is the same
in all steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ... import ops
from ...conversion.values import Value, known_integers, normal_axes, normal_axis, tensor
from ...dims import bounds_of
from ...extents import is_symbolic, same
from ..emit import Value as Symbol
from ..emit import Writer
from ..execute import applied, run_node
from ..graph import Graph, Node
from .elementwise import ELEMENTWISE
from .reduce import REDUCTIONS

_MOST_NODES = 1000  # of a body; a longer one is not looked at
_MOST_ELEMENTS = 1 << 27  # that a value is repeated to, for all steps
_OPSET = 20  # of the exporter's forms, which are the same in all
_DEFAULTS = {("saturate", 1), ("round_mode", "up"), ("detect_negative", 1), ("detect_positive", 1)}


class Unfit(Exception):
    """The loop must be unrolled."""


@dataclasses.dataclass(frozen=True)
class Term:
    """A value of a body. `inputs` are the numbers of others, and it is output number `output` of
    `node`, unless it is given or belongs to a form of the exporter's."""

    op: str
    inputs: tuple[int | None, ...] = ()
    node: Node | None = None
    output: int = 0
    elementwise: bool = False


class Terms:
    """The terms of a body by number; those that a term is computed of have lower ones."""

    def __init__(self, body: Graph, names: Iterable[str], outer: Mapping[str, Value]) -> None:
        """`names` are the body's inputs that differ between steps, and get the first numbers;
        `outer` are other values that it sees. Raises Unfit."""
        if len(body.nodes) > _MOST_NODES:
            raise Unfit
        self.terms: list[Term] = []
        self.free: set[int] = set()  # those that can be computed
        self.varying: set[int] = set()  # those of them that differ between steps
        self._numbers: dict[Any, int] = {}
        self._values: dict[int, tuple[Value, bool]] = {}  # and whether they have an axis of steps
        self._outer = {**outer, **body.initialisers}
        self._names = {name: self._number(("given", name), Term("given")) for name in names}
        for node in body.nodes:
            self._read(node)

    def _number(self, key: Any, term: Term) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.terms)
            self.terms.append(term)
        return self._numbers[key]

    def named(self, name: str) -> int:
        """The number of a value of the body."""
        if name not in self._names:
            if name not in self._outer:
                raise Unfit
            self._names[name] = self.constant(self._outer[name], name)
        return self._names[name]

    def constant(self, value: Value, name: str = "") -> int:
        """The number of a value that is the same in all steps: a known one, or that of a name."""
        key: Any = ("outer", name)
        if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype != object:
            key = ("number", value.dtype.name, value.tobytes())
        number = self._number(key, Term("constant"))
        self._values[number] = value, False
        self.free.add(number)
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
        return self._number((op, numbers, *kept), Term(op, numbers, node, 0, True))

    def _read(self, node: Node) -> None:
        if any(isinstance(value, Graph) for value in node.attributes.values()):
            raise Unfit
        inputs = [self.named(name) if name else None for name in node.inputs]
        standard = node.domain == "" and node.opset >= 7  # operands broadcast as NumPy's
        if standard and node.op_type == "Identity":
            self._names[node.outputs[0]] = self.named(node.inputs[0])
        elif standard and node.op_type == "Constant":
            name = node.outputs[0]
            self._names[name] = self.constant(run_node(node, [], {})[0], name)
        elif standard and node.op_type in ELEMENTWISE:
            made = self._elementwise(node.op_type, inputs, node.attributes, node)
            self._names[node.outputs[0]] = made
        else:
            for i, name in enumerate(node.outputs):
                term = Term(node.op_type, tuple(inputs), node, i)
                self._names[name] = self._number((id(node), i), term)

    def form(self, write: Callable[..., Sequence[Symbol]], **given: tuple[int, str]) -> list[int]:
        """The numbers of what the exporter writes for values of these numbers and dtypes."""
        w, names = Writer(_OPSET), {name: number for name, (number, _) in given.items()}
        made = write(w, **{name: Symbol(name, dtype, ()) for name, (_, dtype) in given.items()})
        arrays = w.arrays
        for each in w.nodes:
            inputs = [names[n] if n in names else self.constant(arrays[n], n) for n in each.inputs]
            names[each.outputs[0]] = self._elementwise(each.op_type, inputs, each.attributes)
        return [names[each.name] for each in made]

    def negative(self, number: int, like: Node) -> int:
        """The number of a term's negative, at the place of a node."""
        node = dataclasses.replace(like, op_type="Neg", attributes={})
        made = self._elementwise("Neg", [number], {}, node)
        self._note(made, {number})
        return made

    def _note(self, number: int, inputs: set[int]) -> None:
        self.free.add(number)
        if inputs & self.varying:
            self.varying.add(number)

    def spread(self) -> None:
        """Note which terms can be computed by now."""
        for number, term in enumerate(self.terms):
            inputs = {i for i in term.inputs if i is not None}
            if number in self.free or term.node is None or not inputs <= self.free:
                continue
            gathers = term.op == "Gather" and term.inputs[0] not in self.varying
            reduces = term.op in REDUCTIONS and not self.varying.intersection(term.inputs[1:])
            if term.elementwise or gathers or reduces or not inputs & self.varying:
                self._note(number, inputs)

    def below(self, numbers: Iterable[int], known: Collection[int]) -> set[int]:
        """These terms and all that they are computed of, down to those that are known."""
        found: set[int] = set()
        left = list(numbers)
        while left:
            number = left.pop()
            if number not in found:
                found.add(number)
                if number not in known:
                    left += [i for i in self.terms[number].inputs if i is not None]
        return found

    def is_true(self, name: str) -> bool:
        """Whether a value of the body is True in all steps, and known to be."""
        value, _ = self._values.get(self.named(name), (None, False))
        return isinstance(value, np.ndarray) and value.dtype == bool and bool(value.all())

    # Values

    def give(self, number: int, value: Value, varies: bool) -> None:
        """Give a term its value; if it varies, with an axis of steps in front."""
        self._values[number] = value, varies

    def value(self, number: int) -> tuple[Value, bool]:
        """The value of a term, and whether it has an axis of steps."""
        for each in sorted(self.below([number], self._values)):
            if each not in self._values:
                self._values[each] = self._computed(self.terms[each])
        return self._values[number]

    def _computed(self, term: Term) -> tuple[Value, bool]:
        node = term.node
        if node is None:
            raise Unfit
        given = [(None, False) if i is None else self._values[i] for i in term.inputs]
        if not any(varies for _, varies in given):
            return run_node(node, [value for value, _ in given], {})[term.output], False
        if term.elementwise:
            rank = max(value.ndim - varies for value, varies in given if value is not None)
            inputs = [x if x is None else _aligned(x, varies, rank) for x, varies in given]
            return run_node(node, inputs, {})[0], True
        if term.op in REDUCTIONS:
            return _reduced(node, *(x for x, _ in given)), True
        (data, _), (places, _) = given  # of a Gather
        if data is None or places is None or places.ndim != 1:
            raise Unfit
        axis = normal_axis(node, node.integer("axis", 0), data.ndim)
        return moved(run_node(node, [data, places], {})[0], axis, 0), True


def _reduced(node: Node, data: Value | None, axes: Value | None = None) -> Value:
    """A reduction of a value with an axis of steps in front, along the axes of a step."""
    if data is None:
        raise Unfit
    given = node.attributes.get("axes", ())
    given = known_integers(node, axes, "the axes") if axes is not None else given
    if not given and node.flag("noop_with_empty_axes", False):
        raise Unfit
    rank = data.ndim - 1
    over = normal_axes(node, given, rank) if given else range(rank)
    if not over:  # no axes would be all of them
        raise Unfit
    attributes = {**node.attributes, "axes": tuple(axis + 1 for axis in over)}
    alike = dataclasses.replace(node, inputs=node.inputs[:1], attributes=attributes)
    return run_node(alike, [data], {})[0]


def in_all_steps(value: Value, varies: bool, shape: Sequence[Any], count: Any) -> Value:
    """A value with an axis of so many steps in front, broadcast to the shape at each of them."""
    target = (count, *shape)
    value = _aligned(value, varies, len(shape))
    if same(tuple(value.shape), target):
        return value
    if prod(bounds_of(n)[1] or _MOST_ELEMENTS for n in target) > _MOST_ELEMENTS:
        raise Unfit
    if is_symbolic(target):
        value = tensor(value)
    return applied(lambda x: ops.broadcast_to(x, target), value)


def _aligned(value: Value, varies: bool, rank: int) -> Value:
    """A value whose elements at a step broadcast from the right, as they do in the body."""
    missing = rank + varies - value.ndim
    if not varies or missing <= 0:
        return value
    return applied(lambda x: ops.unsqueeze(x, tuple(range(1, 1 + missing))), value)


def moved(value: Value, source: int, to: int) -> Value:
    """A value with an axis moved."""
    if source == to:
        return value
    if isinstance(value, np.ndarray):
        return np.moveaxis(value, source, to)
    return ops.moveaxis(value, source, to)


def turned(value: Value) -> Value:
    """A value from the end of axis 0."""
    return value[::-1] if isinstance(value, np.ndarray) else ops.flip(value, 0)
