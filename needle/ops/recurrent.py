"""Two LSTM ops: the elementwise part of one step, and all steps of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, layers
from ..backend_ndarray.dtypes import is_floating
from ..errors import ShapeError
from ..node import Node
from ..op import Op, register
from ..op_types import ArrayGradients, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec, common_device
from ..tensor import Tensor, TensorTuple
from . import _te
from ._steps import check_steps, emit_steps, state_before, steps_of
from .elementwise import Sigmoid, Tanh, sigmoid, tanh
from .shape import reshape, transpose
from .tuples import split, stack


@register
class LstmGates(Op):
    """(h', c') of an LSTM step from sums (B, 4 H), the pre-activations of gates i, f, g, o side by
    side, and cell state c (B, H): c' = sigmoid(f) * c + sigmoid(i) * tanh(g), h' = sigmoid(o) *
    tanh(c')."""

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
    """The gradients for sums and cell from those of (h', c' = following)."""
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


LSTM_STEPS = "needle.lstm_steps"  # annotates LstmSequence's block, so that passes find it


@register
class LstmSequence(Op):
    """(hidden, cells, sums) of the T steps of an LSTM: the states h' and c' after each step
    (T, B, H) and the gates' pre-activations (T, B, 4 H). projected (T, B, 4 H) is the input's part
    of the pre-activations, h and c (B, H) are the initial states, w (H, 4 H) is the weight of h."""

    infer_first = True
    reads = frozenset({"inputs", 0, 1, 2})
    samples = (
        sample((3, 2, 8), (2, 2), (2, 2), (2, 8)),
        sample((1, 1, 4), (1, 1), (1, 1), (1, 4)),
        sample((2, 0, 8), (0, 2), (0, 2), (2, 8)),
        sample((2, 3, 0), (3, 0), (3, 0), (0, 0)),
    )
    error_samples = (
        error(ShapeError, r"\(3, 2, 9\)", (3, 2, 9), (2, 2), (2, 2), (2, 8)),
        error(ShapeError, "at least one step", (0, 2, 8), (2, 2), (2, 2), (2, 8)),
        error(ShapeError, r"c of shape \(2, 1\)", (3, 2, 8), (2, 2), (2, 1), (2, 8)),
        error(ShapeError, r"w of shape \(8, 2\)", (3, 2, 8), (2, 2), (2, 2), (8, 2)),
        error(TypeError, "float64", (1, 1, 4), (1, 1), (1, 1), Arg((1, 4), dtype="float64")),
    )

    def infer(self, projected: Spec, h: Spec, c: Spec, w: Spec) -> tuple[Spec, ...]:
        steps, batch, hidden = steps_of(self.name, projected, 4)
        state = batch, hidden
        expected = {"h": (h, state), "c": (c, state), "w": (w, (hidden, 4 * hidden))}
        check_steps(self.name, projected, expected)
        device = common_device(self.name, projected, h, c, w)
        states = Spec((steps, *state), h.dtype, device)
        return states, states, Spec(projected.shape, h.dtype, device)

    def reduction_length(self, projected: Spec, h: Spec, c: Spec, w: Spec) -> int:
        return projected.shape[0] * (h.shape[1] + 1)

    def reference(
        self, projected: np.ndarray, h: np.ndarray, c: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        steps = []
        for share in projected:
            sums = share + h @ w
            h, c = LSTM_GATES.reference(sums, c)
            steps.append((h, c, sums))
        return tuple(np.stack(parts) for parts in zip(*steps, strict=True))

    def compute(
        self, projected: NDArray, h: NDArray, c: NDArray, w: NDArray
    ) -> tuple[NDArray, ...]:
        return layers.lstm_sequence(projected, h, c, w)

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> tuple[Tensor, ...]:
        projected, h, c, w = node.inputs
        hidden, cells, sums = (split(part, 0) for part in node)
        of_hidden, of_cells, of_sums = (split(part, 0) for part in out_grad)
        to_h, to_c, to_w, shares = 0 * h, 0 * c, 0 * w, []
        for t in reversed(range(projected.shape[0])):
            before = (hidden[t - 1], cells[t - 1]) if t else (h, c)
            to_gates = of_hidden[t] + to_h, of_cells[t] + to_c
            share, to_c = _gates_gradient(to_gates, sums[t], before[1], cells[t])
            share = share + of_sums[t]
            to_h, to_w = share @ transpose(w), to_w + transpose(before[0]) @ share
            shares.append(share)
        return stack(shares[::-1], 0), to_h, to_c, to_w

    def backward(self, out_grad: tuple[NDArray | None, ...], node: Node) -> ArrayGradients:
        if out_grad[2] is not None:
            return NotImplemented
        _, h, c, w = node.saved
        return layers.lstm_sequence_grad(h, c, w, node.output, *out_grad[:2])

    def emit_te(
        self, k: TeNamespace, projected: TeTensor, h: TeTensor, c: TeTensor, w: TeTensor
    ) -> tuple[TeTensor, ...]:
        steps, batch, hidden = projected.shape[0], h.shape[0], h.shape[1]
        shapes = [(steps, batch, hidden), (steps, batch, hidden), projected.shape]

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            projected, h, c, w = ins
            hiddens, cells, sums = outs
            with s.serial(0, steps) as t, s.serial(0, batch) as b:
                with s.serial(0, 4 * hidden) as j:
                    sums[t, b, j] = projected[t, b, j]
                    with s.serial(0, hidden) as unit:
                        share = state_before(k, hiddens, h, t, b, unit) * w[unit, j]
                        sums[t, b, j] = sums[t, b, j] + share
                with s.serial(0, hidden) as unit:
                    i, f, g, o = (sums[t, b, gate * hidden + unit] for gate in range(4))
                    kept = k.tirx.sigmoid(f) * state_before(k, cells, c, t, b, unit)
                    cells[t, b, unit] = kept + k.tirx.sigmoid(i) * _te.tanh_or_nan(k, g)
                    exposed = _te.tanh_or_nan(k, cells[t, b, unit])
                    hiddens[t, b, unit] = k.tirx.sigmoid(o) * exposed

        return emit_steps(k, self.name, LSTM_STEPS, [projected, h, c, w], shapes, write)


LSTM_GATES = LstmGates()


def lstm_gates(sums: Tensor, cell: Tensor) -> TensorTuple:
    """(h', c') of an LSTM step from its gates' pre-activations `sums` (B, 4 H: i, f, g, o) and its
    cell state (B, H). ShapeError if they do not match."""
    return apply(LSTM_GATES, (sums, cell))


def lstm_sequence(projected: Tensor, h: Tensor, c: Tensor, w: Tensor) -> TensorTuple:
    """(hidden, cells, sums) of all steps of an LSTM: projected (T, B, 4 H: i, f, g, o) is the
    input's part of the pre-activations `sums`, h and c (B, H) are the initial states, w (H, 4 H) is
    the weight of h. ShapeError if they do not match."""
    return apply(LstmSequence(), (projected, h, c, w))
