"""Run a program's nodes in order, on Tensors with values or while tracing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor, TensorTuple
from ..common.state import state
from ..conversion.node import named
from ..conversion.registry import Converter
from ..errors import UnsupportedError
from ..sizes.extents import at_sizes, same
from . import complexes, registry
from .complexes import Complex, dtype_name
from .program import Node, Program, Ref, refs

GETITEM = "getitem"  # selects one result of a node with several results


class Run:
    """A run of a program, with its current values by name. `each` is called with every node and its
    value."""

    def __init__(
        self,
        program: Program,
        values: Mapping[str, Any],
        each: Callable[[Node, Any], None] | None = None,
    ) -> None:
        self._program, self._each = program, each
        self.values: dict[str, Any] = {**program.constants, **values}
        self._last = _last_uses(program)

    def results(self, shapes: list[tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
        """Run the nodes. Return the outputs and the values to write. `shapes` are the inputs'
        shapes.

        Raises UnsupportedError and ModelError, which name the node, and TraceError if a result
        depends on values that are unknown while tracing.
        """
        program = self._program
        sizes = program.sizes(shapes) if program.dims else None
        for i, node in enumerate(program.nodes):
            self._run(node if sizes is None else at_sizes(node, sizes))
            for name in set(refs(node.args)):
                if self._last.get(name) == i:
                    del self.values[name]
        outputs = [self.value(each) for each in program.outputs]
        return outputs, [self.value(write.value) for write in program.writes]

    def value(self, argument: Any) -> Any:
        """Return an `argument` with its references replaced by values."""
        if isinstance(argument, Ref):
            return self.values[argument.name]
        if isinstance(argument, tuple):
            return tuple(map(self.value, argument))
        return argument

    def _run(self, node: Node) -> None:
        trace = state.trace
        path = trace.within(node.path) if trace else contextlib.nullcontext()
        # An index out of range is an error of the call, so it stays an IndexError.
        with named(node, UnsupportedError, kept=(IndexError,)), path:
            made = convert(node, self.value(node.args))
        if self._each is not None:
            self._each(node, made)
        if node.name in self._last:
            self.values[node.name] = made


def _last_uses(program: Program) -> dict[str, int]:
    """Return the index of the last node that uses each value; for returned values,
    `len(program.nodes)`."""
    last = {name: i for i, node in enumerate(program.nodes) for name in refs(node.args)}
    kept = [*program.outputs, *(write.value for write in program.writes)]
    return last | {name: len(program.nodes) for each in kept for name in refs(each)}


def convert(node: Node, args: tuple[Any, ...]) -> Any:
    """Compute the value of a `node` for these `args`: a tuple if the operator has several results.
    Raises UnsupportedError if needle lacks the operator, or if a result has another shape or dtype
    than PyTorch recorded."""
    if node.operator == GETITEM:
        item = args[0][args[1]]
        if item is None:
            raise node.unsupported(f"result {args[1]} is not computed by needle")
        return item
    if complexes.concerns(node, args):
        converter = registry.find_complex(node.operator)
        result = (
            _called(node, converter, args)
            if converter
            else complexes.convert(node, args, _ordinary)
        )
    else:
        result = _ordinary(node, args)
    if not node.several:
        _check(node, 0, result)
        return result
    result = tuple(result)
    for index, value in enumerate(result):
        if value is not None:
            _check(node, index, value)
    return result


def _ordinary(node: Node, args: tuple[Any, ...]) -> Any:
    """Convert a node with the converter for real numbers."""
    found = registry.find(node.operator)
    if found is None:
        raise UnsupportedError(f"{node}: needle has no such operator")
    made = _called(node, found, args)
    return made.tuple() if isinstance(made, TensorTuple) else made


def _called(node: Node, found: Converter, args: tuple[Any, ...]) -> Any:
    return found.function(node, *_given(node, found, args))


def _given(node: Node, found: Converter, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments that a converter takes. Raises UnsupportedError if another argument is
    not at its default."""
    count = found.takes
    if count is None:
        return args
    for position, name in node.given:
        if position >= count:
            raise node.unsupported(f"its argument {name}={args[position]!r}")
    return args[:count]


def _check(node: Node, index: int, value: Any) -> None:
    """Raise UnsupportedError if a converter's result has another shape or dtype than PyTorch
    recorded."""
    wanted = node.results[index] if index < len(node.results) else None
    if wanted is None or not isinstance(value, (Tensor, np.ndarray, Complex)):
        return
    if dtype_name(value) != wanted.dtype or not same(tuple(value.shape), wanted.shape):
        raise node.unsupported(
            f"result {index} is {dtype_name(value)}{list(value.shape)} in needle, but "
            f"{wanted.dtype}{list(wanted.shape)} in PyTorch"
        )
