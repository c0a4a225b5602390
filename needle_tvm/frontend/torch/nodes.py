"""Queries about nodes and Relax expressions, for the converters of PyTorch's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from needle_tvm._tvm.names import relax
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
    return x, axes if shape_of(x) else None, bool(given.get("keepdim", False))


def result_dtype(node: Any) -> str:
    """The dtype that PyTorch gives the result."""
    return dtype_of(node.meta["val"])


def dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).partition(".")[2]


def pairs(value: Any, dims: int) -> list[int]:
    """An option of a window as one number for each of its dimensions."""
    return [value] * dims if isinstance(value, int) else list(value) * (dims // len(value))


def shape_of(expr: Any) -> tuple[int, ...]:
    shape = static_shape(expr)
    if shape is None:
        raise ValueError("a tensor whose shape is not static")
    return shape
