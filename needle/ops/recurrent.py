"""The elementwise part of one step of an LSTM."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.node import Node
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray, layers
from ..backend_ndarray.dtypes import is_floating
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import ArrayGradients, TeNamespace, TeTensor
from .elementwise import Sigmoid, Tanh, sigmoid, tanh
from .shape import reshape
from .tuples import split, stack


@register
class LstmGates(Op):
    """(h', c') of an LSTM step. `sums` (B, 4 H) are the pre-activations of the gates i, f, g, o
    side by side, and c (B, H) is the cell state: c' = sigmoid(f) * c + sigmoid(i) * tanh(g),
    h' = sigmoid(o) * tanh(c')."""

    infer_first = True
    reads = frozenset({"inputs", 1})
    samples = (
        sample((2, 12), (2, 3)),
        sample(Arg((3, 4), -20, 20), (3, 1)),
        sample((0, 8), (0, 2)),
        sample((2, 0), (2, 0)),
    )
    error_samples = (
        error(ShapeError, r"\(2, 12\).*\(2, 4\)", (2, 12), (2, 4)),
        error(ShapeError, r"\(2, 12\).*\(3, 3\)", (2, 12), (3, 3)),
        error(ShapeError, r"\(12,\)", (12,), (3,)),
        error(TypeError, "float64", Arg((2, 4), dtype="float32"), Arg((2, 1), dtype="float64")),
        error(TypeError, "int32", Arg((2, 4), dtype="int32"), Arg((2, 1), dtype="int32")),
    )

    def infer(self, sums: Spec, cell: Spec) -> tuple[Spec, ...]:
        shape = cell.shape
        if len(shape) != 2 or sums.shape != (shape[0], 4 * shape[1]):
            raise ShapeError(
                f"{self.name}: sums of shape {sums.shape} and a state of shape {shape}; they must "
                "be (B, 4 H) and (B, H)"
            )
        if sums.dtype != cell.dtype or not is_floating(sums.dtype):
            raise TypeError(
                f"{self.name}: sums are {sums.dtype} and the state {cell.dtype}; both must be of "
                "one floating dtype"
            )
        device = common_device(self.name, sums, cell)
        return (Spec(shape, cell.dtype, device),) * 2

    def reference(self, sums: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, ...]:
        i, f, g, o = np.split(sums, 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        following = f * cell + i * np.tanh(g)
        return o * np.tanh(following), following

    def compute(self, sums: NDArray, cell: NDArray) -> tuple[NDArray, ...]:
        return layers.lstm_gates(sums, cell)

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> tuple[Tensor, ...]:
        sums, cell = node.inputs
        return _gates_gradient(out_grad, sums, cell, node[1])

    def backward(self, out_grad: tuple[NDArray | None, ...], node: Node) -> ArrayGradients:
        sums, cell = node.saved
        return layers.lstm_gates_grad(sums, cell, node.output[1], *out_grad)

    def emit_te(self, k: TeNamespace, sums: TeTensor, cell: TeTensor) -> tuple[TeTensor, ...]:
        width = cell.shape[1]

        def gate(number: int, op: Op) -> TeTensor:
            part = k.te.compute(cell.shape, lambda b, j: sums[b, number * width + j])
            return op.emit_te(k, part)

        i, f, o = (gate(number, Sigmoid()) for number in (0, 1, 3))
        g = gate(2, Tanh())
        kept, added = k.topi.multiply(f, cell), k.topi.multiply(i, g)
        following = k.topi.add(kept, added)
        return k.topi.multiply(o, Tanh().emit_te(k, following)), following


def _gates_gradient(
    out_grad: Iterable[Tensor], sums: Tensor, cell: Tensor, following: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients for sums and cell from the gradients for (h', c' = following)."""
    of_hidden, of_following = out_grad
    i, f, g, o = split(reshape(sums, (cell.shape[0], 4, cell.shape[1])), 1)
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    t = tanh(following)
    of_cell = of_hidden * o * (1 - t * t) + of_following
    gates = [
        of_cell * g * i * (1 - i),
        of_cell * cell * f * (1 - f),
        of_cell * i * (1 - g * g),
        of_hidden * t * o * (1 - o),
    ]
    return reshape(stack(gates, 1), sums.shape), of_cell * f


LSTM_GATES = LstmGates()


def lstm_gates(sums: Tensor, cell: Tensor) -> TensorTuple:
    """Return (h', c') of an LSTM step from `sums` (B, 4 H), the pre-activations of the gates i, f,
    g, o, and the state `cell` (B, H). Raises ShapeError if the shapes do not match."""
    return apply(LSTM_GATES, (sums, cell))
