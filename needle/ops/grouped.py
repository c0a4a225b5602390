"""Products of rows with the matrix of each row's group, as in a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, array
from ..backend_ndarray.dtypes import compute_dtype
from ..errors import ShapeError
from ..op import register
from ..op.samples import Arg, error, sample
from ..op.signatures import Expr, Gradients, TeNamespace, TeTensor
from ..sizes.extents import same
from . import _te
from ._arguments import check_tensors
from ._index import Index, check_index, positions
from .arange import arange
from .arithmetic import equal, where
from .matmul import matmul
from .reorder import swapaxes
from .shape import reshape, transpose


@register
class GroupedMatmul(Index):
    """y[s] = rows[s] @ matrices[group[s]], where rows is (S, K), matrices (G, K, N), group (S,)
    holds integers from 0 to G, and y is (S, N). Rows of group G give 0."""

    axis = 0

    samples = (
        sample((5, 3), (2, 3, 4), positions(5, high=2)),
        sample((4, 2), (3, 2, 1), positions(4, high=3, dtype="int32")),
        sample((0, 2), (2, 2, 3), positions(0, high=2)),
        sample((2, 0), (2, 0, 3), positions(2, high=2)),
    )
    error_samples = (
        error(ShapeError, r"\(5, 3\) and \(2, 4, 4\)", (5, 3), (2, 4, 4), positions(5)),
        error(ShapeError, r"group of shape \(4,\)", (5, 3), (2, 3, 4), positions(4)),
        error(TypeError, "the index is float32", (5, 3), (2, 3, 4), (5,)),
        error(TypeError, "float64", (5, 3), Arg((2, 3, 4), dtype="float64"), positions(5)),
        error(
            TypeError, "bool", Arg((1, 1), dtype="bool"), Arg((1, 1, 1), dtype="bool"), positions(1)
        ),
    )

    def infer(self, rows: Spec, matrices: Spec, group: Spec) -> Spec:
        fits = rows.ndim == 2 and matrices.ndim == 3 and same(rows.shape[1], matrices.shape[1])
        if not fits or same(matrices.shape[0], 0):
            raise ShapeError(
                f"{self.name}: rows and matrices of shapes {rows.shape} and {matrices.shape} must "
                "be (S, K) and (G, K, N), with G at least 1"
            )
        if group.shape != rows.shape[:1]:
            raise ShapeError(
                f"{self.name}: a group of shape {group.shape} must be (S,) for rows {rows.shape}"
            )
        check_index(self.name, group)
        if rows.dtype != matrices.dtype or rows.dtype == "bool":
            raise TypeError(
                f"{self.name}: rows are {rows.dtype} and matrices {matrices.dtype}; both must be "
                "of one dtype other than bool"
            )
        shape = (rows.shape[0], matrices.shape[2])
        return Spec(shape, rows.dtype, common_device(self.name, rows, matrices, group))

    def index_ranges(self, rows: Spec, matrices: Spec, group: Spec) -> dict[int, tuple[int, int]]:
        return {2: (0, matrices.shape[0])}

    def reduction_length(self, rows: Spec, matrices: Spec, group: Spec) -> int:
        return rows.shape[1]

    def reference(self, rows: np.ndarray, matrices: np.ndarray, group: np.ndarray) -> np.ndarray:
        if group.size and not (0 <= group.min() and group.max() <= len(matrices)):
            raise IndexError(f"{self.name}: a group is out of bounds for {len(matrices)} matrices")
        out = np.zeros((len(rows), matrices.shape[2]), rows.dtype)
        for number in np.unique(group[group < len(matrices)]):
            own = group == number
            out[own] = rows[own] @ matrices[number]
        return out

    def compute(self, rows: NDArray, matrices: NDArray, group: NDArray) -> NDArray:
        wide = compute_dtype(rows.dtype)
        given = rows.astype(wide, copy=False), matrices.astype(wide, copy=False), group
        with np.errstate(all="ignore"):
            out = self.reference(*(part.numpy() for part in given))
        return array(out, device=rows.device).astype(rows.dtype, copy=False)

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        rows, matrices, group = node.inputs
        to_rows = to_matrices = None
        if rows.requires_grad:
            to_rows = apply(self, (out_grad, swapaxes(matrices, 1, 2), group))
        if matrices.requires_grad:
            count = matrices.shape[0]
            number = reshape(arange(count, dtype=group.dtype, device=group.device), (count, 1, 1))
            own = where(equal(group, number), transpose(rows), 0)  # (G, K, S)
            to_matrices = matmul(own, out_grad)
        return to_rows, to_matrices, None

    def emit_te(
        self, k: TeNamespace, rows: TeTensor, matrices: TeTensor, group: TeTensor
    ) -> TeTensor:
        count, depth, width = matrices.shape
        shape = (rows.shape[0], width)
        if _te.is_zero(depth) or any(map(_te.is_zero, shape)):
            return k.te.compute(shape, lambda *_: _te.full_like(k, rows, 0))
        inner = k.te.reduce_axis((0, depth), name="k")

        def product(s: Expr, n: Expr) -> Expr:
            return k.te.sum(
                rows[s, inner] * matrices[self.at(k, group, (s,), count), inner, n], axis=[inner]
            )

        found = k.te.compute(shape, product, name="grouped_matmul")
        zero = _te.full_like(k, rows, 0)

        def chosen(s: Expr, n: Expr) -> Any:
            return k.tirx.if_then_else(k.tirx.Cast("int64", group[s]) < count, found[s, n], zero)

        return k.te.compute(shape, chosen, name="grouped")


def grouped_matmul(rows: Tensor, matrices: Tensor, group: Tensor) -> Tensor:
    """Return each of the `rows` (S, K) times the matrix of its group: (S, N). `matrices` is (G, K,
    N), and `group` (S,) holds integers from 0 to G. Rows of group G give 0.

    Raises IndexError for any other group. A compiled function checks the groups it is called with.

    >>> rows, matrices = ndl.ones(2, 3), ndl.ones(4, 3, 5)
    >>> ndl.ops.grouped_matmul(rows, matrices, ndl.Tensor([1, 4])).numpy()[:, 0].tolist()
    [3.0, 0.0]
    """
    check_tensors("grouped_matmul", rows=rows, matrices=matrices, group=group)
    return apply(GroupedMatmul(), (rows, matrices, group))
