"""Write expressions of dims as nodes that compute their values when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Protocol

from ...sizes.dims import Dim, Expression
from ._shapes import Shape
from ._values import Value


class Nodes(Protocol):
    """The methods of a Writer that `Sizes` calls."""

    def ints(self, numbers: Sequence[Any]) -> Value: ...
    def concat(self, parts: Sequence[Value], axis: int, shape: Shape | None) -> Value: ...
    def node(self, op_type: str, *inputs: Value | None, **attributes: Any) -> Any: ...
    def op(self, op_type: str, *inputs: Value) -> Value: ...


class Sizes:
    """The values of expressions, each computed once. `sources` has (input, axis, factor, offset)
    for each dim: the axis of the input has factor * dim + offset elements."""

    def __init__(self, writer: Nodes) -> None:
        self._writer = writer
        self._known: dict[Expression, Value] = {}
        self.sources: dict[Dim, tuple[Value, int, int, int]] = {}

    def vector(self, numbers: Sequence[Any]) -> Value:
        """Return ints and expressions (`numbers`) as an int64 vector."""
        parts = []
        for symbolic, run in groupby(numbers, lambda n: isinstance(n, Expression)):
            if symbolic:
                parts += [self.one(each) for each in run]
            else:
                parts.append(self._writer.ints(list(run)))
        return self._writer.concat(parts, 0, (len(numbers),))

    def one(self, extent: Expression) -> Value:
        """Return one expression (`extent`) as an int64 vector of one element."""
        if extent not in self._known:
            made = extent.built(self._dim, _divided)
            self._known[extent] = made.value
        return self._known[extent]

    def _dim(self, dim: Dim) -> _Size:
        if dim not in self._known:
            x, axis, factor, offset = self.sources[dim]
            found = self._writer.node(
                "Shape", x, dtype="int64", shape=(1,), start=axis, end=axis + 1
            )
            size = _Size(self._writer, found)
            if offset:
                size = size + -offset
            if factor != 1:
                size = _divided(size, factor)
            self._known[dim] = size.value
        return _Size(self._writer, self._known[dim])


class _Size:
    """An int64 vector of one element that supports + and *, for `Expression.built`."""

    def __init__(self, writer: Nodes, value: Value) -> None:
        self.writer, self.value = writer, value

    def _with(self, op_type: str, other: Any) -> _Size:
        if isinstance(other, int) and other == (0 if op_type == "Add" else 1):
            return self
        right = other.value if isinstance(other, _Size) else self.writer.ints([other])
        return _Size(self.writer, self.writer.op(op_type, self.value, right))

    def __add__(self, other: Any) -> _Size:
        return self._with("Add", other)

    def __mul__(self, other: Any) -> _Size:
        return self._with("Mul", other)

    __radd__, __rmul__ = __add__, __mul__


def _divided(a: Any, b: Any) -> Any:
    """Return a // b. ONNX's Div rounds integers towards zero, so the remainder is subtracted
    first."""
    if not isinstance(a, _Size) and not isinstance(b, _Size):
        return a // b
    writer = (a if isinstance(a, _Size) else b).writer
    left, right = (x.value if isinstance(x, _Size) else writer.ints([x]) for x in (a, b))
    whole = writer.op("Sub", left, writer.op("Mod", left, right))
    return _Size(writer, writer.op("Div", whole, right))
