"""ONNX export rules for optimizer steps, generated from the ops' own formulas."""

from __future__ import annotations

from typing import Any

from ... import ops
from ...backend_ndarray.dtypes import compute_dtype
from ...ops._update import Functions
from ._rules import Site, rule
from ._writer import Value, Writer


class _Number:
    """A value with Python operators. Python numbers are converted to its dtype."""

    def __init__(self, w: Writer, value: Value) -> None:
        self.w, self.value = w, value

    def op(self, name: str, other: Any, swap: bool = False) -> _Number:
        if not isinstance(other, _Number):
            other = _Number(self.w, self.w.constant(other, self.value.dtype))
        pair = (other.value, self.value) if swap else (self.value, other.value)
        return _Number(self.w, self.w.op(name, *pair))

    def __add__(self, other: Any) -> _Number:
        return self.op("Add", other)

    def __sub__(self, other: Any) -> _Number:
        return self.op("Sub", other)

    def __rsub__(self, other: Any) -> _Number:
        return self.op("Sub", other, swap=True)

    def __mul__(self, other: Any) -> _Number:
        return self.op("Mul", other)

    def __truediv__(self, other: Any) -> _Number:
        return self.op("Div", other)

    __radd__, __rmul__ = __add__, __mul__

    def cast(self, dtype: str) -> _Number:
        return _Number(self.w, self.w.cast(self.value, dtype))


def _unary(name: str) -> Any:
    return lambda x: _Number(x.w, x.w.op(name, x.value))


_FUNCTIONS = Functions(
    _unary("Sqrt"),
    _unary("Sign"),
    lambda a, b: a.op("Max", b),
    lambda a, t: t.op("Pow", a, swap=True),
    lambda t, a: _Number(
        t.w, t.w.op("Greater", t.value, t.w.constant(a, t.value.dtype), dtype="bool")
    ).cast("float64"),
)


@rule(
    ops.SgdUpdate,
    ops.AdamUpdate,
    ops.AdagradUpdate,
    ops.RmspropUpdate,
    ops.LionUpdate,
    ops.AdamaxUpdate,
    ops.NadamUpdate,
    ops.RadamUpdate,
    ops.AdadeltaUpdate,
)
def update(s: Site, *inputs: Value) -> tuple[Value, ...]:
    param, grad, *state, lr, step = (_Number(s.w, x) for x in inputs)
    wide = compute_dtype(param.value.dtype)
    scalars = s.op.scalars(lr.cast("float64"), step.cast("float64"), _FUNCTIONS)
    numbers = [x.cast(wide) if isinstance(x, _Number) else x for x in scalars]
    old = {name: x.cast(wide) for name, x in zip(s.op.states, state, strict=True)}
    new, kept = s.op.formula(_FUNCTIONS, param.cast(wide), grad.cast(wide), old, *numbers)
    parts = (new, *(kept[name] for name in s.op.states), step + 1)
    return tuple(part.cast(spec.dtype).value for part, spec in zip(parts, s.out, strict=True))
