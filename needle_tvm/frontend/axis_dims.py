"""Make each dim the size of an input axis, from which TVM's virtual machine reads it.

If an axis has size 2 * n or n + 1 and no axis has size n, a new dim m replaces that size, and
m // 2 or m - 1 replaces n.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from needle.sizes.dims import Dim, Expression
from needle.sizes.extents import line_of
from needle.trace import Graph
from needle_runtime.errors import UsageError


def axis_dims(graph: Graph) -> dict[Dim, Any]:
    """Return a replacement for each dim of a graph: the dim itself if it is the size of an input
    axis, otherwise an expression of a new dim that is. Raises UsageError if no axis allows this."""
    extents = [n for leaf in graph.inputs for n in leaf.spec.shape if isinstance(n, Expression)]
    expressions: dict[Dim, Any] = {n: n for n in extents if isinstance(n, Dim)}
    names = {dim.name for dim in graph.dims}
    for dim in graph.dims:
        if dim in expressions:
            continue
        candidates = [_told(dim, extent, names) for extent in extents if extent.dims == {dim}]
        if not any(candidates):
            raise UsageError(
                f"dims: {dim.name} must be the size of an axis of an input, as in "
                f"{{0: {dim.name}}}, or a multiple of it, or (if it has no multiple_of) it plus a "
                "number; it appears only in other expressions"
            )
        expressions[dim] = next(each for each in candidates if each is not None)
    return expressions


def _told(dim: Dim, extent: Expression, names: Collection[str]) -> Expression | None:
    """Return `dim` as an expression of a new dim, which stands for factor * dim or dim + added."""
    line = line_of(extent)
    if line is None:
        return None
    _, factor, added = line
    name = f"{dim.name}_"
    while name in names:
        name += "_"
    if added == 0:
        every = factor * dim.multiple_of
        return Dim(name, min=factor * dim.min, max=factor * dim.max, multiple_of=every) // factor
    if factor == dim.multiple_of == 1:
        return Dim(name, min=dim.min + added, max=dim.max + added) - added
    return None
