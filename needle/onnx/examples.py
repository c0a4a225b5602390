"""Make example inputs for an ONNX model: the caller's own inputs, and random arrays that fit the
graph in place of missing ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..backend_ndarray.dtypes import is_floating
from ..errors import ModelError
from ..sizes.dims import Expression
from .graph import Info

_MOST_DRAWN = 1 << 28  # the largest number of elements of a random array
_USUAL = 8  # the size chosen for a Dim that allows it


def by_name(inputs: Sequence[Info], given: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments `given` as a dict by the names of `inputs`. The caller gives them in
    order, or as one dict. Raises ModelError for an unknown name or too many arguments."""
    names = [info.name for info in inputs]
    if len(given) == 1 and isinstance(given[0], Mapping):
        unknown = [name for name in given[0] if name not in names]
        if unknown:
            raise ModelError(f"{unknown[0]!r} is not an input; they are {', '.join(names)}")
        return dict(given[0])
    if len(given) > len(names):
        raise ModelError(f"{len(given)} inputs are given; the model has {', '.join(names)}")
    return dict(zip(names, given, strict=False))


def axes_of_dims(inputs: Sequence[Info], dims: Mapping[Any, Any]) -> dict[str, dict[int, Any]]:
    """Return `dims` by input name and axis. A key of `dims` may be an input's name or number, or
    the model's name of a size (dim_param); the dim of a size applies to all axes with that name.
    Raises ModelError for any other key."""
    axes_by_input: dict[str, dict[int, Any]] = {}
    names = [info.name for info in inputs]
    sizes = {n for info in inputs for n in info.shape or () if isinstance(n, str)}
    for key, value in dims.items():
        if key in sizes and isinstance(value, Expression):
            for info in inputs:
                for axis, n in enumerate(info.shape or ()):
                    if n == key:
                        axes_by_input.setdefault(info.name, {})[axis] = value
            continue
        name = names[key] if type(key) is int and 0 <= key < len(names) else key
        if name not in names:
            listed = ", ".join([*names, *sorted(sizes)])
            raise ModelError(f"dims: {key!r} is neither an input nor a size; they are {listed}")
        if not isinstance(value, Mapping):
            raise ModelError(f"dims[{key!r}]={value!r}: must be a dict from axes to dims, or a Dim")
        axes_by_input.setdefault(name, {}).update(value)
    return axes_by_input


def examples(
    inputs: Sequence[Info],
    given: Mapping[str, Any],
    dims: Mapping[str, Mapping[int, Any]] | None = None,
    sizes: Mapping[str | int, int] | None = None,
    seed: int = 0,
) -> list[Any]:
    """Return an array for each of the `inputs`: the `given` array, or a random one.

    Random floats are standard normal, and random integers are 0 or 1; `seed` determines them. A
    size that the graph does not fix comes from a given input with a size of the same name, else
    from `dims` (a size that the dim allows), else from `sizes` by name or axis. Raises ModelError
    if none of these determines a size, and for given inputs that do not fit the graph.
    """
    known: dict[Any, int] = {}
    for info in inputs:
        if info.name in given:
            _learn(info, tuple(np.shape(given[info.name])), known)
    rng = np.random.default_rng(seed)
    arrays: list[Any] = []
    for info in inputs:
        if info.name in given:
            arrays.append(given[info.name])
            continue
        if info.shape is None:
            raise ModelError(f"input {info.name!r} has no shape in the model: give an example")
        own = (dims or {}).get(info.name, {})
        shape = tuple(
            _size(info, axis, n, own.get(axis), known, sizes or {})
            for axis, n in enumerate(info.shape)
        )
        if math.prod(shape) > _MOST_DRAWN:
            raise ModelError(
                f"input {info.name!r} has the shape {shape}; needle draws at most {_MOST_DRAWN} "
                "elements: give an example"
            )
        arrays.append(_drawn(rng, shape, str(info.dtype)))
    return arrays


def _learn(info: Info, shape: tuple[int, ...], known: dict[Any, int]) -> None:
    """Record the named sizes of a given input."""
    if info.shape is None:
        return
    fits = len(shape) == len(info.shape) and all(
        not isinstance(n, int) or n == m for n, m in zip(info.shape, shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"input {info.name!r} has the shape {shape}; the model's is {shown(info.shape)}"
        )
    for n, m in zip(info.shape, shape, strict=True):
        if isinstance(n, str) and known.setdefault(n, m) != m:
            raise ModelError(
                f"input {info.name!r}: size {n!r} is {m}, but {known[n]} on another axis"
            )


def _size(
    info: Info,
    axis: int,
    n: Any,
    dim: Any,
    known: dict[Any, int],
    sizes: Mapping[str | int, int],
) -> int:
    if isinstance(n, int):
        return n
    if n is not None and n in known:
        return known[n]
    if dim is not None:
        size = _allowed(dim)
    elif n in sizes or axis in sizes:
        size = sizes[n] if n in sizes else sizes[axis]
    else:
        called = f"axis {axis}" if n is None else f"axis {axis} ({n!r})"
        raise ModelError(
            f"input {info.name!r} has no size for {called}: give an example, or a Dim in dims"
        )
    if n is not None:
        known[n] = size
    return size


def _allowed(dim: Any) -> int:
    """Return a size that an expression of dims allows."""
    if not isinstance(dim, Expression):
        raise ModelError(f"dims: {dim!r} is neither a Dim nor an expression of dims")
    values = {}
    for each in dim.dims:
        least = max(each.min, min(each.max, _USUAL))
        values[each] = -(-least // each.multiple_of) * each.multiple_of
    return int(dim.value(values))


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if is_floating(dtype):
        return rng.standard_normal(shape).astype(np.dtype(dtype))
    return rng.integers(0, 2, shape).astype(np.dtype(dtype))


def shown(shape: tuple[Any, ...]) -> str:
    """Return a `shape` of the graph as text, with "?" for unknown sizes."""
    return "[" + ", ".join("?" if n is None else str(n) for n in shape) + "]"
