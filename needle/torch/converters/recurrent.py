"""Converters of recurrent layers and of their single steps. A layer is one scan of a sequence.

Packed sequences are refused: their shapes depend on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ... import ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ...init import zeros
from ...loops import scan
from ...recurrence import layers as usual_layers
from ..operands import in_float32, wide
from ..program import Node
from ..registry import converter

_LSTM_GATES, _GRU_GATES = 4, 3


class _Weights(NamedTuple):
    """The weights of a layer in one direction: for the input (gates * H, I) and for the state
    (gates * H, H), their biases (gates * H,), and the projection of an LSTM's outputs (P, H)."""

    of_input: Tensor
    of_state: Tensor
    input_bias: Tensor | None
    state_bias: Tensor | None
    projection: Tensor | None = None

    def projected(self, x: Tensor, *biases: Tensor | None) -> Tensor:
        """Return the input's contribution to the gates for `x` (..., I), plus `biases`."""
        made = ops.matmul(x, ops.transpose(self.of_input))
        return _plus(made, *biases)


def _plus(x: Tensor, *others: Tensor | None) -> Tensor:
    """Return a sum, where None counts as 0."""
    given = [each for each in others if each is not None]
    if not given:
        return x
    total = given[0]
    for each in given[1:]:
        total = ops.add(total, each)
    return ops.add(x, total)


# (steps (T, B, I), initial states, weights, whether the last step comes first) -> the outputs of
# all steps, then the last states
Layer = Callable[[Tensor, Sequence[Tensor], _Weights, bool], Sequence[Tensor]]


def _layers(
    node: Node,
    layer: Layer,
    x: Value,
    states: Sequence[Value],
    params: Sequence[Value],
    projects: bool,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the outputs of the last layer, and the last states of all layers."""
    if train and dropout and layers > 1:
        raise node.unsupported("dropout between layers in training: call eval() first")
    steps = wide(x)
    steps = ops.swapaxes(steps, 0, 1) if batch_first else steps
    begin = [wide(each) for each in states]
    own = [wide(each) for each in params]
    each, directions = 2 + 2 * has_biases + projects, 1 + bidirectional
    ends: list[Sequence[Tensor]] = []
    for first in range(0, layers * directions, directions):
        outputs = []
        for number in range(first, first + directions):
            of_layer: list[Any] = own[number * each : (number + 1) * each]
            projection = of_layer.pop() if projects else None
            biases = of_layer[2:] or [None, None]
            weights = _Weights(of_layer[0], of_layer[1], biases[0], biases[1], projection)
            backwards = number > first
            made, *last = layer(steps, [state[number] for state in begin], weights, backwards)
            outputs.append(made)
            ends.append(last)
        steps = ops.concat(outputs, -1) if bidirectional else outputs[0]
    finals = [ops.stack(list(parts), 0) for parts in zip(*ends, strict=True)]
    steps = ops.swapaxes(steps, 0, 1) if batch_first else steps
    return tuple(_rounded(each, node) for each in (steps, *finals))


def _rounded(x: Tensor, node: Node) -> Tensor:
    """Return a result in the node's dtype. Half precision is computed in float32 through all steps
    and layers."""
    return x if x.dtype == node.dtype else ops.cast(x, node.dtype)


@converter("aten.lstm.input", "needle.lstm")
def lstm(node: Node, x: Value, states: Any, params: Any, *options: Any) -> tuple[Tensor, ...]:
    projects = states[0].shape[-1] != states[1].shape[-1]

    def layer(x: Tensor, begin: Sequence[Tensor], w: _Weights, reverse: bool) -> Sequence[Tensor]:
        projected, weight = w.projected(x, w.input_bias, w.state_bias), ops.transpose(w.of_state)
        if w.projection is None:
            h, c = begin
            hidden, _, *last = usual_layers.lstm(projected, h, c, weight, reverse=reverse)
            return hidden, *last
        projection = ops.transpose(w.projection)

        def cell(now: tuple[Tensor, Tensor], sums: Tensor) -> tuple[Any, Tensor]:
            h, c = ops.lstm_gates(ops.add(sums, ops.matmul(now[0], weight)), now[1])
            h = ops.matmul(h, projection)
            return (h, c), h

        last, hidden = scan(cell, tuple(begin), projected, reverse=reverse)
        return hidden, *last

    return _layers(node, layer, x, states, params, projects, *options)


@converter("aten.gru.input", "needle.gru")
def gru(node: Node, x: Value, state: Value, params: Any, *options: Any) -> tuple[Tensor, ...]:
    def layer(x: Tensor, begin: Sequence[Tensor], w: _Weights, reverse: bool) -> Sequence[Tensor]:
        bias = w.state_bias
        if bias is None:
            bias = zeros(w.of_state.shape[0], dtype=x.dtype, device=x.device, requires_grad=False)
        projected, weight = w.projected(x, w.input_bias), ops.transpose(w.of_state)
        return usual_layers.gru(projected, begin[0], weight, bias, reverse=reverse)

    return _layers(node, layer, x, [state], params, False, *options)


@converter("aten.rnn_tanh.input", "aten.rnn_relu.input", "needle.rnn_tanh", "needle.rnn_relu")
def rnn(node: Node, x: Value, state: Value, params: Any, *options: Any) -> tuple[Tensor, ...]:
    nonlinearity = "tanh" if "tanh" in node.operator else "relu"

    def layer(x: Tensor, begin: Sequence[Tensor], w: _Weights, reverse: bool) -> Sequence[Tensor]:
        projected = w.projected(x, w.input_bias, w.state_bias)
        weight = ops.transpose(w.of_state)
        return usual_layers.rnn(
            projected, begin[0], weight, nonlinearity=nonlinearity, reverse=reverse
        )

    return _layers(node, layer, x, [state], params, False, *options)


@converter("aten.lstm.data", "aten.gru.data", "aten.rnn_tanh.data", "aten.rnn_relu.data")
def packed(node: Node, *args: Any) -> Tensor:
    raise node.unsupported("a packed sequence: use a padded sequence, and mask the layer's outputs")


# Single steps


def _weights(*given: Value | None) -> _Weights:
    w, u, *biases = (None if each is None else tensor(each) for each in given)
    assert w is not None and u is not None, "a cell has weights"
    return _Weights(w, u, *biases)


def _with_axis(x: Tensor, function: Callable[..., Any], *states: Tensor) -> Any:
    """Apply a `function` of batches (B, ...) to x and states, which may lack the batch axis."""
    if x.ndim > 1:
        return function(x, *states)
    made = function(*(ops.unsqueeze(each, 0) for each in (x, *states)))
    if isinstance(made, tuple):
        return tuple(ops.squeeze(each, 0) for each in made)
    return ops.squeeze(made, 0)


@converter("aten.lstm_cell")
def lstm_cell(
    node: Node,
    x: Value,
    states: Any,
    of_input: Value,
    of_state: Value,
    input_bias: Value | None = None,
    state_bias: Value | None = None,
) -> tuple[Tensor, ...]:
    def step(x: Tensor, h: Tensor, c: Tensor, *given: Tensor | None) -> tuple[Tensor, ...]:
        w = _Weights(*given)  # type: ignore[arg-type]

        def one(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            own = ops.matmul(h, ops.transpose(w.of_state))
            return tuple(
                ops.lstm_gates(ops.add(w.projected(x, w.input_bias, w.state_bias), own), c)
            )

        return tuple(_with_axis(x, one, h, c))

    weights = _weights(of_input, of_state, input_bias, state_bias)
    h, c = map(tensor, states)
    made: tuple[Tensor, ...] = in_float32(step, tensor(x), h, c, *weights[:4])
    return made


@converter("aten.gru_cell")
def gru_cell(
    node: Node,
    x: Value,
    state: Value,
    of_input: Value,
    of_state: Value,
    input_bias: Value | None = None,
    state_bias: Value | None = None,
) -> Tensor:
    def step(x: Tensor, h: Tensor, *given: Tensor | None) -> Tensor:
        w = _Weights(*given)  # type: ignore[arg-type]

        def one(x: Tensor, h: Tensor) -> Tensor:
            own = _plus(ops.matmul(h, ops.transpose(w.of_state)), w.state_bias)
            return ops.gru_gates(w.projected(x, w.input_bias), own, h)

        found: Tensor = _with_axis(x, one, h)
        return found

    weights = _weights(of_input, of_state, input_bias, state_bias)
    made: Tensor = in_float32(step, tensor(x), tensor(state), *weights[:4])
    return made


@converter("aten.rnn_tanh_cell", "aten.rnn_relu_cell")
def rnn_cell(
    node: Node,
    x: Value,
    state: Value,
    of_input: Value,
    of_state: Value,
    input_bias: Value | None = None,
    state_bias: Value | None = None,
) -> Tensor:
    function = ops.tanh if "tanh" in node.operator else ops.relu

    def step(x: Tensor, h: Tensor, *given: Tensor | None) -> Tensor:
        w = _Weights(*given)  # type: ignore[arg-type]
        own = ops.matmul(h, ops.transpose(w.of_state))
        return function(ops.add(w.projected(x, w.input_bias, w.state_bias), own))

    weights = _weights(of_input, of_state, input_bias, state_bias)
    made: Tensor = in_float32(step, tensor(x), tensor(state), *weights[:4])
    return made
