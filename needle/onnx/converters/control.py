"""Converters of control flow: If, Loop and Scan.

Loops whose states needle has an op for are that op (`scans.py`). Tracing unrolls all others, so
that their conditions and trip counts must be known then, and takes the branch of a known condition.
Subgraphs see outer values. Values that a body computes from known ones are known in the next
iteration, so that counters and shapes are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ..._state import state
from ...conversion import budget
from ...conversion.unrolling import Room, check_count, elements, stacked
from ...conversion.values import (
    Carried,
    Items,
    Missing,
    Value,
    dtype_of,
    known,
    known_integer,
    known_number,
    normal_axis,
    tensor,
)
from ...errors import ModelError
from ...extents import is_symbolic, same
from ...tensor import Tensor
from ..execute import Scope
from ..graph import Graph, Node
from ..registry import converter
from .scans import Plan, Unfit, moved, turned

_ADVICE_ON_STEPS = (
    ", or a body whose states are running sums, products, extremes or linear recurrences"
)
_MOST_STEPS = 1 << 24  # of a Loop that is computed at once


@converter("If", since=1, scoped=True, known=(0,))
def if_(node: Node, scope: Scope, condition: Value) -> tuple[Value, ...]:
    branches = [node.graph("then_branch"), node.graph("else_branch")]
    if isinstance(condition, Tensor) and state.trace is not None:
        return _chosen(node, condition, *(_whole(node, scope, branch) for branch in branches))
    return scope.run(branches[0 if known_number(node, condition, "the condition") else 1])


_UNKNOWN = "the condition depends on values that only a call knows"
_ADVICE = "if it comes from an input of the model, give that a value with fixed={...}"


def _whole(node: Node, scope: Scope, branch: Graph) -> tuple[Value, ...]:
    """The outputs of a branch that is not necessarily taken."""
    try:
        return scope.run(branch)
    except ModelError as error:
        raise node.unsupported(
            f"{_UNKNOWN}, and branch {branch.name!r} does not fit these inputs ({error}); {_ADVICE}"
        ) from error


def _chosen(
    node: Node, condition: Tensor, taken: Sequence[Any], other: Sequence[Any]
) -> tuple[Any, ...]:
    """The outputs of one branch, chosen by a condition that only a call knows: both are computed,
    which needs outputs alike."""
    if condition.size != 1:
        raise node.invalid(f"the condition has the shape {condition.shape}, not one element")
    scalar = ops.reshape(condition, ())
    chosen: list[Any] = []
    for i, (a, b) in enumerate(zip(taken, other, strict=True)):
        if _lengths(a) != _lengths(b):
            raise node.unsupported(
                f"{_UNKNOWN}, and output {i} is {_described(a)} in one branch and {_described(b)} "
                f"in the other; {_ADVICE}"
            )
        if isinstance(a, Items) and isinstance(b, Items):
            chosen.append(Items(_chosen(node, condition, a.values, b.values)))
            continue
        if isinstance(a, Missing):
            chosen.append(a)
            continue
        first, second = tensor(a), tensor(b)
        if not same(first.shape, second.shape) or first.dtype != second.dtype:
            raise node.unsupported(
                f"{_UNKNOWN}, and output {i} is {first.dtype} {first.shape} in one branch and "
                f"{second.dtype} {second.shape} in the other; {_ADVICE}"
            )
        chosen.append(ops.where(scalar, first, second))
    return tuple(chosen)


def _lengths(value: Carried) -> Any:
    """How many values a sequence has, none for a missing optional, and -1 for a tensor."""
    if isinstance(value, Items):
        return len(value.values)
    return None if isinstance(value, Missing) else -1


def _described(value: Carried) -> str:
    length = _lengths(value)
    if length is None:
        return "an optional without a value"
    return "a tensor" if length < 0 else f"a sequence of {length}"


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
    most = None if trips is None else known_integer(node, trips, "the trip count")
    if most is not None and is_symbolic((most,)):
        raise node.unsupported(f"the trip count {most}, which a Dim leaves open")
    again = condition is None or bool(known_number(node, condition, "the condition"))
    tensors = [value for value in states if not isinstance(value, (Items, Missing))]
    if again and most is not None and len(tensors) == count:
        made = _counted(body, scope, tensors, most, condition is not None)
        if made is not None:
            return tuple(made)
    collected: list[list[Value]] = [[] for _ in body.outputs[count + 1 :]]
    done = 0
    room = Room(node, _ADVICE_ON_STEPS)
    while again and (most is None or done < most):
        check_count(node, done + 1 if condition is not None or most is None else most)
        given = np.array(again if condition is not None else True)
        after, *made = scope.run(body, np.array(done, np.int64), given, *states)
        states = tuple(made[:count])
        for values, value in zip(collected, made[count:], strict=True):
            values.append(value)
            budget.bounded((len(values), *value.shape))
        done += 1
        room.check(done, done if condition is not None or most is None else most)
        if condition is not None:
            what = f"the condition after iteration {done}"
            again = bool(known_number(node, after, what))
    return *states, *[
        _collected(node, body, count + 1 + i, values) for i, values in enumerate(collected)
    ]


def _counted(
    body: Graph, scope: Scope, states: Sequence[Value], trips: int, conditional: bool
) -> list[Value] | None:
    """The last states and whole outputs of a Loop that ends by its count alone and that needle has
    an op for, else None."""
    number, again, *names = [each.name for each in body.inputs]
    outer = {**scope.values, again: np.array(True)}
    try:
        if not 1 <= trips <= _MOST_STEPS:
            raise Unfit
        plan = Plan(
            body,
            dict(zip(names, states, strict=True)),
            {number: "int64"},
            outer,
            [each.name for each in body.outputs[1:]],
        )
        if conditional and not plan.terms.is_true(body.outputs[0].name):
            raise Unfit
        return plan.run([np.arange(trips)], trips)
    except Unfit:
        return None


def _collected(node: Node, body: Graph, output: int, values: list[Value]) -> Value:
    """What a loop makes of an output of all its iterations."""
    if values:
        return stacked(values, 0)
    info = body.outputs[output]
    if info.dtype is None or info.shape is None:
        raise node.unsupported(
            f"no iteration, and the shape of the body's output {info.name!r} is not declared"
        )
    return np.zeros((0, *[n if isinstance(n, int) else 0 for n in info.shape]), info.dtype)


@converter("Scan", since=9, scoped=True)
def scan(node: Node, scope: Scope, *inputs: Value) -> tuple[Value, ...]:
    body, count = node.graph("body"), node.integer("num_scan_inputs")
    states, sources = _divided(node, body, inputs, count)
    axes = node.integers("scan_input_axes", (0,) * count)
    backward = node.integers("scan_input_directions", (0,) * count)
    _check_lengths(node, count, scan_input_axes=axes, scan_input_directions=backward)
    axes = tuple(normal_axis(node, a, x.ndim) for a, x in zip(axes, sources, strict=True))
    kept = len(body.outputs) - len(states)
    into = node.integers("scan_output_axes", (0,) * kept)
    reverse = node.integers("scan_output_directions", (0,) * kept)
    _check_lengths(node, kept, scan_output_axes=into, scan_output_directions=reverse)
    made = _at_once(node, scope, states, sources, axes, backward)
    if made is None:
        sequences = [
            _elements(node, source, axis, bool(back))
            for source, axis, back in zip(sources, axes, backward, strict=True)
        ]
        states, lists = _scanned(node, scope, body, states, sequences)
        made = [*states, *(stacked(values, 0) for values in lists)]
    outputs = []
    for value, axis, back in zip(made[len(states) :], into, reverse, strict=True):
        to = normal_axis(node, axis, value.ndim)
        outputs.append(moved(turned(value) if back else value, 0, to))
    return *made[: len(states)], *outputs


def _at_once(
    node: Node,
    scope: Scope,
    states: Sequence[Value],
    sources: Sequence[Value],
    axes: Sequence[int],
    backward: Sequence[int],
) -> list[Value] | None:
    """The last states and whole outputs of a Scan that needle has an op for, else None."""
    lengths = [source.shape[axis] for source, axis in zip(sources, axes, strict=True)]
    if not all(same(n, lengths[0]) for n in lengths) or same(lengths[0], 0):
        return None
    body = node.graph("body")
    names = [each.name for each in body.inputs]
    try:
        plan = Plan(
            body,
            dict(zip(names, states, strict=False)),
            dict(zip(names[len(states) :], map(dtype_of, sources), strict=True)),
            scope.values,
            [each.name for each in body.outputs],
        )
        sequences = [moved(x, axis, 0) for x, axis in zip(sources, axes, strict=True)]
        turns = zip(sequences, backward, strict=True)
        return plan.run([turned(x) if back else x for x, back in turns], lengths[0])
    except Unfit:
        return None


def _divided(
    node: Node, body: Graph, inputs: Sequence[Value], count: int
) -> tuple[list[Value], list[Value]]:
    """The first states and the sequences that a Scan is given."""
    first = len(inputs) - count
    if count < 1 or first < 0 or len(body.inputs) != len(inputs) or len(body.outputs) < first:
        raise node.invalid(
            f"num_scan_inputs is {count} of {len(inputs)} inputs, and its body has "
            f"{len(body.inputs)} inputs and {len(body.outputs)} outputs"
        )
    return list(inputs[:first]), list(inputs[first:])


def _check_lengths(node: Node, count: int, **attributes: tuple[int, ...]) -> None:
    for name, values in attributes.items():
        if len(values) != count:
            raise node.invalid(f"{name} has {len(values)} numbers, not {count}")


def _elements(node: Node, source: Value, axis: int, backward: bool) -> list[Value]:
    """The elements of a sequence along an axis."""
    axis = normal_axis(node, axis, source.ndim)
    steps = source.shape[axis]
    if is_symbolic((steps,)):
        raise node.unsupported(
            f"{steps} iterations, which a Dim leaves open: Scan is unrolled; give the axis a number"
        )
    found = elements(node, source, axis, steps)
    return found[::-1] if backward else found


def _scanned(
    node: Node,
    scope: Scope,
    body: Graph,
    states: Sequence[Value],
    sequences: Sequence[Sequence[Value]],
) -> tuple[list[Value], list[list[Value]]]:
    """(last states, the other outputs of all iterations) of a scan over lists of elements."""
    lengths = {len(sequence) for sequence in sequences}
    if len(lengths) != 1:
        raise node.invalid(f"its sequences have different lengths: {sorted(lengths)}")
    now, count = list(states), len(states)
    made: list[list[Value]] = [[] for _ in body.outputs[count:]]
    room, (steps,) = Room(node, _ADVICE_ON_STEPS), lengths
    for done, parts in enumerate(zip(*sequences, strict=True), 1):
        outputs = scope.run(body, *now, *parts)
        room.check(done, steps)
        now = list(outputs[:count])
        for values, value in zip(made, outputs[count:], strict=True):
            values.append(value)
            budget.bounded((len(values), *value.shape))
    return now, made


@converter("Scan", since=8, scoped=True)
def scan_batches(
    node: Node, scope: Scope, lengths: Value | None, *inputs: Value
) -> tuple[Value, ...]:
    """The first form: batches on axis 0, each with its own states, and steps on axis 1."""
    body, count = node.graph("body"), node.integer("num_scan_inputs")
    states, sources = _divided(node, body, inputs, count)
    backward = node.integers("directions", (0,) * count)
    _check_lengths(node, count, directions=backward)
    batch, steps = sources[0].shape[:2]
    if is_symbolic((batch,)):
        raise node.unsupported(f"{batch} batches, which a Dim leaves open: Scan is unrolled")
    taken = [steps] * batch
    if lengths is not None:
        taken = [int(n) for n in known(node, lengths, "the sequences' lengths").reshape(-1)]
    ends: list[list[Value]] = []
    outputs: list[list[Value]] = []
    for i in range(batch):
        sequences = [
            _elements(node, _part(source, i, taken[i]), 0, bool(back))
            for source, back in zip(sources, backward, strict=True)
        ]
        now, made = _scanned(node, scope, body, [_part(s, i) for s in states], sequences)
        ends.append(now)
        outputs.append([_padded(stacked(values, 0), steps) for values in made])
    columns = [*zip(*ends, strict=True), *zip(*outputs, strict=True)]
    return tuple(stacked(column, 0) for column in columns)


def _part(value: Value, batch: int, steps: int | None = None) -> Any:
    """A batch of a value, and its first steps."""
    part = value[batch]
    return part if steps is None else part[:steps]


def _padded(value: Value, steps: int) -> Tensor:
    """A sequence with zeros behind its end."""
    x = tensor(value)
    return ops.pad(x, [(0, steps - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])
