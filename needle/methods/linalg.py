"""Methods of Tensor for linear algebra. binding.py binds them; needle.ops and needle.linalg
document their results and errors."""

# mypy: disable-error-code="misc"
# Each `self` is an instance of the class that the function is bound to.

from __future__ import annotations

from typing import Any

from .. import linalg
from ..autograd.shapes import Axes
from ..autograd.tensor import Tensor
from . import unchecked_ops as ops


class LinalgMethods:
    """Methods of Tensor with PyTorch's names."""

    mm = mv = ops.matmul

    def addmm(
        self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        return ops.addmm(self, mat1, mat2, beta=beta, alpha=alpha)

    def bmm(self: Tensor, other: Tensor) -> Tensor:
        return ops.bmm(self, other)

    def outer(self: Tensor, other: Tensor) -> Tensor:
        return ops.outer(self, other)

    def dot(self: Tensor, other: Tensor) -> Tensor:
        return ops.dot(self, other)

    def kron(self: Tensor, other: Tensor) -> Tensor:
        return ops.kron(self, other)

    def trace(self: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        return ops.trace(self, offset, axis1, axis2)

    def cross(self: Tensor, other: Tensor, axis: int = -1) -> Tensor:
        return ops.cross(self, other, axis)

    def norm(self: Tensor, ord: float = 2, axes: Axes = None, keepdims: bool = False) -> Tensor:
        return ops.norm(self, ord, axes, keepdims)

    def inverse(self: Tensor) -> Tensor:
        """Return `needle.linalg.inv` of this tensor."""
        return linalg.inv(self)

    def pinverse(self: Tensor, rtol: float | None = None) -> Tensor:
        """Return `needle.linalg.pinv` of this tensor, with the same `rtol`."""
        return linalg.pinv(self, rtol)

    def cholesky(self: Tensor, upper: bool = False) -> Tensor:
        """Return `needle.linalg.cholesky` of this tensor, with the same `upper`."""
        return linalg.cholesky(self, upper)

    def det(self: Tensor) -> Tensor:
        """Return `needle.linalg.det` of this tensor."""
        return linalg.det(self)

    def slogdet(self: Tensor) -> Any:
        """Return `needle.linalg.slogdet` of this tensor."""
        return linalg.slogdet(self)

    def matrix_power(self: Tensor, n: int) -> Tensor:
        """Return `needle.linalg.matrix_power` of this tensor: its `n`-th power."""
        return linalg.matrix_power(self, n)
