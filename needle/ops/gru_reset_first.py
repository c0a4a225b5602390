"""All steps of a GRU whose reset gate comes before the product of the state, as one op.

Cho et al. 2014 have this form, and so have ONNX (linear_before_reset=0) and Keras
(reset_after=False). PyTorch's is `GruSequence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, empty
from ..errors import ShapeError
from ..op import Op, in_float32, register
from ..op_types import TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec, common_device
from ..tensor import Tensor, TensorTuple
from . import _te
from ._steps import check_steps, emit_steps, state_before, steps_of
from .elementwise import tanh
from .shape import reshape, transpose
from .tuples import concat, split, stack

GRU_RESET_STEPS = "needle.gru_reset_steps"  # annotates GruResetFirst's block


@register
class GruResetFirst(Op):
    """(hidden, gates) of the T steps of a GRU: the state h' after each step (T, B, H) and the gates
    r and z (T, B, 2 H). r, z = sigmoid(projected[t] + h @ w) of their columns, n =
    tanh(projected[t] + (r * h) @ w) of the others, h' = n + z * (h - n). projected (T, B, 3 H: r,
    z, n) is the input's part with all biases, h (B, H) the initial state, w (H, 3 H) its
    weight."""

    infer_first = True
    reads = frozenset({"inputs", 0, 1})
    samples = (
        sample((3, 2, 6), (2, 2), (2, 6)),
        sample((1, 1, 3), (1, 1), (1, 3)),
        sample((2, 0, 6), (0, 2), (2, 6)),
        sample((2, 3, 0), (3, 0), (0, 0)),
    )
    error_samples = (
        error(ShapeError, r"\(3, 2, 7\)", (3, 2, 7), (2, 2), (2, 6)),
        error(ShapeError, "at least one step", (0, 2, 6), (2, 2), (2, 6)),
        error(ShapeError, r"h of shape \(2, 1\)", (3, 2, 6), (2, 1), (2, 6)),
        error(ShapeError, r"w of shape \(6, 2\)", (3, 2, 6), (2, 2), (6, 2)),
        error(TypeError, "float64", (1, 1, 3), (1, 1), Arg((1, 3), dtype="float64")),
    )

    def infer(self, projected: Spec, h: Spec, w: Spec) -> tuple[Spec, ...]:
        steps, batch, hidden = steps_of(self.name, projected, 3)
        expected = {"h": (h, (batch, hidden)), "w": (w, (hidden, 3 * hidden))}
        check_steps(self.name, projected, expected)
        device = common_device(self.name, projected, h, w)
        states, gates = (steps, batch, hidden), (steps, batch, 2 * hidden)
        return Spec(states, h.dtype, device), Spec(gates, h.dtype, device)

    def reduction_length(self, projected: Spec, h: Spec, w: Spec) -> int:
        return projected.shape[0] * (2 * h.shape[1] + 1)

    def reference(
        self, projected: np.ndarray, h: np.ndarray, w: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        width = h.shape[1]
        steps = []
        for share in projected:
            gates = 1 / (1 + np.exp(-(share[:, : 2 * width] + h @ w[:, : 2 * width])))
            kept = gates[:, :width] * h
            n = np.tanh(share[:, 2 * width :] + kept @ w[:, 2 * width :])
            h = n + gates[:, width:] * (h - n)
            steps.append((h, gates))
        return tuple(np.stack(parts) for parts in zip(*steps, strict=True))

    @in_float32
    def compute(self, projected: NDArray, h: NDArray, w: NDArray) -> tuple[NDArray, ...]:
        steps, batch, width = projected.shape
        width //= 3
        hidden = empty((steps, batch, width), h.dtype, h.device)
        gates = empty((steps, batch, 2 * width), h.dtype, h.device)
        of_gates, of_new = w[:, : 2 * width].compact(), w[:, 2 * width :].compact()
        for t in range(steps):
            own = (projected[t][:, : 2 * width] + h @ of_gates).sigmoid()
            n = (projected[t][:, 2 * width :] + (own[:, :width] * h) @ of_new).tanh()
            h = n + own[:, width:] * (h - n)
            hidden[t], gates[t] = h, own
        return hidden, gates

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> tuple[Tensor, ...]:
        projected, h, w = node.inputs
        hidden, gates = node
        of_hidden, of_gates = (split(part, 0) for part in out_grad)
        steps, batch, width = projected.shape
        width //= 3
        before = concat([reshape(h, (1, *h.shape)), hidden[:-1]], 0)
        kept = gates[:, :, :width] * before  # r * h, of all steps
        new = tanh(projected[:, :, 2 * width :] + kept @ w[:, 2 * width :])
        back, back_new = transpose(w[:, : 2 * width]), transpose(w[:, 2 * width :])
        parts = [split(x, 0) for x in (before, new, gates)]
        to_h: Tensor | None = None
        shares = []
        for t in reversed(range(steps)):
            state, n, both = (part[t] for part in parts)
            r, z = both[:, :width], both[:, width:]
            to_state = of_hidden[t] if to_h is None else of_hidden[t] + to_h
            of_n = to_state * (1 - z) * (1 - n * n)
            of_kept = of_n @ back_new
            of_both = concat([of_kept * state, to_state * (state - n)], 1) + of_gates[t]
            of_both = of_both * both * (1 - both)
            to_h = to_state * z + of_kept * r + of_both @ back
            shares.append(concat([of_both, of_n], 1))
        to_projected = stack(shares[::-1], 0)
        rows = reshape(to_projected, (steps * batch, 3 * width))
        states, resets = (reshape(x, (steps * batch, width)) for x in (before, kept))
        to_w = concat(
            [
                transpose(states) @ rows[:, : 2 * width],
                transpose(resets) @ rows[:, 2 * width :],
            ],
            1,
        )
        return to_projected, to_h, to_w  # type: ignore[return-value]

    def emit_te(
        self, k: TeNamespace, projected: TeTensor, h: TeTensor, w: TeTensor
    ) -> tuple[TeTensor, ...]:
        steps, batch, hidden = projected.shape[0], h.shape[0], h.shape[1]
        shapes = [(steps, batch, hidden), (steps, batch, 2 * hidden)]

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            projected, h, w = ins
            hiddens, gates = outs
            with s.serial(0, steps) as t, s.serial(0, batch) as b:
                with s.serial(0, 2 * hidden) as j:
                    gates[t, b, j] = projected[t, b, j]
                    with s.serial(0, hidden) as unit:
                        share = state_before(k, hiddens, h, t, b, unit) * w[unit, j]
                        gates[t, b, j] = gates[t, b, j] + share
                    gates[t, b, j] = k.tirx.sigmoid(gates[t, b, j])
                with s.serial(0, hidden) as j:
                    hiddens[t, b, j] = projected[t, b, 2 * hidden + j]
                    with s.serial(0, hidden) as unit:
                        kept = gates[t, b, unit] * state_before(k, hiddens, h, t, b, unit)
                        hiddens[t, b, j] = hiddens[t, b, j] + kept * w[unit, 2 * hidden + j]
                    n = _te.tanh_or_nan(k, hiddens[t, b, j])
                    change = state_before(k, hiddens, h, t, b, j) - n
                    hiddens[t, b, j] = n + gates[t, b, hidden + j] * change

        return emit_steps(k, self.name, GRU_RESET_STEPS, [projected, h, w], shapes, write)


def gru_reset_first(projected: Tensor, h: Tensor, w: Tensor) -> TensorTuple:
    """(hidden, gates) of all steps of a GRU that resets the state before its product: projected
    (T, B, 3 H: r, z, n) is the input's part of the pre-activations with all biases, h (B, H) the
    initial state, w (H, 3 H) its weight. hidden (T, B, H) are the states after each step, gates
    (T, B, 2 H) r and z. ShapeError if they do not match."""
    return apply(GruResetFirst(), (projected, h, w))
