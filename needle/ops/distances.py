"""Distances between the rows of matrices."""

from __future__ import annotations

from ..autograd.tensor import Tensor
from ..backend_ndarray.arguments import not_negative
from ..errors import ShapeError
from ._arguments import check_tensors
from .composed import clip
from .matmul import matmul
from .movement import unsqueeze
from .reduce import summation
from .reductions import _root, norm
from .shape import transpose

_FEW = 25  # with more rows, distances come from products, not differences, as in PyTorch


def cdist(a: Tensor, b: Tensor, p: float = 2.0) -> Tensor:
    """Return the p-norms (..., n, m) of the differences between each row of `a` (..., n, d) and
    each row of `b` (..., m, d). The axes before the last two broadcast.

    `p` may be 0 (the number of elements that differ) or infinite (the largest difference). The
    gradient of a distance of 0 is 0. Euclidean distances of more than 25 rows are computed from
    products; their rounding errors are relative to the rows' norms, not to the distance. Raises
    ShapeError for other shapes, ValueError for a negative `p`.

    >>> ndl.cdist(ndl.tensor([[0.0, 0.0], [3.0, 4.0]]), ndl.tensor([[0.0, 0.0]])).tolist()
    [[0.0], [5.0]]
    """
    check_tensors("cdist", a=a, b=b)
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(f"cdist: shapes {a.shape} and {b.shape} are not (..., n, d), (..., m, d)")
    p = p if p == float("inf") else not_negative("cdist", "p", p)
    if p == 2 and (a.shape[-2] > _FEW or b.shape[-2] > _FEW):
        squares = summation(a * a, -1, keepdims=True) + unsqueeze(summation(b * b, -1), -2)
        squares = squares - matmul(a, transpose(b)) * 2.0
        return _root(clip(squares, 0), 2)
    return norm(unsqueeze(a, -2) - unsqueeze(b, -3), p, -1)
