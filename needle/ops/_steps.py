"""Recurrences over all steps at once: their shapes, and their form in TVM's tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backend_ndarray.dtypes import is_floating
from ..errors import ShapeError
from ..op_types import Expr, Extent, TeNamespace, TeTensor
from ..spec import Shape, Spec
from . import _te


def steps_of(name: str, projected: Spec, gates: int) -> tuple[int, int, int]:
    """(steps, batch, hidden units) of inputs that their weights multiplied already. ShapeError
    for another shape."""
    if projected.ndim != 3 or projected.shape[0] < 1 or projected.shape[2] % gates:
        raise ShapeError(
            f"{name}: projected of shape {projected.shape} is not (T, B, {gates} H) with at least "
            "one step"
        )
    steps, batch, width = projected.shape
    return steps, batch, width // gates


def check_steps(name: str, projected: Spec, expected: Mapping[str, tuple[Spec, Shape]]) -> None:
    """ShapeError or TypeError for an input that has not the shape that belongs to it, or another
    dtype than `projected`."""
    for what, (given, shape) in expected.items():
        if given.shape != shape:
            raise ShapeError(
                f"{name}: {what} of shape {given.shape}; projected {projected.shape} needs {shape}"
            )
        if given.dtype != projected.dtype or not is_floating(given.dtype):
            raise TypeError(
                f"{name}: projected is {projected.dtype} and {what} {given.dtype}; all must be of "
                "one floating dtype"
            )


def emit_steps(
    k: TeNamespace,
    name: str,
    mark: str,
    operands: Sequence[TeTensor],
    shapes: Sequence[Sequence[Extent]],
    write: Callable[[Any, Sequence[Any], Sequence[Any]], None],
) -> tuple[TeTensor, ...]:
    """The results, of these shapes, of the loops that `write(s, inputs, results)` writes with TVM's
    statement builder: a tensor expression cannot read its own result of the previous step. `mark`
    annotates their block, so that passes find it. The first of `shapes` is that of the states."""
    if any(map(_te.is_zero, shapes[0])):
        nothing = _te.full_like(k, operands[0], 0)
        return tuple(k.te.compute(shape, lambda *_: nothing) for shape in shapes)

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        return k.statements(lambda s: write(s, ins, [s.buffer_proxy(each) for each in outs]))

    dtypes = [_te.dtype_of(operands[0])] * len(shapes)
    made = k.te.extern(shapes, operands, body, dtype=dtypes, name=name, attrs={mark: True})
    return tuple(made) if len(shapes) > 1 else (made,)


def state_before(k: TeNamespace, states: Any, first: Any, t: Expr, b: Expr, unit: Expr) -> Expr:
    """A state (T, B, H) before step t: the step's before it, or the initial one, `first` (B, H)."""
    earlier = states[k.tirx.max(t - 1, 0), b, unit]
    return k.tirx.if_then_else(t == 0, first[b, unit], earlier)
