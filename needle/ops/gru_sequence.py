"""All steps of a GRU over a sequence as one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, empty
from ..backend_ndarray.dtypes import compute_dtype
from ..errors import ShapeError
from ..node import Node
from ..op import Op, in_float32, register
from ..op_types import ArrayGradients, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec, common_device
from ..tensor import Tensor, TensorTuple
from . import _te
from ._gru_gates import gates_backward, gates_gradient
from ._steps import check_steps, emit_steps, state_before, steps_of
from .gru import GRU_GATES
from .reduce import summation
from .shape import reshape, transpose
from .tuples import split, stack

GRU_STEPS = "needle.gru_steps"  # annotates GruSequence's block, so that passes find it


@register
class GruSequence(Op):
    """(hidden, sums) of the T steps of a GRU: the state h' after each step (T, B, H) and the
    state's part of the gates' pre-activations (T, B, 3 H), h @ w + bias. projected (T, B, 3 H) is
    the input's part, h (B, H) the initial state, w (H, 3 H) and bias (3 H,) those of the state."""

    infer_first = True
    reads = frozenset({"inputs", 0, 1})
    samples = (
        sample((3, 2, 6), (2, 2), (2, 6), (6,)),
        sample((1, 1, 3), (1, 1), (1, 3), (3,)),
        sample((2, 0, 6), (0, 2), (2, 6), (6,)),
        sample((2, 3, 0), (3, 0), (0, 0), (0,)),
    )
    error_samples = (
        error(ShapeError, r"\(3, 2, 7\)", (3, 2, 7), (2, 2), (2, 6), (6,)),
        error(ShapeError, "at least one step", (0, 2, 6), (2, 2), (2, 6), (6,)),
        error(ShapeError, r"h of shape \(2, 1\)", (3, 2, 6), (2, 1), (2, 6), (6,)),
        error(ShapeError, r"w of shape \(6, 2\)", (3, 2, 6), (2, 2), (6, 2), (6,)),
        error(ShapeError, r"bias of shape \(2,\)", (3, 2, 6), (2, 2), (2, 6), (2,)),
        error(TypeError, "float64", (1, 1, 3), (1, 1), Arg((1, 3), dtype="float64"), (3,)),
    )

    def infer(self, projected: Spec, h: Spec, w: Spec, bias: Spec) -> tuple[Spec, ...]:
        steps, batch, hidden = steps_of(self.name, projected, 3)
        width = 3 * hidden
        expected = {"h": (h, (batch, hidden)), "w": (w, (hidden, width)), "bias": (bias, (width,))}
        check_steps(self.name, projected, expected)
        device = common_device(self.name, projected, h, w, bias)
        states = Spec((steps, batch, hidden), h.dtype, device)
        return states, Spec(projected.shape, h.dtype, device)

    def reduction_length(self, projected: Spec, h: Spec, w: Spec, bias: Spec) -> int:
        return projected.shape[0] * (h.shape[1] + 1)

    def reference(
        self, projected: np.ndarray, h: np.ndarray, w: np.ndarray, bias: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        steps = []
        for share in projected:
            sums = h @ w + bias
            h = GRU_GATES.reference(share, sums, h)
            steps.append((h, sums))
        return tuple(np.stack(parts) for parts in zip(*steps, strict=True))

    @in_float32
    def compute(
        self, projected: NDArray, h: NDArray, w: NDArray, bias: NDArray
    ) -> tuple[NDArray, ...]:
        steps, batch, width = projected.shape
        hidden = empty((steps, batch, width // 3), h.dtype, h.device)
        sums = empty(projected.shape, h.dtype, h.device)
        for t in range(steps):
            own = h @ w + bias
            h = GRU_GATES.compute(projected[t], own, h)
            hidden[t], sums[t] = h, own
        return hidden, sums

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> tuple[Tensor, ...]:
        projected, h, w, _ = node.inputs
        hidden, sums = (split(part, 0) for part in node)
        of_hidden, of_sums = (split(part, 0) for part in out_grad)
        inputs, back = split(projected, 0), transpose(w)
        to_h: Tensor | None = None
        before = [h, *list(hidden)[:-1]]
        to_inputs, to_states = [], []
        for t in reversed(range(projected.shape[0])):
            to_hidden = of_hidden[t] if to_h is None else of_hidden[t] + to_h
            of_inputs, of_states, kept = gates_gradient(to_hidden, inputs[t], sums[t], before[t])
            of_states = of_states + of_sums[t]
            to_h = kept + of_states @ back
            to_inputs.append(of_inputs)
            to_states.append(of_states)
        steps, batch, width = projected.shape
        rows = reshape(stack(to_states[::-1], 0), (steps * batch, width))
        to_w = transpose(reshape(stack(before, 0), (steps * batch, h.shape[1]))) @ rows
        return stack(to_inputs[::-1], 0), to_h, to_w, summation(rows, 0)  # type: ignore

    def backward(self, out_grad: tuple[NDArray | None, ...], node: Node) -> ArrayGradients:
        of_hidden, of_sums = out_grad
        projected, h, w, _ = node.saved
        if of_hidden is None or of_sums is not None or compute_dtype(h.dtype) != h.dtype:
            return NotImplemented
        hidden, sums = node.output
        back = w.permute((1, 0))
        steps, batch, width = projected.shape
        to_inputs, to_states = (empty(projected.shape, h.dtype, h.device) for _ in range(2))
        before = empty(hidden.shape, h.dtype, h.device)
        before[0] = h
        before[1:] = hidden[:-1]
        to_h = None
        for t in reversed(range(steps)):
            to_hidden = of_hidden[t] if to_h is None else of_hidden[t] + to_h
            of_inputs, of_states, kept = gates_backward(to_hidden, projected[t], sums[t], before[t])
            to_h = kept + of_states @ back
            to_inputs[t], to_states[t] = of_inputs, of_states
        rows = to_states.reshape((steps * batch, width))
        to_w = before.reshape((steps * batch, width // 3)).permute((1, 0)) @ rows
        return to_inputs, to_h, to_w, rows.sum(0)

    def emit_te(
        self, k: TeNamespace, projected: TeTensor, h: TeTensor, w: TeTensor, bias: TeTensor
    ) -> tuple[TeTensor, ...]:
        steps, batch, hidden = projected.shape[0], h.shape[0], h.shape[1]
        shapes = [(steps, batch, hidden), projected.shape]

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            projected, h, w, bias = ins
            hiddens, sums = outs
            with s.serial(0, steps) as t, s.serial(0, batch) as b:
                with s.serial(0, 3 * hidden) as j:
                    sums[t, b, j] = bias[j]
                    with s.serial(0, hidden) as unit:
                        share = state_before(k, hiddens, h, t, b, unit) * w[unit, j]
                        sums[t, b, j] = sums[t, b, j] + share
                with s.serial(0, hidden) as unit:
                    places = [gate * hidden + unit for gate in range(3)]
                    r, z = (
                        k.tirx.sigmoid(projected[t, b, place] + sums[t, b, place])
                        for place in places[:2]
                    )
                    n = _te.tanh_or_nan(k, projected[t, b, places[2]] + r * sums[t, b, places[2]])
                    hiddens[t, b, unit] = n + z * (state_before(k, hiddens, h, t, b, unit) - n)

        return emit_steps(k, self.name, GRU_STEPS, [projected, h, w, bias], shapes, write)


def gru_sequence(projected: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> TensorTuple:
    """(hidden, sums) of all steps of a GRU: projected (T, B, 3 H: r, z, n) is the input's part of
    the pre-activations, h (B, H) the initial state, w (H, 3 H) and bias (3 H,) make the state's
    part, `sums`. ShapeError if they do not match."""
    return apply(GruSequence(), (projected, h, w, bias))
