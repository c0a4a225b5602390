"""The shapes of recurrences over all steps at once."""

from __future__ import annotations

from collections.abc import Mapping

from ..backend_ndarray.dtypes import is_floating
from ..errors import ShapeError
from ..spec import Shape, Spec


def steps_of(name: str, projected: Spec, gates: int) -> tuple[int, int, int]:
    """(steps, batch, hidden units) of inputs that their weights multiplied already. ShapeError
    for another shape."""
    if projected.ndim != 3 or projected.shape[0] < 1 or projected.shape[2] % gates:
        raise ShapeError(
            f"{name}: projected of shape {projected.shape} is not (T, B, {gates} H) with at least "
            "one step"
        )
    steps, batch, width = projected.shape
    return steps, batch, width // gates


def check_steps(name: str, projected: Spec, expected: Mapping[str, tuple[Spec, Shape]]) -> None:
    """ShapeError or TypeError for an input that has not the shape that belongs to it, or another
    dtype than `projected`."""
    for what, (given, shape) in expected.items():
        if given.shape != shape:
            raise ShapeError(
                f"{name}: {what} of shape {given.shape}; projected {projected.shape} needs {shape}"
            )
        if given.dtype != projected.dtype or not is_floating(given.dtype):
            raise TypeError(
                f"{name}: projected is {projected.dtype} and {what} {given.dtype}; all must be of "
                "one floating dtype"
            )
