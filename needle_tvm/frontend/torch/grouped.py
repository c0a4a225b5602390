"""Groups of rows, as in a mixture of experts: how many are in each, and matmuls with a matrix for
each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle.backend_ndarray.dtypes import HALVES
from needle_tvm._tvm.names import relax, te, tirx
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.nodes import extents_of

_op = relax.op


def grouped_mm(node: Any, importer: Any) -> Any:
    """Rows (S, K) times the matrix of their group (G, K, N). Group g ends before row `offsets[g]`
    (G,), and rows after the last group are 0.

    Each row reads the one matrix that it needs, so that experts without rows cost nothing.
    """
    given = [*torch_graph.bound(node.target, node.args, node.kwargs).values()]
    operands = [importer.env.get(each) for each in given[:3]]
    ranks = [0 if each is None else len(extents_of(each)) for each in operands]
    if any(each is not None for each in given[3:]) or ranks != [2, 3, 1]:
        raise ValueError(
            f"{node.target}: only rows (S, K) with matrices (G, K, N) and offsets (G,) are taken"
        )
    rows, matrices, offsets = operands
    builder, dtype = importer.block_builder, str(rows.ty.dtype)
    group = builder.emit_te(_groups, offsets, extents_of(rows)[0], primfunc_name_hint="groups")
    wide = "float32" if dtype in HALVES else dtype
    out = builder.emit_te(_product(wide), rows, matrices, group, primfunc_name_hint="grouped_mm")
    return builder.emit(_op.astype(out, dtype)) if wide != dtype else out


def _groups(offsets: te.Tensor, count: Any) -> te.Tensor:
    """The number of the group of each row, which is that of the groups that end before it."""
    each = te.reduce_axis((0, offsets.shape[0]), "group")
    one, zero = tirx.const(1, "int64"), tirx.const(0, "int64")

    def ended(row: Any) -> Any:
        end = tirx.Cast("int64", offsets[each])
        return te.sum(tirx.Select(end <= tirx.Cast("int64", row), one, zero), axis=each)

    return te.compute((count,), ended, name="groups")


def _product(dtype: str) -> Callable[..., te.Tensor]:
    """Sums of products in a dtype."""

    def product(rows: te.Tensor, matrices: te.Tensor, group: te.Tensor) -> te.Tensor:
        count, depth, width = matrices.shape
        k = te.reduce_axis((0, depth), "k")
        last = tirx.const(int(count) - 1, "int64")

        def element(row: Any, column: Any) -> Any:
            matrix = matrices[tirx.min(group[row], last), k, column]
            x, y = (tirx.Cast(dtype, each) for each in (rows[row, k], matrix))
            return te.sum(x * y, axis=k)

        found = te.compute((rows.shape[0], width), element, name="grouped_mm")
        zero = tirx.const(0, dtype)
        return te.compute(
            found.shape,
            lambda row, column: tirx.Select(group[row] <= last, found[row, column], zero),
            name="grouped",
        )

    return product


def histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """The number of elements in each of `bins` intervals of one width. Between equal bounds they
    are those of the elements; an element outside, and NaN, is not counted."""
    import torch

    x, low, high = x.reshape(-1), x.new_full((), min), x.new_full((), max)
    if min == max and x.shape[0]:
        low, high = x.amin(), x.amax()
    alone = low == high
    low, high = torch.where(alone, low - 1, low), torch.where(alone, high + 1, high)
    inside = (x >= low) & (x <= high)
    at = ((torch.where(inside, x, low) - low) * bins / (high - low)).long().clamp(0, bins - 1)
    counts = torch.zeros(bins, dtype=torch.int64).scatter_add(0, at, inside.long())
    return counts.to(x.dtype)


# By the names of the operators.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"histc.default": histogram}

# PyTorch's own operator, and that of transformers for other dtypes.
CONVERTERS: dict[str, Callable[[Any, Any], Any]] = dict.fromkeys(
    ("_grouped_mm.default", "grouped_mm_fallback.default"), grouped_mm
)
