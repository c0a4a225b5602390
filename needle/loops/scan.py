"""`scan` is a loop over time whose cell is traced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_int
from typing import Any

from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor
from ..common import tree
from ..errors import ShapeError
from ..op.subgraph import Body, same_spec
from ..recurrence.execution import run
from ..sizes.dims import Expression
from ..sizes.extents import same
from .tracing import flattened, rebuilt, traced

Cell = Callable[[Any, Any], tuple[Any, Any]]


def scan(
    cell: Cell, state: Any, xs: Any = None, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run a `cell` once for each element of `xs` along axis 0. Return the last state and the
    outputs of all steps, stacked along axis 0, like `jax.lax.scan`.

    `cell(state, x)` returns (the next state, y). States, `xs` and y are tensors, or lists, tuples
    and dicts of tensors; numbers become tensors, and y may be None. The next state must have the
    structure, shapes and dtypes of the initial `state`. Without `xs`, the loop has `length` steps
    and x is None. With `reverse`, the loop runs from the last element to the first; each y is
    stacked at the position of its element.

    The cell is traced once for all steps, so it must not read values or draw random numbers. Outer
    tensors that the cell reads are inputs of the loop and have gradients of any order. Products
    that do not depend on the state are computed for all steps at once. When compiled, the loop is
    one kernel whose code does not grow with the number of steps. Axis 0 of `xs` may be a `Dim`.

    Raises TypeError if the next state has another structure or dtype, or if neither `xs` nor
    `length` is given. Raises ShapeError if the next state has another shape or the `xs` differ in
    length, and TraceError if the cell reads values.

    >>> total, sums = ndl.scan(lambda s, x: (s + x, s + x), ndl.zeros(()), ndl.Tensor([1.0, 2.0]))
    >>> total.item(), sums.numpy().tolist()
    (3.0, [1.0, 3.0])
    """
    _, slices = flattened(xs, "xs")
    before, first = flattened(state, "state", next((x.device for _, x in slices), None))
    steps = _steps(slices, length)
    tensors = [x for _, x in (*first, *slices)]
    specs = [x.spec for _, x in first] + [Spec(x.shape[1:], x.dtype, x.device) for _, x in slices]

    ys: list[Any] = []

    def call(*given: Tensor) -> Any:
        found = iter(given)
        now = rebuilt(state, found)
        made = cell(now, rebuilt(xs, found))
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise TypeError(
                f"scan: the cell returns {type(made).__name__}; it must return the next state and y"
            )
        ys.append(made[1])
        return tuple(made)

    results, body, captured = traced(call, specs)
    after, _ = results["tuple"]
    wrong = tree.difference(before, after, "state")
    if wrong:
        raise TypeError(f"scan: the next state differs from the first: {wrong}")
    _check_state(body, [name for name, _ in first])
    found = run(body, [*tensors, *captured], len(first), len(slices), steps, bool(reverse))
    values = iter(found)
    return rebuilt(state, values), rebuilt(ys[0], values)


def _steps(slices: Sequence[tuple[str, Tensor]], length: Any) -> Any:
    """Return the number of steps."""
    if length is not None:
        steps = length if isinstance(length, Expression) else as_int(length)
        if steps < 0:
            raise ValueError(f"scan: length={steps}; it must be 0 or more")
    elif not slices:
        raise TypeError("scan: give xs or length, which determine the number of steps")
    for name, x in slices:
        if not x.shape:
            raise ShapeError(f"scan: {name} has no axis to run over; its shape is ()")
        if length is None:
            steps, length = x.shape[0], x.shape[0]
        if not same(x.shape[0], steps):
            raise ShapeError(f"scan: {name} has {x.shape[0]} elements along axis 0, not {steps}")
    return steps


def _check_state(body: Body, names: Sequence[str]) -> None:
    for name, before, after in zip(names, body.inputs, body.output_specs(), strict=False):
        if not same_spec(before, after):
            kind = TypeError if before.dtype != after.dtype else ShapeError
            raise kind(
                f"scan: {name} is {before} at first and {after} after a step; a state keeps its "
                "shape and dtype"
            )
