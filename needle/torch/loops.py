"""Run the graphs of control flow operators, and count the iterations of loops if they are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..common.state import no_grad
from ..conversion.budget import check_iterations
from ..conversion.values import tensor
from .complexes import Complex
from .execute import Run
from .program import Program, refs

WHILE_LOOP = "higher_order.while_loop.default"


def run_body(body: Program, operands: Iterable[Any]) -> tuple[Any, ...]:
    """Return the results of a graph `body` for its tensor `operands`. Operands that are not tensors
    are left out: the body uses the sizes of the surrounding program."""
    given = [each for each in operands if isinstance(each, (Tensor, np.ndarray, Complex))]
    names = [name for name, _ in body.inputs]
    outputs, _ = Run(body, dict(zip(names, given, strict=True))).results([])
    return tuple(outputs)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A result that is not a tensor: None or a size."""

    value: Any


def as_tree(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a program's `values` in the form that needle's loops take, where a complex tensor is a
    list of its parts."""
    return tuple(map(_opened, values))


def _opened(value: Any) -> Any:
    if isinstance(value, Complex):
        return [*value.parts]
    return tensor(value) if isinstance(value, (Tensor, np.ndarray)) else Fixed(value)


def of_tree(values: Iterable[Any]) -> tuple[Any, ...]:
    """Invert `as_tree`: return the program's values for its result `values`."""
    return tuple(
        Complex(*value)
        if isinstance(value, list)
        else value.value
        if isinstance(value, Fixed)
        else value
        for value in values
    )


def known_trips(condition: Program, body: Program, operands: Sequence[Any]) -> int | None:
    """Return the number of iterations of a while_loop, or None if it does not depend on constants
    alone.

    `condition` and `body` are the loop's graphs. `operands` are the initial values that the loop
    carries, then the values that it only reads; an unknown value is None. Raises UnsupportedError
    if the number of iterations exceeds the budget.
    """
    if len(operands) != len(condition.inputs):
        return None  # some operands are sizes
    deciding = _reached(condition, condition.outputs)
    while True:
        updates = [body.outputs[i] for i in deciding if i < len(body.outputs)]
        more = deciding | _reached(body, updates)
        if more == deciding:
            break
        deciding = more
    if any(operands[i] is None for i in deciding):
        return None
    values = {i: operands[i] for i in deciding}
    carried = sorted(i for i in deciding if i < len(body.outputs))
    step = dataclasses.replace(body, outputs=tuple(body.outputs[i] for i in carried)).live
    count = 0
    with no_grad():
        while _is_true(_run(condition, values)[0]):
            count += 1
            check_iterations(count)
            values.update(zip(carried, _run(step, values), strict=True))
    return count


def _run(program: Program, values: dict[int, Any]) -> list[Any]:
    given = {program.inputs[i][0]: value for i, value in values.items()}
    return Run(program, given).results([])[0]


def _is_true(value: Any) -> bool:
    return bool(value.numpy() if isinstance(value, Tensor) else value)


def _reached(program: Program, outputs: Sequence[Any]) -> set[int]:
    """Return the numbers of the program's inputs that these outputs depend on."""
    part = dataclasses.replace(program, outputs=tuple(outputs)).live
    used = {name for each in part.outputs for name in refs(each)}
    used |= {name for node in part.nodes for name in refs(node.args)}
    return {i for i, (name, _) in enumerate(program.inputs) if name in used}
