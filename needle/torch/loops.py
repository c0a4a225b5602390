"""Graphs that operators of control flow run, and loops whose number of iterations is known."""

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
    """What a graph returns for operands, of which sizes are those of the program around it."""
    given = [each for each in operands if isinstance(each, (Tensor, np.ndarray, Complex))]
    names = [name for name, _ in body.inputs]
    outputs, _ = Run(body, dict(zip(names, given, strict=True))).results([])
    return tuple(outputs)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A result that is no tensor: None, or a size."""

    value: Any


def as_tree(values: Iterable[Any]) -> tuple[Any, ...]:
    """A program's values as needle's loops take them: a complex tensor as a list of its parts."""
    return tuple(map(_opened, values))


def _opened(value: Any) -> Any:
    if isinstance(value, Complex):
        return [*value.parts]
    return tensor(value) if isinstance(value, (Tensor, np.ndarray)) else Fixed(value)


def of_tree(values: Iterable[Any]) -> tuple[Any, ...]:
    """A program's values that `as_tree` made these of."""
    return tuple(
        Complex(*value)
        if isinstance(value, list)
        else value.value
        if isinstance(value, Fixed)
        else value
        for value in values
    )


def known_trips(condition: Program, body: Program, operands: Sequence[Any]) -> int | None:
    """How often a while_loop runs its body, if that depends on constants alone; else None.

    `operands` are the first values of what is carried and what is only read, None if unknown.
    UnsupportedError beyond the budget.
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
    """The numbers of the inputs that these outputs depend on."""
    part = dataclasses.replace(program, outputs=tuple(outputs)).live
    used = {name for each in part.outputs for name in refs(each)}
    used |= {name for node in part.nodes for name in refs(node.args)}
    return {i for i, (name, _) in enumerate(program.inputs) if name in used}
