"""Which function converts which operator of PyTorch.

A converter is a function `(node, *args) -> value | tuple of values`. It gets the arguments of the
operator's schema in their order, with defaults filled in, and may leave out the last ones: the call
is refused by name if one of those is not at its default. Tensors are values (`needle.conversion.
values`), sizes are ints or expressions of dims, dtypes are names of needle's.

Nodes that take or return complex numbers have converters of their own (`complex_converter`), or are
converted by parts: see `complexes.py`.

An operator's name is "aten.add" for all its overloads, or "aten.add.Tensor" for one of them. An
operator that has no converter is decomposed by PyTorch into others, if it can be.
"""

from __future__ import annotations

from collections.abc import Callable

from ..conversion.registry import Converter, F, Registry

_REGISTRY = Registry(f"{__package__}.converters")
_COMPLEX = "complex"  # the domain of converters for complex numbers


def converter(*names: str) -> Callable[[F], F]:
    """Decorator that registers a function for operators of these names."""
    return _REGISTRY.converter(*names)


def complex_converter(*names: str) -> Callable[[F], F]:
    """Decorator that registers a function for the nodes of these operators that take or return
    complex numbers: `Complex` values, and Python's `complex` for numbers."""
    return _REGISTRY.converter(*names, domain=_COMPLEX)


def find(operator: str) -> Converter | None:
    """The converter of an operator, "aten.add.Tensor", or None."""
    return _REGISTRY.find(operator) or _REGISTRY.find(operator.rpartition(".")[0])


def find_complex(operator: str) -> Converter | None:
    """The converter of an operator's nodes with complex numbers, or None."""
    name = operator.rpartition(".")[0]
    return _REGISTRY.find(operator, _COMPLEX) or _REGISTRY.find(name, _COMPLEX)


def names() -> list[str]:
    """The names that have a converter."""
    return _REGISTRY.names()
