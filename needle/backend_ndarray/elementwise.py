"""The elementwise methods of NDArray, one line per op of the device interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

Array = TypeVar("Array")

_new = object.__new__


def _unary(name: str, doc: str) -> Callable[[Array], Array]:
    def method(self: Any) -> Any:
        out = _new(type(self))
        out.device = device = self.device
        out.view = getattr(device.kernels, name)(self.view)
        return out

    method.__name__, method.__doc__ = name, doc
    return method


def _binary(name: str, doc: str = "") -> Callable[[Array, Any], Array]:
    def method(self: Any, other: Any) -> Any:
        device = self.device
        if type(other) is type(self) and other.device is device:
            operand = other.view
        elif (operand := self.operand(other)) is NotImplemented:
            return NotImplemented
        out = _new(type(self))
        out.device = device
        out.view = getattr(device.kernels, name)(self.view, operand)
        return out

    method.__name__, method.__doc__ = name, doc or f"Elementwise {name} with broadcasting."
    return method


def _reflected(name: str) -> Callable[[Array, Any], Array]:
    def method(self: Any, other: Any) -> Any:
        if (operand := self.operand(other)) is NotImplemented:
            return NotImplemented
        return self._wrap(getattr(self.device.kernels, name)(operand, self.view))

    return method


class Elementwise:
    """Methods and operators that broadcast and promote dtypes like NumPy (see NDArray)."""

    __slots__ = ()

    device: Any  # a Device
    view: Any

    def operand(self, other: Any) -> Any:
        """Return the kernel operand for `other`, or NotImplemented if it is not an array or a
        number."""
        raise NotImplementedError

    def _wrap(self, view: Any) -> Self:
        """Wrap a kernel's result in an array on this device, without checks."""
        out: Any = _new(type(self))
        out.device = self.device
        out.view = view
        return out

    exp = _unary("exp", "e to the power of each element.")
    expm1 = _unary("expm1", "exp(x) - 1, accurate near 0.")
    exp2 = _unary("exp2", "2 to the power of each element.")
    log = _unary("log", "Natural logarithm.")
    log2 = _unary("log2", "Logarithm to the base 2.")
    log10 = _unary("log10", "Logarithm to the base 10.")
    log1p = _unary("log1p", "log(1 + x), accurate near 0.")
    sin = _unary("sin", "Sine.")
    cos = _unary("cos", "Cosine.")
    tan = _unary("tan", "Tangent.")
    asin = _unary("asin", "Inverse sine.")
    acos = _unary("acos", "Inverse cosine.")
    atan = _unary("atan", "Inverse tangent.")
    sinh = _unary("sinh", "Hyperbolic sine.")
    cosh = _unary("cosh", "Hyperbolic cosine.")
    asinh = _unary("asinh", "Inverse hyperbolic sine.")
    acosh = _unary("acosh", "Inverse hyperbolic cosine.")
    atanh = _unary("atanh", "Inverse hyperbolic tangent.")
    tanh = _unary("tanh", "Hyperbolic tangent.")
    erf = _unary("erf", "Error function.")
    erfinv = _unary("erfinv", "Inverse error function.")
    sqrt = _unary("sqrt", "Square root.")
    rsqrt = _unary("rsqrt", "1 / sqrt(x).")
    reciprocal = _unary("reciprocal", "1 / x.")
    sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
    relu = _unary("relu", "Maximum of x and 0; keeps NaN.")
    abs = _unary("abs", "Absolute value.")
    sign = _unary("sign", "-1, 0 or 1.")
    square = _unary("square", "x * x.")
    floor = _unary("floor", "Largest integer not above x, in x's dtype.")
    ceil = _unary("ceil", "Smallest integer not below x, in x's dtype.")
    round = _unary("round", "Nearest integer, halves to even, in x's dtype.")
    trunc = _unary("trunc", "x without its fraction, in x's dtype.")
    logical_not = _unary("logical_not", "True where the element is zero.")
    isnan = _unary("isnan", "True where the element is NaN.")
    isfinite = _unary("isfinite", "True where the element is neither NaN nor infinite.")
    __neg__ = _unary("negative", "-x.")
    __abs__ = abs

    maximum = _binary("maximum", "The larger of two elements; NaN if either is NaN.")
    minimum = _binary("minimum", "The smaller of two elements; NaN if either is NaN.")
    relu_grad = _binary(
        "relu_grad", "The gradient self where relu's output (other) is above 0, else 0."
    )
    logical_and = _binary("logical_and", "True where both are non-zero.")
    logical_or = _binary("logical_or", "True where either is non-zero.")
    logical_xor = _binary("logical_xor", "True where exactly one of the two is non-zero.")
    atan2 = _binary("atan2", "The angle of the point (other, self).")
    fmod = _binary("fmod", "The remainder, with self's sign; 0 for an integer divided by 0.")
    remainder = __mod__ = _binary(
        "remainder", "The remainder, with the divisor's sign; 0 for an integer divided by 0."
    )
    floor_divide = __floordiv__ = _binary(
        "floor_divide", "The quotient, rounded down; 0 for an integer divided by 0."
    )
    bitwise_and = __and__ = _binary("bitwise_and", "Bitwise and; integers and bools.")
    bitwise_or = __or__ = _binary("bitwise_or", "Bitwise or; integers and bools.")
    bitwise_xor = __xor__ = _binary("bitwise_xor", "Bitwise xor; integers and bools.")
    left_shift = __lshift__ = _binary("left_shift", "Bits shifted left; 0 for a negative shift.")
    right_shift = __rshift__ = _binary("right_shift", "Bits shifted right; the sign is repeated.")
    bitwise_not = __invert__ = _unary("bitwise_not", "All bits inverted; integers and bools.")
    __add__ = _binary("add")
    __sub__ = _binary("subtract")
    __mul__ = _binary("multiply")
    __truediv__ = _binary("divide")
    __pow__ = _binary("power")
    __radd__ = _reflected("add")
    __rsub__ = _reflected("subtract")
    __rmul__ = _reflected("multiply")
    __rtruediv__ = _reflected("divide")
    __rpow__ = _reflected("power")
    __rmod__ = _reflected("remainder")
    __rfloordiv__ = _reflected("floor_divide")
    __rand__ = _reflected("bitwise_and")
    __ror__ = _reflected("bitwise_or")
    __rxor__ = _reflected("bitwise_xor")
    __rlshift__ = _reflected("left_shift")
    __rrshift__ = _reflected("right_shift")
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _binary("greater")
    __ge__ = _binary("greater_equal")
