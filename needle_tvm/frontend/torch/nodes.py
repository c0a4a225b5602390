"""Queries about nodes and Relax expressions, for the converters of PyTorch's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle_tvm._tvm.names import relax, tirx, tvm_ffi
from needle_tvm.tir.functions import static_shape

_op = relax.op


def arguments(node: Any, **defaults: Any) -> list[Any]:
    """An operator's arguments after the first, in the order of `defaults`."""
    return list(
        {**defaults, **dict(zip(defaults, node.args[1:], strict=False)), **node.kwargs}.values()
    )


def filled(importer: Any, node: Any, value: float, shape: tuple[int, ...], dtype: str) -> Any:
    """A node's value, or a constant if the node is None."""
    return importer.env[node] if node is not None else relax.const(np.full(shape, value), dtype)


def along(node: Any, importer: Any) -> tuple[Any, list[int] | None, bool]:
    """The operand of a reduction, its axes (None for all), and whether these are kept. A 0-d tensor
    has no axes, whatever is asked for."""
    given = dict(zip(("x", "dim", "keepdim"), node.args, strict=False)) | dict(node.kwargs)
    x, axes = importer.env[given["x"]], given.get("dim")
    axes = [axes] if isinstance(axes, int) else list(axes or []) or None
    return x, axes if extents_of(x) else None, bool(given.get("keepdim", False))


def result_dtype(node: Any) -> str:
    """The dtype that PyTorch gives the result."""
    return dtype_of(node.meta["val"])


def dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).partition(".")[2]


def pairs(value: Any, dims: int) -> list[int]:
    """An option of a window as one number for each of its dimensions."""
    return [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))


def shape_of(expr: Any) -> tuple[int, ...]:
    """The shape of a Relax tensor; ValueError if an extent is no number."""
    shape = static_shape(expr)
    if shape is None:
        raise ValueError("a tensor whose shape is not static")
    return shape


def extents_of(expr: Any) -> tuple[Any, ...]:
    """The shape of a Relax tensor: ints, and TVM's expressions of dims."""
    return tuple(int(n) if isinstance(n, tirx.IntImm) else n for n in expr.ty.shape.values)


def alike(a: Any, b: Any) -> bool:
    """Whether two extents, or shapes, have one form."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(tvm_ffi.structural_equal(a, b, map_free_vars=False))


def broadcast(*shapes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape that shapes are broadcast to, like `numpy.broadcast_shapes`."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(
        next((n for n in extents if not alike(n, 1)), 1) for extents in zip(*padded, strict=True)
    )
