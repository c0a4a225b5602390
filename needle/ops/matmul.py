"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Spec, broadcast_shapes, common_device
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.dtypes import result_type
from ..errors import ShapeError
from ..op import Op, register, unbroadcast
from ..op.samples import error, sample
from ..op.signatures import ArrayGradients, Expr, Extent, Gradients, TeNamespace, TeTensor
from . import _te
from .shape import reshape, transpose


@register
class Matmul(Op):
    """y = a @ b with NumPy's rules: leading axes broadcast, 1-d operands are vectors."""

    reads = frozenset({"inputs"})
    reference = np.matmul
    samples = (
        sample((2, 3), (3, 4)),
        sample((1, 5), (5, 1)),
        sample((2, 3, 4), (4, 5)),
        sample((2, 3, 4), (2, 4, 5)),
        sample((3, 4), (2, 4, 5)),
        sample((2, 1, 3, 4), (3, 4, 2)),
        sample((4,), (4, 3)),
        sample((3, 4), (4,)),
        sample((4,), (4,)),
        sample((2, 3, 4), (4,)),
        sample((0, 3), (3, 2)),
        sample((2, 0), (0, 3)),
    )
    error_samples = (
        error(ShapeError, r"matmul: .*\(2, 3\).*\(4, 5\).*3 and 4", (2, 3), (4, 5)),
        error(ShapeError, "broadcast", (2, 3, 4), (3, 4, 5)),
        error(ShapeError, "0-d", (), (3, 4)),
    )

    def infer(self, a: Spec, b: Spec) -> Spec:
        device = common_device(self.name, a, b)
        dtype = result_type(a.dtype, b.dtype)
        left, right = a.shape, b.shape
        if not left or not right:
            raise ShapeError(
                f"{self.name}: shapes {left} and {right}: an operand is 0-d; multiply it with *"
            )
        inner = left[-1], right[-2] if len(right) > 1 else right[0]
        if inner[0] != inner[1]:
            raise ShapeError(
                f"{self.name}: shapes {left} and {right} do not match: the last axis of the first "
                f"and the second to last of the second have extents {inner[0]} and {inner[1]}"
            )
        shape = broadcast_shapes(self.name, left[:-2], right[:-2])
        return Spec((*shape, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())), dtype, device)

    def reduction_length(self, a: Spec, b: Spec) -> int:
        return a.shape[-1]

    def compute(self, a: NDArray, b: NDArray) -> NDArray:
        return a @ b

    def gradient(self, out_grad: Tensor, node: Tensor) -> Gradients:
        a, b = node.inputs
        left, right = a.shape, b.shape
        # Treat vectors as matrices of one row or column.
        if len(left) == 1:
            a = reshape(a, (1, *left))
        if len(right) == 1:
            b = reshape(b, (*right, 1))
        batch = broadcast_shapes(self.name, a.shape[:-2], b.shape[:-2])
        grad = reshape(out_grad, (*batch, a.shape[-2], b.shape[-1]))
        grads: list[Tensor | None] = [None, None]
        if node.inputs[0].requires_grad:
            grads[0] = reshape(unbroadcast(grad @ transpose(b), a), left)
        if node.inputs[1].requires_grad:
            if b.ndim == 2 and a.ndim > 2:
                # One matmul instead of one per matrix of the batch and a sum of the results.
                rows = prod(a.shape[:-1])
                a = reshape(a, (rows, a.shape[-1]))
                grad = reshape(grad, (rows, grad.shape[-1]))
            grads[1] = reshape(unbroadcast(transpose(a) @ grad, b), right)
        return tuple(grads)

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        (a, b), (to_a, to_b) = node.saved, [n.requires_grad for n in node.input_nodes]
        if a.dtype != b.dtype or a.ndim < 2 or b.ndim < 2:
            return NotImplemented
        if b.ndim > 2:
            if a.shape[:-2] != b.shape[:-2]:
                return NotImplemented
            rows, grad = a, out_grad
        else:
            rows = a.reshape((prod(a.shape[:-1]), a.shape[-1]))
            grad = out_grad.reshape((rows.shape[0], b.shape[1]))
        return (
            (out_grad @ _transposed(b)) if to_a else None,
            (_transposed(rows) @ grad) if to_b else None,
        )

    def emit_te(self, k: TeNamespace, a: TeTensor, b: TeTensor) -> TeTensor:
        dtype = _te.result(a, b)
        a, b = _te.without_bool(k, a, b)
        rows, columns = len(a.shape) > 1, len(b.shape) > 1
        batch = max(len(a.shape), len(b.shape), 2) - 2
        inner = k.te.reduce_axis((0, a.shape[-1]), name="k")
        shape: list[Extent] = [1] * batch
        for x in (a, b):
            for i, n in enumerate(x.shape[:-2], batch - max(len(x.shape) - 2, 0)):
                shape[i] = shape[i] if _te.is_one(n) else n
        shape += [*([a.shape[-2]] if rows else []), *([b.shape[-1]] if columns else [])]

        def at(x: TeTensor, index: Sequence[Expr], tail: Sequence[Expr]) -> Expr:
            lead = x.shape[:-2] if len(x.shape) > 1 else []
            own = index[batch - len(lead) : batch]
            first = [0 if _te.is_one(n) else i for n, i in zip(lead, own, strict=True)]
            return x(*first, *tail)

        def body(*index: Expr) -> Expr:
            i = [index[batch]] if rows else []
            j = [index[-1]] if columns else []
            return k.te.sum(at(a, index, (*i, inner)) * at(b, index, (inner, *j)), axis=inner)

        if _te.is_zero(a.shape[-1]):  # TVM's reduction would write nothing
            return _te.cast(k, k.te.compute(shape, lambda *_: _te.full_like(k, a, 0)), dtype)
        return _te.cast(k, k.te.compute(shape, body, name="matmul"), dtype)

    def emit(self, r: ModuleType, a: Expr, b: Expr) -> Expr | None:
        return _te.same_number(r, a, b) and r.op.matmul(a, b)


def _transposed(x: NDArray) -> NDArray:
    return x.permute((*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


MATMUL = Matmul()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b with NumPy's rules: the last two axes are matrices, the others broadcast. Raises
    ShapeError if the inner extents differ.

    >>> ndl.matmul(ndl.ones(5, 2, 3), ndl.ones(3, 4)).shape
    (5, 2, 4)
    """
    return apply(MATMUL, (a, b))
