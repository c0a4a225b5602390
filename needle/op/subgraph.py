"""`Body` is a pure function of tensors, stored as data. Ops such as `Scan` hold bodies as
attributes.

A body numbers its values: first its inputs, then the result of each step. It corresponds to a jaxpr
in JAX (https://docs.jax.dev/en/latest/jaxpr.html), without nested scopes: every value that the
function read from its surroundings is an input.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ..autograd.node import OpRules
from ..autograd.shapes import Spec
from ..backend_ndarray import NDArray, cpu_numpy
from ..backend_ndarray.dtypes import is_floating
from ..sizes.dims import Expression
from ..sizes.extents import replaced, same
from .base import Op

Run = Callable[[Op, tuple[Any, ...]], Any]  # computes an op's result from values


def reference_of(op: OpRules, given: tuple[Any, ...]) -> Any:
    """Return the result of an op's NumPy twin. An op without a twin runs `compute` on the NumPy
    device."""
    if op.reference is not None:
        return op.reference(*given)
    made = op.compute(*_mapped(lambda x: NDArray(x, device=cpu_numpy()), given))
    return _mapped(lambda x: x.numpy(), made)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_mapped(change, part) for part in value])
    return change(value)


R = TypeVar("R")


class Step(NamedTuple):
    """One application of an op to values, which `inputs` names by their numbers."""

    op: Op
    inputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """A function. Its values are numbered: first the `inputs`, then the results of `steps`.
    `outputs` has the numbers of the results."""

    inputs: tuple[Spec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return a short text that is the same for equal bodies and differs for unequal ones."""
        text: str | None = self.__dict__.get("_text")
        if text is None:
            specs = [(spec.shape, spec.dtype) for spec in self.inputs]
            digest = hashlib.sha256(repr((specs, self.steps, self.outputs)).encode()).hexdigest()
            text = f"Body({len(self.inputs)} inputs, {len(self.steps)} steps, {digest[:16]})"
            self.__dict__["_text"] = text
        return text

    @property
    def is_plain(self) -> bool:
        """Whether bodies with equal texts are equal. This does not hold with dims, which have
        names, or with ops from outside needle, whose attributes may have any text."""
        known: bool | None = self.__dict__.get("_is_plain")
        if known is None:
            sizes: list[Expression] = []
            replaced((self.inputs, tuple([step.op for step in self.steps])), sizes.append)
            known = not sizes and all(map(_is_plain, [step.op for step in self.steps]))
            self.__dict__["_is_plain"] = known
        return known

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.inputs) + len(self.steps)

    def numbered(self) -> Iterable[tuple[int, Step]]:
        """Return the steps with the numbers of their results."""
        return enumerate(self.steps, len(self.inputs))

    def specs(self, given: Sequence[Spec] | None = None) -> list[Any]:
        """Return the Spec of each value, or a tuple of Specs for a tuple, for inputs with the Specs
        `given`. Raises the errors of `infer`."""
        found: list[Any] = list(self.inputs if given is None else given)
        for step in self.steps:
            found.append(step.op.infer(*[found[i] for i in step.inputs]))
        return found

    def output_specs(self, given: Sequence[Spec] | None = None) -> list[Spec]:
        found = self.specs(given)
        return [found[number] for number in self.outputs]

    @property
    def has_gradient(self) -> bool:
        """Whether all steps have a gradient, including the steps of nested bodies."""
        return all(
            step.op.has_gradient
            and all(x.has_gradient for x in vars(step.op).values() if isinstance(x, Body))
            for step in self.steps
        )

    def reduction_length(self, given: Sequence[Spec]) -> int:
        """Return the number of terms in the sums of all steps together, at least 1."""
        found = self.specs(given)
        terms = [s.op.reduction_length(*[found[i] for i in s.inputs]) for s in self.steps]
        return max(1, sum(terms))

    def evaluated(self, inputs: Sequence[Any], run: Run) -> Any:
        """Return the outputs, where run(op, inputs) computes the result of each step. A value is
        dropped after the last step that reads it."""
        values: list[Any] = list(inputs)
        for (op, given), dead in self._program():
            values.append(run(op, tuple([values[i] for i in given])))
            for number in dead:
                values[number] = None
        return [values[number] for number in self.outputs]

    def _program(self) -> list[tuple[Step, list[int]]]:
        """Return each step with the values that no later step or output reads."""
        found: list[tuple[Step, list[int]]] | None = self.__dict__.get("_steps")
        if found is None:
            found = list(zip(self.steps, self._last_reads(), strict=True))
            self.__dict__["_steps"] = found
        return found

    def compute(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the outputs as NDArrays, computed from NDArrays."""
        found: list[Any] = self.evaluated(inputs, lambda op, given: op.compute(*given))
        return found

    def _last_reads(self) -> list[list[int]]:
        """Return, for each step, the values that no later step reads, except the outputs."""
        seen = set(self.outputs)
        found = []
        for step in reversed(self.steps):
            dead = set(step.inputs) - seen
            seen |= dead
            found.append(sorted(dead))
        return found[::-1]

    def needed(self, outputs: Iterable[int]) -> set[int]:
        """Return the values that `outputs` depend on, including `outputs`."""
        found = set(outputs)
        for number, step in reversed(list(self.numbered())):
            if number in found:
                found.update(step.inputs)
        return found

    def reached(self, sources: Iterable[int]) -> set[int]:
        """Return the values that depend on `sources`, including `sources`."""
        found = set(sources)
        for number, step in self.numbered():
            if not found.isdisjoint(step.inputs):
                found.add(number)
        return found

    def cut(self, inputs: Sequence[int], outputs: Sequence[int]) -> Body:
        """Return the body that computes the values `outputs` from the values `inputs`. Everything
        that the outputs depend on must be among the inputs or computed from them."""
        specs = self.specs()
        positions = {number: at for at, number in enumerate(inputs)}
        needed, pending = set(outputs), list(reversed(list(self.numbered())))
        kept = []
        for number, step in pending:
            if number in needed and number not in positions:
                needed.update(step.inputs)
                kept.append((number, step))
        steps: list[tuple[Op, tuple[int, ...]]] = []
        for number, step in reversed(kept):
            positions[number] = len(inputs) + len(steps)
            steps.append((step.op, step.inputs))
        renumbered = tuple([Step(op, tuple([positions[i] for i in given])) for op, given in steps])
        return Body(
            tuple([specs[i] for i in inputs]), renumbered, tuple([positions[i] for i in outputs])
        )

    def with_outputs(self, outputs: Sequence[int]) -> Body:
        return dataclasses.replace(self, outputs=tuple(outputs))


def _is_plain(op: Op) -> bool:
    if not type(op).__module__.startswith("needle."):
        return False
    fields = [getattr(op, each.name) for each in dataclasses.fields(op)]  # type: ignore[arg-type]
    return all(each.is_plain for each in fields if isinstance(each, Body))


def remembered(function: Callable[..., R]) -> Callable[..., R]:
    """Cache the results of a function whose first argument is a body or an op with bodies, because
    eager code runs the same loops again and again. Its other arguments must be hashable."""
    kept = functools.lru_cache(maxsize=256)(function)

    @functools.wraps(function)
    def called(of: Any, *others: Any) -> R:
        return (kept if of.is_plain else function)(of, *others)

    return called


def body_of(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    order: Sequence[Any],
    alias: Mapping[Any, Any],
    detach: Op | None = None,
) -> Body:
    """Return the body of traced nodes. `order` has the nodes between inputs and outputs in the
    order of their computation; a node in `alias` stands for the node that it maps to. `detach` is
    applied to results computed without a gradient from values that have one."""
    positions = {node: number for number, node in enumerate(inputs)}
    steps: list[Step] = []
    reached = {node for node in inputs if node.requires_grad}  # nodes that gradients of steps reach

    def number(node: Any) -> int:
        return positions[alias.get(node, node)]

    def add(op: Op, given: tuple[int, ...]) -> int:
        steps.append(Step(op, given))
        return len(inputs) + len(steps) - 1

    for node in order:
        if node in positions or node in alias:
            continue
        positions[node] = add(node.op, tuple([number(each) for each in node.input_nodes]))
        if reached.isdisjoint(node.input_nodes) or node.op == detach:
            continue
        if any(is_floating(spec.dtype) for spec in node.specs):
            if node.requires_grad or detach is None or type(node.spec) is tuple:
                reached.add(node)
            else:
                positions[node] = add(detach, (positions[node],))
    specs = tuple([Spec(node.spec.shape, node.spec.dtype, None) for node in inputs])
    return Body(specs, tuple(steps), tuple([number(node) for node in outputs]))


def same_spec(a: Spec, b: Spec) -> bool:
    """Return whether shape and dtype are equal."""
    return a.dtype == b.dtype and same(a.shape, b.shape)


def without(numbers: Iterable[int], others: Collection[int]) -> list[int]:
    """Return the `numbers` that are not among `others`, in order."""
    return [number for number in numbers if number not in others]
