"""The registry of converters of PyTorch operators.

A converter is a function `(node, *args) -> value | tuple of values`. It receives the arguments of
the operator's schema in order, with defaults filled in. It may leave out the last arguments; a call
in which one of them is not at its default is refused, and the error names the argument. Tensors are
values (`needle.conversion.values`), sizes are ints or expressions of dims, dtypes are the names of
needle's dtypes.

Nodes that take or return complex numbers have separate converters (`complex_converter`) or are
converted part by part (`complexes.py`).

An operator's name is "aten.add" for all its overloads, or "aten.add.Tensor" for one of them.
PyTorch decomposes an operator that has no converter, if it can.
"""

from __future__ import annotations

from collections.abc import Callable

from ..conversion.registry import Converter, F, Registry

_REGISTRY = Registry(f"{__package__}.converters")
_COMPLEX = "complex"  # the domain of converters for complex numbers


def converter(*names: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as the converter of operators with these
    `names`."""
    return _REGISTRY.converter(*names)


def complex_converter(*names: str) -> Callable[[F], F]:
    """Return a decorator that registers a function as the converter of nodes of these operators
    (`names`) that take or return complex numbers. Complex tensors are `Complex` values, and complex
    numbers are Python's `complex`."""
    return _REGISTRY.converter(*names, domain=_COMPLEX)


def find(operator: str) -> Converter | None:
    """Return the converter of an `operator` such as "aten.add.Tensor", or None."""
    return _REGISTRY.find(operator) or _REGISTRY.find(operator.rpartition(".")[0])


def find_complex(operator: str) -> Converter | None:
    """Return the converter of an `operator` with complex numbers, or None."""
    name = operator.rpartition(".")[0]
    return _REGISTRY.find(operator, _COMPLEX) or _REGISTRY.find(name, _COMPLEX)


def names() -> list[str]:
    """Return the names of the operators that have a converter."""
    return _REGISTRY.names()
