"""Converters of special functions. They are computed in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ... import ops
from ...autograd.tensor import Tensor
from ...backend_ndarray.dtypes import is_half
from ...conversion.values import Value
from ..operands import cast, is_tensor
from ..program import Node
from ..registry import converter
from ..special import bessel, errors, gamma, polynomials

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "erfc": errors.erfc,
    "special_erfcx": errors.erfcx,
    "special_log_ndtr": errors.log_ndtr,
    "special_ndtri": errors.ndtri,
    "lgamma": gamma.lgamma,
    "digamma": gamma.digamma,
    "special_i0e": partial(bessel.scaled_i, 0),
    "special_i1e": partial(bessel.scaled_i, 1),
    "special_scaled_modified_bessel_k0": partial(bessel.scaled_k, 0),
    "special_scaled_modified_bessel_k1": partial(bessel.scaled_k, 1),
    "special_bessel_j0": partial(bessel.bessel_j, 0),
    "special_bessel_j1": partial(bessel.bessel_j, 1),
    "special_bessel_y0": partial(bessel.bessel_y, 0),
    "special_bessel_y1": partial(bessel.bessel_y, 1),
    "special_airy_ai": bessel.airy,
    "special_spherical_bessel_j0": bessel.spherical_j0,
}


def _in_float64(node: Node, function: Callable[..., Tensor], *operands: Any) -> Tensor:
    wide = (cast(cast(each, node.dtype), "float64") for each in operands)
    return cast(function(*wide), node.dtype)


@converter(*(f"aten.{name}" for name in _FUNCTIONS))
def special(node: Node, x: Value) -> Tensor:
    return _in_float64(node, _FUNCTIONS[node.operator.split(".")[1]], x)


# Functions scaled by exp(-|x|) or exp(x). The converter removes the scale with a product in the
# operand's dtype, which overflows where PyTorch's product does.
_SCALED: dict[str, Callable[[Tensor], Tensor]] = {
    "i0": partial(bessel.scaled_i, 0),
    "special_modified_bessel_i0": partial(bessel.scaled_i, 0),
    "special_i1": partial(bessel.scaled_i, 1),
    "special_modified_bessel_i1": partial(bessel.scaled_i, 1),
    "special_modified_bessel_k0": partial(bessel.scaled_k, 0),
    "special_modified_bessel_k1": partial(bessel.scaled_k, 1),
}


@converter(*(f"aten.{name}" for name in _SCALED))
def scaled(node: Node, x: Value) -> Tensor:
    name = node.operator.split(".")[1]
    given = cast(x, "float32" if is_half(node.dtype) else node.dtype)
    found = ops.cast(_SCALED[name](ops.cast(given, "float64")), given.dtype)
    exponent = -given if "_k" in name else ops.abs(given)
    return cast(found * ops.exp(exponent), node.dtype)


@converter("aten.polygamma")
def polygamma(node: Node, order: int, x: Value) -> Tensor:
    if order != 1:
        return _in_float64(node, partial(gamma.polygamma, order), x)
    # At the poles, PyTorch's result depends on the rounding of the sine in the operand's dtype.
    given = cast(x, "float32" if is_half(node.dtype) else node.dtype)
    sine = ops.where(given < 0.5, ops.sin(given * math.pi), 1.0)
    turned = ops.where(given < 0.5, 1.0 - given, given)
    found = ops.cast(gamma.polygamma(1, ops.cast(turned, "float64")), given.dtype)
    found = ops.where(given < 0.5, math.pi**2 / (sine * sine) - found, found)
    return cast(found, node.dtype)


@converter("aten.special_zeta")
def zeta(node: Node, s: Any, q: Any) -> Tensor:
    return _in_float64(node, gamma.zeta, s, q)


@converter("aten.igamma", "aten.igammac")
def incomplete_gamma(node: Node, a: Any, x: Any) -> Tensor:
    upper = node.operator.startswith("aten.igammac")
    return _in_float64(node, partial(gamma.incomplete_gamma, upper=upper), a, x)


_POLYNOMIALS = {
    **{f"special_chebyshev_polynomial_{kind}": kind for kind in "tuvw"},
    **{f"special_shifted_chebyshev_polynomial_{kind}": kind for kind in "tuvw"},
    "special_hermite_polynomial_h": "h",
    "special_hermite_polynomial_he": "he",
    "special_laguerre_polynomial_l": "l",
    "special_legendre_polynomial_p": "p",
}


@converter(*(f"aten.{name}" for name in _POLYNOMIALS))
def polynomial(node: Node, x: Any, degree: Any) -> Tensor:
    """Return a polynomial of a known degree. The degree of a Chebyshev polynomial may also be
    computed."""
    name = node.operator.split(".")[1]
    kind = _POLYNOMIALS[name]
    if isinstance(degree, np.ndarray) and degree.size == 1 and degree.ndim <= len(node.shape):
        degree = degree.item()
    if is_tensor(degree) and "chebyshev" not in name:
        raise node.unsupported("a degree that only a call knows")

    def of(x: Tensor, *degrees: Tensor) -> Tensor:
        x = x * 2.0 - 1.0 if "shifted" in name else x
        if degrees:
            return polynomials.chebyshev(kind, x, *degrees)
        return polynomials.of_degree(kind, x, int(degree))

    return _in_float64(node, of, x, *([degree] if is_tensor(degree) else []))
