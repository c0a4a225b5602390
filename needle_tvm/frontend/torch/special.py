"""PyTorch's special functions, and those of its operators that are needle's own ops.

The C library has `erfc`, `lgamma` and the Bessel functions of the first and second kind, also on
CUDA. Series and formulas of the others are those of Abramowitz and Stegun, "Handbook of
Mathematical Functions" (1964).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

from needle.backend_ndarray.dtypes import HALVES
from needle.ops._functions import _series
from needle.ops.exponential import ERFINV
from needle.ops.running import Cummax, Cummin
from needle.ops.scan import LogCumSumExp
from needle.ops.sorting import Searchsorted
from needle_tvm._tvm.names import TE_NAMESPACE, relax, tirx
from needle_tvm.frontend.torch import elements
from needle_tvm.frontend.torch.nodes import arguments, extents_of, result_dtype

_op = relax.op


def _called(name: str, *operands: Any) -> Any:
    """A call of a function of the C library, whose name ends in f for float32."""
    dtype = str(operands[0].ty)
    return tirx.call_pure_extern(dtype, name if dtype == "float64" else f"{name}f", *operands)


def _by_c(name: str) -> Callable[[Any, Any], Any]:
    """A converter to a function of the C library."""

    def rule(_: Any, x: Any) -> Any:
        return _called(name, x)

    rule.__name__ = name
    return elements.elementwise(rule)


def _bessel(name: str) -> Callable[[Any, Any], Any]:
    """A converter to a Bessel function of the C library. At infinity, where it goes to 0, PyTorch
    has NaN."""

    def rule(_: Any, x: Any) -> Any:
        dtype = str(x.ty)
        infinite = tirx.abs(x) == tirx.const(math.inf, dtype)
        return tirx.Select(infinite, tirx.const(math.nan, dtype), _called(name, x))

    rule.__name__ = name
    return elements.elementwise(rule)


def next_after(node: Any, importer: Any) -> Any:
    """The next float after x on the way to y; ValueError for halves, which C does not have."""
    if result_dtype(node) in HALVES:
        raise ValueError(f"{node.target} of {result_dtype(node)} is not taken")
    return elements.of_two(_next_after, _op.add)(node, importer)


def _next_after(_: Any, x: Any, y: Any) -> Any:
    return _called("nextafter", x, y)


def erfcx(_: Any, x: Any) -> Any:
    """exp(x * x) * erfc(x), in float64, where x is large by its asymptotic series (7.1.23)."""

    def number(value: float) -> Any:
        return tirx.const(value, "float64")

    wide = tirx.Cast("float64", x)
    near = tirx.exp(wide * wide) * tirx.call_pure_extern("float64", "erfc", wide)
    inverse = number(0.5) / (wide * wide)
    factors = [1.0]
    for i in range(6):
        factors.append(-factors[-1] * (2 * i + 1))
    far = _series(TE_NAMESPACE, inverse, factors) / (wide * number(math.sqrt(math.pi)))
    return tirx.Cast(str(x.ty), tirx.Select(wide > number(20), far, near))


def _bessel_i(order: int, scaled: bool) -> Callable[[Any, Any], Any]:
    """The modified Bessel function of the first kind of order 0 or 1, times exp(-abs(x)) if
    `scaled`: by its power series (9.6.10), in which nothing cancels, and above 20 by its asymptotic
    series (9.7.1)."""
    series, far_series = [1.0], [1.0]
    for i in range(1, 46):
        series.append(series[-1] / (i * (i + order)))
    for i in range(1, 16):
        far_series.append(-far_series[-1] * (4 * order**2 - (2 * i - 1) ** 2) / (8 * i))

    def rule(k: Any, x: Any) -> Any:
        def number(value: float) -> Any:
            return tirx.const(value, str(x.ty))

        size = tirx.abs(x)
        half = x * number(0.5)
        near = _series(k, half * half, series) * (half if order else number(1))
        far = _series(k, number(1) / size, far_series)
        far = far / tirx.sqrt(size * number(2 * math.pi))
        far = tirx.Select(x < number(0), -far, far) if order else far
        if scaled:
            near = near * tirx.exp(-size)
        else:
            far = far * tirx.exp(size)
        return tirx.Select(size < number(20), near, far)

    rule.__name__ = f"bessel_i{order}" + ("e" if scaled else "")
    return rule


# B(2 i) / (2 i) for Bernoulli's numbers B.
_BERNOULLI = [1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12]
_SHIFT = 10


def digamma(k: Any, x: Any) -> Any:
    """The derivative of ln(gamma(x)) by its asymptotic series (6.3.18) after a shift (6.3.6); for
    negative x by reflection (6.3.7). At 0 it is an infinity, and NaN at the negative integers."""

    def number(value: float) -> Any:
        return tirx.const(value, str(x.ty))

    positive = tirx.Select(x < number(0), number(1) - x, x)
    steps = [number(1) / (positive + number(i)) for i in range(_SHIFT)]
    far = positive + number(_SHIFT)
    inverse = number(1) / (far * far)
    found = tirx.log(far) - number(0.5) / far - inverse * _series(k, inverse, _BERNOULLI)
    found = found - reduce(lambda total, step: total + step, reversed(steps))
    rest = x - tirx.trunc(x)
    turned = found - number(math.pi) / tirx.tan(rest * number(math.pi))
    turned = tirx.Select(rest == number(0), number(math.nan), turned)
    return tirx.Select(x == number(0), -number(1) / x, tirx.Select(x < number(0), turned, found))


def _of_needle(op: Any) -> Callable[[Any, Any], Any]:
    """A converter to an op of needle of one operand."""

    def convert(node: Any, importer: Any) -> Any:
        return importer.block_builder.emit_te(
            partial(op.emit_te, TE_NAMESPACE),
            importer.env[node.args[0]],
            primfunc_name_hint=op.name,
        )

    return convert


def _running(op: Any) -> Callable[[Any, Any], Any]:
    """A converter to `Cummax` or `Cummin`: values and positions."""

    def convert(node: Any, importer: Any) -> Any:
        x, builder = importer.env[node.args[0]], importer.block_builder
        (axis,) = arguments(node, dim=0)
        if not extents_of(x):
            return builder.emit(relax.Tuple([x, relax.const(0, "int64")]))
        running = op(axis)
        return builder.emit_te(
            lambda x: list(running.emit_te(TE_NAMESPACE, x)), x, primfunc_name_hint=running.name
        )

    return convert


def searchsorted(node: Any, importer: Any) -> Any:
    """The number of elements of a row before each element of a tensor; NaN is above all."""
    ordered, x = (importer.env[each] for each in node.args[:2])
    options = {"right": False, "side": None, "out_int32": False, "sorter": None} | node.kwargs
    if options["sorter"] is not None:
        sorter = importer.env[options["sorter"]]
        ordered = importer.block_builder.emit(_op.gather_elements(ordered, sorter, -1))
    op = Searchsorted(bool(options["right"]) or options["side"] == "right")
    found = importer.block_builder.emit_te(
        partial(op.emit_te, TE_NAMESPACE), ordered, x, primfunc_name_hint=op.name
    )
    return _op.astype(found, "int32") if options["out_int32"] else found


def log_cum_sum_exp(node: Any, importer: Any) -> Any:
    x, (axis,) = importer.env[node.args[0]], arguments(node, dim=0)
    return _of_needle(LogCumSumExp(axis))(node, importer) if extents_of(x) else x


# By PyTorch's name of the operator.
CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "erfc.default": _by_c("erfc"),
    "lgamma.default": _by_c("lgamma"),
    "special_bessel_j0.default": _bessel("j0"),
    "special_bessel_j1.default": _bessel("j1"),
    "special_bessel_y0.default": _bessel("y0"),
    "special_bessel_y1.default": _bessel("y1"),
    "special_erfcx.default": elements.elementwise(erfcx),
    "i0.default": elements.elementwise(_bessel_i(0, scaled=False)),
    "special_modified_bessel_i0.default": elements.elementwise(_bessel_i(0, scaled=False)),
    "special_modified_bessel_i1.default": elements.elementwise(_bessel_i(1, scaled=False)),
    "special_i0e.default": elements.elementwise(_bessel_i(0, scaled=True)),
    "special_i1.default": elements.elementwise(_bessel_i(1, scaled=False)),
    "special_i1e.default": elements.elementwise(_bessel_i(1, scaled=True)),
    "digamma.default": elements.elementwise(digamma),
    "erfinv.default": _of_needle(ERFINV),
    "nextafter.default": next_after,
    "cummax.default": _running(Cummax),
    "cummin.default": _running(Cummin),
    "logcumsumexp.default": log_cum_sum_exp,
    "searchsorted.Tensor": searchsorted,
}
