"""Converters of recurrent layers: RNN, GRU and LSTM.

Each becomes a `needle.scan`, with any activations, with or without peepholes and clipping.
Sequences of different lengths all run for the largest number of steps. Steps after a sequence's end
do not change earlier steps, and their outputs are masked. The last state of each sequence is read
by index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ... import init, ops
from ...autograd.tensor import Tensor
from ...conversion.values import Value, tensor
from ...loops import scan
from ...recurrence import layers as usual_layers
from ..graph import Node
from ..registry import converter

Function = Callable[[Tensor], Tensor]
# (direction, projected inputs, initial states) -> each state after every step, (T, B, H)
Layer = Callable[[int, Tensor, Sequence[Tensor]], Sequence[Tensor]]


# Activations of the gates: (function, alpha, beta), None for a parameter that a function does not
# have.


class _Activation(NamedTuple):
    function: Callable[[Tensor, float, float], Tensor]
    alpha: float | None = None
    beta: float | None = None


def _affine(x: Tensor, factor: float, shift: float) -> Tensor:
    return ops.add_scalar(ops.mul_scalar(x, factor), shift)


_ACTIVATIONS: dict[str, _Activation] = {
    "affine": _Activation(_affine, 1.0, 0.0),
    "elu": _Activation(lambda x, alpha, _: ops.elu(x, alpha), 1.0),
    "hardsigmoid": _Activation(lambda x, a, b: ops.clip(_affine(x, a, b), 0.0, 1.0), 0.2, 0.5),
    "leakyrelu": _Activation(lambda x, alpha, _: ops.leaky_relu(x, alpha), 0.01),
    "relu": _Activation(lambda x, *_: ops.relu(x)),
    "scaledtanh": _Activation(
        lambda x, a, b: ops.mul_scalar(ops.tanh(ops.mul_scalar(x, b)), a), 1.0, 1.0
    ),
    "sigmoid": _Activation(lambda x, *_: ops.sigmoid(x)),
    "softplus": _Activation(lambda x, *_: ops.softplus(x)),
    "softsign": _Activation(lambda x, *_: ops.softsign(x)),
    "tanh": _Activation(lambda x, *_: ops.tanh(x)),
    "thresholdedrelu": _Activation(lambda x, alpha, _: ops.threshold(x, alpha, 0.0), 1.0),
}


def _activations(
    node: Node, usual: tuple[str, ...], count: int
) -> list[list[tuple[str, Function]]]:
    """Return the activations of each direction, with their names in lower case. The numbers of
    activation_alpha and activation_beta go, in order, to the functions that have the parameter."""
    names = node.texts("activations", ()) or usual * count
    if len(names) < len(usual) * count:
        raise node.invalid(f"activations has {len(names)} names, not {len(usual) * count}")
    alphas = iter(node.numbers("activation_alpha", ()))
    betas = iter(node.numbers("activation_beta", ()))
    found = []
    for name in names[: len(usual) * count]:
        activation = _ACTIVATIONS.get(name.lower())
        if activation is None:
            raise node.unsupported(f"the activation {name!r}")
        function, alpha, beta = activation
        alpha = 0.0 if alpha is None else next(alphas, alpha)
        beta = 0.0 if beta is None else next(betas, beta)
        found.append((name.lower(), _bound(function, alpha, beta)))
    return [found[i : i + len(usual)] for i in range(0, len(found), len(usual))]


def _bound(function: Any, alpha: float, beta: float) -> Function:
    return lambda x: function(x, alpha, beta)


# Helpers of all three layers


class _Given(NamedTuple):
    """The inputs of a layer: x (T, B, I), lengths (B,) or None, and the initial states (D, B, H).
    For each direction, the G gates have weights and biases for the input, (I, G H) and (G H,), and
    for the state, (H, G H) and (G H,)."""

    x: Tensor
    lengths: Tensor | None
    states: list[Tensor]
    inputs: list[Tensor]
    recurrent: list[Tensor]
    input_bias: list[Tensor]
    state_bias: list[Tensor]
    backward: list[bool]
    hidden: int

    @property
    def directions(self) -> int:
        return len(self.backward)


def _given(
    node: Node,
    gates: Sequence[int],
    data: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None,
    lengths: Value | None,
    *states: Value | None,
) -> _Given:
    """Return the inputs, with the steps as the first axis and the gates in the order `gates`."""
    x, w, r = tensor(data), tensor(weight), tensor(recurrent)
    name, turned = node.text("direction", "forward"), node.flag("layout", False)
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(name)
    if backward is None:
        raise node.invalid(f"direction {name!r} is not forward, reverse or bidirectional")
    count, hidden = len(backward), r.shape[-1]
    width = len(gates) * hidden
    if x.ndim != 3:
        raise node.invalid(f"X has the shape {x.shape}, not three axes")
    x = ops.swapaxes(x, 0, 1) if turned else x
    expected = {
        "W": (w, (count, width, x.shape[2])),
        "R": (r, (count, width, hidden)),
        "B": (bias, (count, 2 * width)),
        "sequence_lens": (lengths, (x.shape[1],)),
    }
    for what, (value, shape) in expected.items():
        if value is not None and value.shape != shape:
            raise node.invalid(f"{what} has the shape {value.shape}, not {shape}")
    if node.integer("hidden_size", hidden) != hidden:
        raise node.invalid(f"hidden_size is {node.integer('hidden_size')}, but R has {hidden}")

    def by_gate(value: Tensor) -> Tensor:  # (G H, ...)
        parts = [value[gate * hidden : (gate + 1) * hidden] for gate in gates]
        return value if list(gates) == sorted(gates) else ops.concat(parts, 0)

    if bias is None:
        nothing = init.zeros(width, device=x.device, dtype=x.dtype)
        input_bias = state_bias = [nothing] * count
    else:
        both = tensor(bias)
        input_bias = [by_gate(both[d][:width]) for d in range(count)]
        state_bias = [by_gate(both[d][width:]) for d in range(count)]
    begin = (count, x.shape[1], hidden)
    return _Given(
        x,
        None if lengths is None else tensor(lengths),
        [_first(node, state, begin, x, turned) for state in states],
        [ops.transpose(by_gate(w[d])) for d in range(count)],
        [ops.transpose(by_gate(r[d])) for d in range(count)],
        input_bias,
        state_bias,
        backward,
        hidden,
    )


def _first(node: Node, state: Value | None, shape: Any, x: Tensor, turned: bool) -> Tensor:
    """Return an initial state (D, B, H)."""
    if state is None:
        return ops.broadcast_to(init.zeros(1, 1, 1, device=x.device, dtype=x.dtype), shape)
    found = ops.swapaxes(tensor(state), 0, 1) if turned else tensor(state)
    if found.shape != shape:
        raise node.invalid(f"an initial state has the shape {found.shape}, not {shape}")
    return found


def _run(node: Node, given: _Given, layer: Layer) -> tuple[Tensor, ...]:
    """Run a layer in all its directions. Return Y and the states after the last step."""
    place = _places(given.x, given.lengths)
    outputs, ends = [], []
    for d, backward in enumerate(given.backward):
        x = _reversed(given.x, place) if backward else given.x
        projected = ops.add(ops.matmul(x, given.inputs[d]), given.input_bias[d])
        first = [state[d] for state in given.states]
        states = layer(d, projected, first)
        ends.append([_last(*pair, place) for pair in zip(states, first, strict=True)])
        y = states[0]
        if place is not None:
            y = ops.where(ops.unsqueeze(place.inside, 2), y, 0.0)
        outputs.append(_reversed(y, place) if backward else y)
    y = ops.stack(outputs, 1)
    finals = [ops.stack(list(states), 0) for states in zip(*ends, strict=True)]
    if node.flag("layout", False):
        return ops.permute(y, (2, 0, 1, 3)), *[ops.swapaxes(state, 0, 1) for state in finals]
    return y, *finals


class _Places(NamedTuple):
    """Positions in sequences of different lengths: the indices of the sequences (B,), their lengths
    (at most T), whether each step (T, B) is before the end, and the step that replaces it in the
    reversed sequence."""

    sequences: Tensor
    lengths: Tensor
    inside: Tensor
    mirrored: Tensor


def _places(x: Tensor, lengths: Tensor | None) -> _Places | None:
    if lengths is None:
        return None
    steps = ops.arange(x.shape[0], dtype="int64", device=x.device)
    most = ops.add_scalar(steps[-1:], 1)
    ends = ops.clip(ops.minimum(ops.cast(lengths, "int64"), most), 0)
    steps = ops.reshape(steps, (x.shape[0], 1))
    inside = ops.less(steps, ends)
    mirrored = ops.where(inside, ops.subtract(ops.add_scalar(ends, -1), steps), steps)
    sequences = ops.arange(x.shape[1], dtype="int64", device=x.device)
    return _Places(sequences, ends, inside, mirrored)


def _reversed(x: Tensor, place: _Places | None) -> Tensor:
    """Reverse each sequence of x (T, B, ...) up to its end. Steps after the end are unchanged."""
    return ops.flip(x, 0) if place is None else x[place.mirrored, place.sequences]


def _last(state: Tensor, first: Tensor, place: _Places | None) -> Tensor:
    """Return a state (T, B, H) after the last step of each sequence; for a sequence without steps,
    return `first` (B, H)."""
    if place is None:
        return state[-1]
    found = state[ops.clip(ops.add_scalar(place.lengths, -1), 0), place.sequences]
    return ops.where(ops.unsqueeze(ops.greater(place.lengths, 0), 1), found, first)


def _by_step(
    projected: Tensor, states: Sequence[Tensor], step: Callable[..., tuple[Tensor, ...]]
) -> list[Tensor]:
    """Return each state after every step."""

    def cell(now: tuple[Tensor, ...], sums: Tensor) -> tuple[Any, Any]:
        after = step(sums, *now)
        return after, after

    return list(scan(cell, tuple(states), projected)[1])


def _clipper(node: Node) -> Function:
    """Return the function that clips sums before an activation."""
    if not node.has("clip"):
        return lambda x: x
    bound = node.number("clip")
    return lambda x: ops.clip(x, -bound, bound)


def _parts(x: Tensor, count: int) -> list[Tensor]:
    """Split sums (B, count * H) into gates."""
    width = x.shape[1] // count
    return [x[:, i * width : (i + 1) * width] for i in range(count)]


# The layers


@converter("RNN", since=7)
def rnn(
    node: Node,
    data: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    first: Value | None = None,
) -> tuple[Tensor, ...]:
    given = _given(node, (0,), data, weight, recurrent, bias, lengths, first)
    activations = _activations(node, ("Tanh",), given.directions)
    clipped = _clipper(node)

    def layer(d: int, projected: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        ((_, function),) = activations[d]
        projected, w = ops.add(projected, given.state_bias[d]), given.recurrent[d]

        def step(sums: Tensor, h: Tensor) -> tuple[Tensor]:
            return (function(clipped(ops.add(sums, ops.matmul(h, w)))),)

        return _by_step(projected, states, step)

    return _run(node, given, layer)


@converter("GRU", since=7)
def gru(
    node: Node,
    data: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    first: Value | None = None,
) -> tuple[Tensor, ...]:
    given = _given(node, (1, 0, 2), data, weight, recurrent, bias, lengths, first)
    activations = _activations(node, ("Sigmoid", "Tanh"), given.directions)
    before_reset = node.flag("linear_before_reset", False)
    clipped, width = _clipper(node), given.hidden

    def layer(d: int, projected: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        w, bias = given.recurrent[d], given.state_bias[d]
        (gate_name, gate), (new_name, new) = activations[d]
        usual = gate_name == "sigmoid" and new_name == "tanh" and not node.has("clip")
        if usual and before_reset:
            return usual_layers.gru(projected, states[0], w, bias)[:1]
        gates, last = w[:, : 2 * width], w[:, 2 * width :]
        gates_bias, last_bias = bias[: 2 * width], bias[2 * width :]

        def step(sums: Tensor, h: Tensor) -> tuple[Tensor]:
            both = ops.add(ops.add(sums[:, : 2 * width], ops.matmul(h, gates)), gates_bias)
            r, z = _parts(gate(clipped(both)), 2)
            if before_reset:
                own = ops.multiply(r, ops.add(ops.matmul(h, last), last_bias))
            else:
                own = ops.add(ops.matmul(ops.multiply(r, h), last), last_bias)
            n = new(clipped(ops.add(sums[:, 2 * width :], own)))
            return (ops.add(n, ops.multiply(z, ops.subtract(h, n))),)

        return _by_step(projected, states, step)

    return _run(node, given, layer)


@converter("LSTM", since=7)
def lstm(
    node: Node,
    data: Value,
    weight: Value,
    recurrent: Value,
    bias: Value | None = None,
    lengths: Value | None = None,
    first_hidden: Value | None = None,
    first_cell: Value | None = None,
    peepholes: Value | None = None,
) -> tuple[Tensor, ...]:
    begin = (first_hidden, first_cell)
    given = _given(node, (0, 2, 3, 1), data, weight, recurrent, bias, lengths, *begin)
    activations = _activations(node, ("Sigmoid", "Tanh", "Tanh"), given.directions)
    coupled = node.flag("input_forget", False)
    clipped, width = _clipper(node), given.hidden
    if peepholes is not None and peepholes.shape != (given.directions, 3 * width):
        raise node.invalid(f"P has the shape {peepholes.shape}, not {given.directions, 3 * width}")

    def layer(d: int, projected: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        w = given.recurrent[d]
        projected = ops.add(projected, given.state_bias[d])
        named = tuple(name for name, _ in activations[d])
        special = coupled or peepholes is not None or node.has("clip")
        if named == ("sigmoid", "tanh", "tanh") and not special:
            return usual_layers.lstm(projected, states[0], states[1], w)[:2]
        gate, new, out = (function for _, function in activations[d])
        seen: list[Tensor | None] = [None] * 3
        if peepholes is not None:
            own = tensor(peepholes)[d]
            seen = [own[k * width : (k + 1) * width] for k in range(3)]

        def opened(sums: Tensor, cell: Tensor, weight: Tensor | None) -> Tensor:
            total = sums if weight is None else ops.add(sums, ops.multiply(cell, weight))
            return gate(clipped(total))

        def step(sums: Tensor, h: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
            i, f, g, o = _parts(ops.add(sums, ops.matmul(h, w)), 4)
            i = opened(i, cell, seen[0])
            f = ops.subtract(1.0, i) if coupled else opened(f, cell, seen[2])
            after = ops.add(ops.multiply(f, cell), ops.multiply(i, new(clipped(g))))
            return ops.multiply(opened(o, after, seen[1]), out(after)), after

        return _by_step(projected, states, step)

    return _run(node, given, layer)
