"""The converter of Scan: a `needle.scan` whose cell is the body, or an unrolled loop if the body
cannot be a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion import budget
from ...conversion.unrolling import Room, elements, stacked
from ...conversion.values import (
    Carried,
    Items,
    Missing,
    Value,
    holds_dims,
    known,
    normal_axis,
    tensor,
)
from ...errors import DimError, ModelError, ShapeError, TraceError
from ...loops import scan as needle_scan
from ...sizes.extents import is_symbolic, same
from ..execute import Scope, untraced
from ..graph import Graph, Node
from ..registry import converter

# Errors from tracing a body that cannot be a cell, because its shapes change from step to step, it
# carries a sequence, or it must know a value that is known only within a step.
NO_CELL = (DimError, ModelError, ShapeError, TraceError, TypeError)

# (states, slices) -> (next states, outputs) of one step.
Step = Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


def scanned(
    step: Step, states: Sequence[Value], xs: Sequence[Value], length: Any, reverse: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Run a loop over sequences `xs` with the steps on axis 0. Return the last states and the
    stacked outputs. `step`, the initial `states`, `length` and `reverse` are as in `needle.scan`.
    Raises one of the errors in NO_CELL for a step that cannot be a cell."""

    def cell(now: Any, slices: Any) -> Any:
        after, outputs = step(now, slices or ())
        return [single(x) for x in after], [single(x) for x in outputs]

    lasts, stacks = needle_scan(cell, [*map(tensor, states)], [*map(tensor, xs)], length, reverse)
    return lasts, stacks


def single(value: Carried) -> Tensor:
    """Return a `value` as a Tensor. Raises TypeError for a sequence or an optional."""
    if isinstance(value, (Items, Missing)):
        raise TypeError("its body makes a sequence or an optional")
    return tensor(value)


def unknown_names(scope: Scope, body: Graph) -> set[str]:
    """Return the names of the unknown outer values in `scope` that a `body` reads."""
    values = scope.values
    return {name for name in body.free_names() if not isinstance(values.get(name), np.ndarray)}


def keep(kept: Sequence[list[Value]], made: Iterable[Value]) -> None:
    """Append the values that an iteration `made` to the lists `kept`. Raises UnsupportedError if
    they exceed the budget."""
    for values, value in zip(kept, made, strict=True):
        values.append(value)
        budget.bounded((len(values), *value.shape))


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
    sequences = [_moved(x, axis, 0) for x, axis in zip(sources, axes, strict=True)]
    made = _scan(node, scope, states, sequences, [bool(b) for b in backward])
    outputs = []
    for value, axis, back in zip(made[len(states) :], into, reverse, strict=True):
        to = normal_axis(node, axis, value.ndim)
        outputs.append(_moved(_turned(value, bool(back)), 0, to))
    return *made[: len(states)], *outputs


def _scan(
    node: Node,
    scope: Scope,
    states: Sequence[Value],
    sequences: Sequence[Value],
    backward: Sequence[bool],
) -> list[Value]:
    """Run a Scan over axis 0. Return the last states, then the stacked outputs of all steps."""
    body, count = node.graph("body"), len(states)
    lengths = [x.shape[0] for x in sequences]
    if not all(same(n, lengths[0]) for n in lengths):
        raise node.invalid(f"its sequences have different lengths: {lengths}")

    def step(now: Sequence[Any], slices: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        made = scope.run(body, *now, *slices)
        return made[:count], made[count:]

    given = [*states, *sequences]
    known = all(isinstance(x, np.ndarray) and not holds_dims(x) for x in given)
    try:
        if known and not unknown_names(scope, body):
            with untraced():
                return [x.numpy() for x in _whole(step, states, sequences, backward)]
        return [*_whole(step, states, sequences, backward)]
    except NO_CELL as error:
        if is_symbolic(lengths):
            raise node.unsupported(
                f"{lengths[0]} iterations, which a Dim leaves open, for a body that must be "
                f"unrolled ({error}); give the axis a number"
            ) from error
        return _unrolled(node, step, states, sequences, backward)


def _whole(
    step: Step, states: Sequence[Value], sequences: Sequence[Value], backward: Sequence[bool]
) -> list[Tensor]:
    """Compute the results of `_scan` with a `needle.scan`."""
    back = all(backward)  # if so, the scan runs backward, and no sequence is reversed
    xs = [_turned(x, each is not back) for x, each in zip(sequences, backward, strict=True)]
    lasts, stacks = scanned(step, states, xs, xs[0].shape[0], back)
    return [*lasts, *[_turned(y, back) for y in stacks]]


def _unrolled(
    node: Node,
    step: Step,
    states: Sequence[Value],
    sequences: Sequence[Value],
    backward: Sequence[bool],
) -> list[Value]:
    steps = sequences[0].shape[0]
    turned = [_turned(x, back) for x, back in zip(sequences, backward, strict=True)]
    parts = [elements(node, x, 0, steps) for x in turned]
    kept: list[list[Value]] = []
    room = Room(node)
    for done, slices in enumerate(zip(*parts, strict=True), 1):
        states, made = step(states, slices)
        room.check(done, steps)
        kept = kept or [[] for _ in made]
        keep(kept, made)
    return [*states, *[stacked(values, 0) for values in kept]]


def _divided(
    node: Node, body: Graph, inputs: Sequence[Value], count: int
) -> tuple[list[Value], list[Value]]:
    """Return the initial states and the sequences among the inputs of a Scan."""
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


def _moved(value: Value, source: int, to: int) -> Value:
    """Return a value with an axis moved."""
    if source == to:
        return value
    if isinstance(value, np.ndarray):
        return np.moveaxis(value, source, to)
    return ops.moveaxis(value, source, to)


def _turned(value: Any, back: bool) -> Any:
    """Return a value, reversed along axis 0 if `back`."""
    if not back:
        return value
    return value[::-1] if isinstance(value, np.ndarray) else ops.flip(value, 0)


@converter("Scan", since=8, scoped=True)
def scan_batches(
    node: Node, scope: Scope, lengths: Value | None, *inputs: Value
) -> tuple[Value, ...]:
    """Convert the opset 8 form of Scan. Axis 0 has the batch elements, each with its own states,
    and axis 1 the steps."""
    body, count = node.graph("body"), node.integer("num_scan_inputs")
    states, sources = _divided(node, body, inputs, count)
    backward = node.integers("directions", (0,) * count)
    _check_lengths(node, count, directions=backward)
    batch, steps = sources[0].shape[:2]
    if is_symbolic((batch,)):
        raise node.unsupported(f"{batch} batches, which a Dim leaves open; give the axis a number")
    taken = [steps] * batch
    if lengths is not None:
        taken = [int(n) for n in known(node, lengths, "the sequences' lengths").reshape(-1)]
    columns: list[list[Value]] = []
    for i in range(batch):
        parts = [source[i] if lengths is None else source[i][: taken[i]] for source in sources]
        made = _scan(node, scope, [s[i] for s in states], parts, [bool(b) for b in backward])
        lasts, stacks = made[: len(states)], made[len(states) :]
        row = lasts + [y if lengths is None else _padded(y, steps) for y in stacks]
        columns = columns or [[] for _ in row]
        keep(columns, row)
    return tuple(stacked(column, 0) for column in columns)


def _padded(value: Value, steps: int) -> Tensor:
    """Pad a sequence with zeros after its end."""
    x = tensor(value)
    return ops.pad(x, [(0, steps - x.shape[0]), *[(0, 0)] * (x.ndim - 1)])
