"""Which function converts which operator of PyTorch.

A converter is a function `(node, *args) -> value | tuple of values`. It gets the arguments of the
operator's schema in their order, with defaults filled in, and may leave out the last ones: the call
is refused by name if one of those is not at its default. Tensors are values (`needle.conversion.
values`), sizes are ints or expressions of dims, dtypes are names of needle's.

An operator's name is "aten.add" for all its overloads, or "aten.add.Tensor" for one of them. An
operator that has no converter is decomposed by PyTorch into others, if it can be.
"""

from __future__ import annotations

from collections.abc import Callable

from ..conversion.registry import Converter, F, Registry

_REGISTRY = Registry(f"{__package__}.converters")


def converter(*names: str) -> Callable[[F], F]:
    """Decorator that registers a function for operators of these names."""
    return _REGISTRY.converter(*names)


def find(operator: str) -> Converter | None:
    """The converter of an operator, "aten.add.Tensor", or None."""
    return _REGISTRY.find(operator) or _REGISTRY.find(operator.rpartition(".")[0])


def names() -> list[str]:
    """The names that have a converter."""
    return _REGISTRY.names()
