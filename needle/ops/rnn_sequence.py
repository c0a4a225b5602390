"""All steps of a plain RNN over a sequence as one op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..apply import apply
from ..backend_ndarray import NDArray, empty
from ..backend_ndarray.dtypes import compute_dtype, is_half
from ..errors import ShapeError
from ..node import Node
from ..op import Op, in_float32, register
from ..op_types import ArrayGradients, Expr, TeNamespace, TeTensor
from ..samples import Arg, error, sample
from ..spec import Spec, common_device
from ..tensor import Tensor
from . import _te
from ._steps import check_steps, emit_steps, state_before, steps_of
from .elementwise import cast
from .shape import reshape, transpose
from .tuples import concat, split, stack

NONLINEARITIES = ("tanh", "relu")
RNN_STEPS = {f: f"needle.rnn_{f}_steps" for f in NONLINEARITIES}  # annotate RnnSequence's block


@register
class RnnSequence(Op):
    """The state after each of the T steps of a plain RNN (T, B, H): h' = f(projected[t] + h @ w),
    f by `nonlinearity`. projected (T, B, H) is the input's part with all biases, h (B, H) the
    initial state, w (H, H) its weight."""

    nonlinearity: str = "tanh"

    infer_first = True
    reads = frozenset({"inputs", "output"})
    samples = (
        sample((3, 2, 2), (2, 2), (2, 2)),
        sample((3, 2, 2), (2, 2), (2, 2), nonlinearity="relu"),
        sample((1, 1, 1), (1, 1), (1, 1)),
        sample((2, 0, 2), (0, 2), (2, 2)),
        sample((2, 3, 0), (3, 0), (0, 0)),
    )
    error_samples = (
        error(ShapeError, "at least one step", (0, 2, 2), (2, 2), (2, 2)),
        error(ShapeError, r"h of shape \(2, 1\)", (3, 2, 2), (2, 1), (2, 2)),
        error(ShapeError, r"w of shape \(2, 3\)", (3, 2, 2), (2, 2), (2, 3)),
        error(TypeError, "float64", (1, 1, 1), (1, 1), Arg((1, 1), dtype="float64")),
        error(ValueError, "'elu'", (1, 1, 1), (1, 1), (1, 1), nonlinearity="elu"),
    )

    def infer(self, projected: Spec, h: Spec, w: Spec) -> Spec:
        if self.nonlinearity not in NONLINEARITIES:
            known = " or ".join(map(repr, NONLINEARITIES))
            raise ValueError(f"{self.name}: nonlinearity {self.nonlinearity!r} is not {known}")
        steps, batch, hidden = steps_of(self.name, projected, 1)
        expected = {"h": (h, (batch, hidden)), "w": (w, (hidden, hidden))}
        check_steps(self.name, projected, expected)
        return Spec((steps, batch, hidden), h.dtype, common_device(self.name, projected, h, w))

    def reduction_length(self, projected: Spec, h: Spec, w: Spec) -> int:
        return projected.shape[0] * (h.shape[1] + 1)

    def reference(self, projected: np.ndarray, h: np.ndarray, w: np.ndarray) -> np.ndarray:
        states = []
        for share in projected:
            sums = share + h @ w
            h = np.tanh(sums) if self.nonlinearity == "tanh" else np.maximum(sums, 0)
            states.append(h)
        return np.stack(states)

    @in_float32
    def compute(self, projected: NDArray, h: NDArray, w: NDArray) -> NDArray:
        hidden = empty(projected.shape, h.dtype, h.device)
        for t in range(projected.shape[0]):
            sums = projected[t] + h @ w
            h = sums.tanh() if self.nonlinearity == "tanh" else sums.relu()
            hidden[t] = h
        return hidden

    def gradient(self, out_grad: Tensor, node: Tensor) -> tuple[Tensor, ...]:
        _, h, w = node.inputs
        if not is_half(node.dtype):
            return self._gradient(out_grad, node, h, w)
        # Of a state near 1 a half keeps too little for the slope 1 - h^2: states in float32.
        projected, h, w = (cast(each, "float32") for each in node.inputs)
        found = self._gradient(cast(out_grad, "float32"), apply(self, (projected, h, w)), h, w)
        return tuple(cast(each, node.dtype) for each in found)

    def _gradient(self, out_grad: Tensor, node: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        back, steps = transpose(w), node.shape[0]
        states, of_states = split(node, 0), split(out_grad, 0)
        to_h: Tensor | None = None
        shares = []
        for t in reversed(range(steps)):
            to_state = of_states[t] if to_h is None else of_states[t] + to_h
            share = self._through(to_state, states[t])
            to_h = share @ back
            shares.append(share)
        to_projected = stack(shares[::-1], 0)
        before = concat([reshape(h, (1, *h.shape)), node[:-1]], 0)
        rows = (steps * h.shape[0], h.shape[1])
        to_w = transpose(reshape(before, rows)) @ reshape(to_projected, rows)
        return to_projected, to_h, to_w  # type: ignore[return-value]

    def _through(self, to_state: Tensor, state: Tensor) -> Tensor:
        """The gradient for a step's sums from that for its state."""
        if self.nonlinearity == "tanh":
            return to_state * (1 - state * state)
        return to_state * (state > 0)

    def backward(self, out_grad: NDArray, node: Node) -> ArrayGradients:
        projected, h, w = node.saved
        hidden = node.output
        if compute_dtype(h.dtype) != h.dtype:
            return NotImplemented
        steps, back = projected.shape[0], w.permute((1, 0))
        to_projected = empty(projected.shape, h.dtype, h.device)
        before = empty(projected.shape, h.dtype, h.device)
        before[0] = h
        before[1:] = hidden[:-1]
        slopes = 1 - hidden * hidden if self.nonlinearity == "tanh" else None
        to_h = None
        for t in reversed(range(steps)):
            to_state = out_grad[t] if to_h is None else out_grad[t] + to_h
            share = to_state.relu_grad(hidden[t]) if slopes is None else to_state * slopes[t]
            to_h = share @ back
            to_projected[t] = share
        rows = (steps * h.shape[0], h.shape[1])
        to_w = before.reshape(rows).permute((1, 0)) @ to_projected.reshape(rows)
        return to_projected, to_h, to_w

    def emit_te(self, k: TeNamespace, projected: TeTensor, h: TeTensor, w: TeTensor) -> TeTensor:
        steps, batch, hidden = projected.shape[0], h.shape[0], h.shape[1]
        dtype = _te.dtype_of(projected)

        def function(x: Expr) -> Expr:
            if self.nonlinearity == "relu":
                return k.tirx.max(k.tirx.const(0, dtype), x)  # in this order NaN survives
            return _te.tanh_or_nan(k, x)

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            projected, h, w = ins
            (hiddens,) = outs
            with s.serial(0, steps) as t, s.serial(0, batch) as b, s.serial(0, hidden) as j:
                hiddens[t, b, j] = projected[t, b, j]
                with s.serial(0, hidden) as unit:
                    share = state_before(k, hiddens, h, t, b, unit) * w[unit, j]
                    hiddens[t, b, j] = hiddens[t, b, j] + share
                hiddens[t, b, j] = function(hiddens[t, b, j])

        mark, operands = RNN_STEPS[self.nonlinearity], [projected, h, w]
        return emit_steps(k, self.name, mark, operands, [projected.shape], write)[0]


def rnn_sequence(projected: Tensor, h: Tensor, w: Tensor, nonlinearity: str = "tanh") -> Tensor:
    """The states after all steps of a plain RNN (T, B, H): projected (T, B, H) is the input's part
    of the sums with all biases, h (B, H) the initial state, w (H, H) its weight; `nonlinearity` is
    "tanh" or "relu". ShapeError if they do not match, ValueError for another nonlinearity."""
    return apply(RnnSequence(nonlinearity), (projected, h, w))
