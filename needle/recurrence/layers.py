"""The usual recurrent layers over a sequence: an LSTM, a GRU and a plain RNN as scans.

Their cells are fixed bodies, because in eager code tracing a cell would take longer than running a
short sequence. The scanned sequence is the input's contribution to the gates' pre-activations,
which is computed for all steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, empty, full, layers
from ..backend_ndarray.dtypes import is_half
from ..op import Op
from ..op.subgraph import Body, Step
from ..ops._loop_rules import RULES
from ..ops.arithmetic import Add
from ..ops.elementwise import Relu, Tanh, cast
from ..ops.gru import GruGates
from ..ops.matmul import Matmul
from ..ops.recurrent import LstmGates
from ..ops.tuples import TupleGetItem
from .execution import run


def _body(shapes: Sequence[tuple[int, ...]], *steps: Step, outputs: tuple[int, ...]) -> Body:
    return Body(tuple([Spec(shape, "float32") for shape in shapes]), steps, outputs)


# Inputs: hidden state, cell state, the input's contribution, the weight. The batch and state size
# are 1.
LSTM = _body(
    [(1, 1), (1, 1), (1, 4), (1, 4)],
    Step(Matmul(), (0, 3)),
    Step(Add(), (2, 4)),
    Step(LstmGates(), (5, 1)),
    Step(TupleGetItem(0), (6,)),
    Step(TupleGetItem(1), (6,)),
    outputs=(7, 8, 7, 8),
)
# Inputs: the state, the input's contribution, the weight, the bias of the state's contribution.
GRU = _body(
    [(1, 1), (1, 3), (1, 3), (3,)],
    Step(Matmul(), (0, 2)),
    Step(Add(), (4, 3)),
    Step(GruGates(), (1, 5, 0)),
    outputs=(6, 6),
)


def _rnn(nonlinearity: Op) -> Body:
    """Return the body of a plain RNN with the inputs state, input's contribution, and weight."""
    steps = Step(Matmul(), (0, 2)), Step(Add(), (1, 3)), Step(nonlinearity, (4,))
    return _body([(1, 1), (1, 1), (1, 1)], *steps, outputs=(5, 5))


RNN = {"tanh": _rnn(Tanh()), "relu": _rnn(Relu())}


def lstm(
    projected: Tensor, h: Tensor, c: Tensor, w: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run an LSTM. Return (the hidden states of all steps (T, B, H), the cell states of all steps,
    the last hidden state (B, H), the last cell state).

    `projected` (T, B, 4 H: i, f, g, o) is the input's contribution to the gates' pre-activations
    with all biases, `h` and `c` (B, H) are the initial states, `w` (H, 4 H) is the weight of h.
    With `reverse`, the loop starts with the last step.
    """
    last, last_cell, hidden, cells = _layer(LSTM, [h, c, projected, w], 2, reverse)
    return hidden, cells, last, last_cell


def gru(
    projected: Tensor, h: Tensor, w: Tensor, bias: Tensor, *, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """Run a GRU. Return (the hidden states of all steps (T, B, H), the last hidden state).

    `projected` (T, B, 3 H: r, z, n) is the input's contribution to the pre-activations and
    `h` (B, H) the initial state; `w` (H, 3 H) and `bias` (3 H,) give the state's contribution. With
    `reverse`, the loop starts with the last step.
    """
    last, hidden = _layer(GRU, [h, projected, w, bias], 1, reverse)
    return hidden, last


def rnn(
    projected: Tensor, h: Tensor, w: Tensor, *, nonlinearity: str, reverse: bool = False
) -> tuple[Tensor, Tensor]:
    """Run a plain RNN. Return (the hidden states of all steps (T, B, H), the last hidden state).

    `projected` (T, B, H) is the input's contribution with all biases, `h` (B, H) the initial state
    and `w` (H, H) its weight. `nonlinearity` is "tanh" or "relu". With `reverse`, the loop starts
    with the last step.
    """
    last, hidden = _layer(RNN[nonlinearity], [h, projected, w], 1, reverse)
    return hidden, last


def _layer(cell: Body, inputs: Sequence[Tensor], states: int, reverse: bool) -> list[Tensor]:
    """Run a loop of a cell and return its results. Half-precision inputs are computed in float32
    and rounded once."""
    projected = inputs[states]
    dtype, steps = projected.dtype, projected.shape[0]
    if not is_half(dtype):
        return run(cell, inputs, states, 1, steps, reverse)
    wide = [cast(each, "float32") for each in inputs]
    return [cast(each, dtype) for each in run(cell, wide, states, 1, steps, reverse)]


def is_lstm(body: Body) -> bool:
    """Return whether a `body` is the LSTM's body, with any outputs."""
    return body.steps is LSTM.steps or body.steps == LSTM.steps


_HIDDEN, _CELL, _SUMS = 7, 8, 5  # the values' numbers in the LSTM's body


def _compute(op: Any, inputs: Sequence[NDArray]) -> tuple[NDArray, ...] | None:
    """Compute a Scan of an LSTM with the backend's kernel. Return None for another scan, and for
    results that the kernel does not compute."""
    body = op.body
    if not op.length or not is_lstm(body):
        return None
    if op.reverse or not set(body.outputs) <= {0, 1, _SUMS, _HIDDEN, _CELL}:
        return None
    h, c, projected, w = inputs
    hidden, cells, sums = layers.lstm_sequence(projected, h, c, w)
    made = {_HIDDEN: hidden, _CELL: cells, _SUMS: sums}
    found = [hidden[-1], cells[-1]]
    for number in body.outputs[2:]:
        if number < 2:
            found.append(_before(inputs[number], made[(_HIDDEN, _CELL)[number]]))
        else:
            found.append(made[number])
    return tuple(found)


def _backward(op: Any, out_grads: Sequence[Any], node: Any) -> Any:
    """Compute the gradients of a Scan of an LSTM with the backend's kernel, or return
    NotImplemented."""
    if not op.length or not is_lstm(op.body):
        return NotImplemented
    values = dict(zip(op.body.outputs[2:], node.output[2:], strict=True))
    grads = dict(zip(op.body.outputs[2:], out_grads[2:], strict=True))
    of_hidden, of_cells = grads.pop(_HIDDEN, None), grads.pop(_CELL, None)
    if op.reverse or any(grad is not None for grad in grads.values()):
        return NotImplemented
    if not {_SUMS, _HIDDEN, _CELL} <= values.keys():
        return NotImplemented
    h, c, _, w = node.saved
    cells = values[_CELL]
    of_hidden = _with_last(of_hidden, out_grads[0], values[_HIDDEN])
    of_cells = _with_last(of_cells, out_grads[1], cells)
    made = values[_HIDDEN], cells, values[_SUMS]
    to_sums, to_h, to_c, to_w = layers.lstm_sequence_grad(h, c, w, made, of_hidden, of_cells)
    return to_h, to_c, to_sums, to_w


def _before(first: NDArray, states: NDArray) -> NDArray:
    """Return the states before each step, from the states after each step."""
    made = empty(states.shape, states.dtype, states.device)
    made[0] = first
    made[1:] = states[:-1]
    return made


def _with_last(grad: NDArray | None, of_last: NDArray | None, like: NDArray) -> NDArray | None:
    """Add the gradient of the last state to the gradient of the states of all steps."""
    if of_last is None:
        return grad
    made = full(like.shape, 0, like.dtype, like.device) if grad is None else grad.copy()
    made[-1] = made[-1] + of_last
    return made


RULES.compute, RULES.backward = _compute, _backward
