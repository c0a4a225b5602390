"""Check predicates: bools of one element that decide how a computation continues."""

from __future__ import annotations

from ..autograd.shapes import Spec, is_one
from ..errors import ShapeError


def check_predicate(name: str, what: str, spec: Spec) -> None:
    """Raise TypeError or ShapeError for anything but a bool tensor of one element."""
    if spec.dtype != "bool":
        raise TypeError(f"{name}: {what} is {spec}; it must be bool: compare, as in x != 0")
    if not all(map(is_one, spec.shape)):
        raise ShapeError(f"{name}: {what} is {spec}; it must have one element")
