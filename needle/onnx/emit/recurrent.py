"""Recurrent layers: ONNX's LSTM, GRU and RNN where they say the same, and else a Scan of steps.

ONNX's operators hold the weights of the input as well, and give the states of all steps for h, but
of the last step alone for c. So the product that made `projected` is taken in, if it is one, and
`cells` is an LSTM's only if nothing reads more of it than its last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ... import ops
from ...extents import same
from ...node import Node
from ...ops._keys import Range, expand
from ...spec import Spec
from ._dtypes import has_kernel
from ._rules import Site, rule
from ._writer import Value, Writer

_LSTM = (0, 3, 1, 2)  # i, f, g, o in ONNX's order: i, o, f, c
_GRU = (1, 0, 2)  # r, z, n in ONNX's order: z, r, h
_RNN = {"tanh": "Tanh", "relu": "Relu"}


class _Projection(NamedTuple):
    """x @ weight + bias, of the nodes that made it."""

    x: Node
    weight: Node
    bias: Node | None


def _projection(node: Node) -> _Projection | None:
    """What a projected sequence (T, B, gates * H) was made of."""
    bias, dtype = None, node.spec.dtype
    if isinstance(node.op, ops.Add):
        product, bias = node.input_nodes
        if not isinstance(product.op, ops.Matmul):
            product, bias = bias, product
        if bias.spec.ndim != 1:
            return None
        node = product
    if not isinstance(node.op, ops.Matmul):
        return None
    x, weight = node.input_nodes
    if x.spec.ndim != 3 or weight.spec.ndim != 2:
        return None
    made_of = _Projection(x, weight, bias)
    return made_of if all(n is None or n.spec.dtype == dtype for n in made_of) else None


def _weight(w: Writer, value: Value, order: Sequence[int]) -> Value:
    """(features, gates * H) as ONNX has it: (1, gates * H, features), gates in another order."""
    turned = _gates(w, w.transpose(value, (1, 0)), order)
    return w.unsqueeze(turned, 0)


def _gates(w: Writer, value: Value, order: Sequence[int]) -> Value:
    """The gates along the first axis in another order."""
    rows, *rest = value.extents
    apart = w.reshape(value, (len(order), rows // len(order), *rest))
    if apart.array is not None and apart.folds:
        chosen = w.array(apart.array[list(order)], apart.name)
    else:
        chosen = w.gather(apart, w.ints(order), 0)
    return w.reshape(chosen, value.extents)


def _biases(
    w: Writer, first: Value | None, second: Value | None, order: Sequence[int], like_: Value
) -> Value | None:
    """(1, 2 * gates * H): the biases of the input and of the state."""
    if first is None and second is None:
        return None
    width = like_.extents[1]
    zeros = w.full(0, like_.dtype, (width,))
    both = [_gates(w, each, order) if each is not None else zeros for each in (first, second)]
    return w.unsqueeze(w.concat(both, 0, (2 * width,)), 0)


def _readers(s: Site, index: int) -> list[Node | None]:
    """What reads part `index` of the tuple."""
    found: list[Node | None] = []
    for user in s.users[s.node]:
        if user is None or not isinstance(user.op, ops.TupleGetItem):
            return [None]
        if user.op.index % len(s.node.spec) == index:
            found += s.users[user]
    return found


def _last_steps(s: Site, index: int) -> list[Node] | None:
    """The nodes that take the last step of part `index`, as [-1]; None if another reads it."""
    found = []
    steps, *rest = s.node.spec[index].shape
    for user in _readers(s, index):
        if user is None or not isinstance(user.op, ops.Slice):
            return None
        first, *others = expand("slice", user.op.key, 1 + len(rest))
        is_last = not isinstance(first, tuple) and first is not None
        if not is_last or not (same(first, -1) or same(first, steps - 1)):
            return None
        if any(entry != Range() for entry in others):
            return None
        found.append(user)
    return found


@rule(ops.LstmSequence)
def lstm_sequence(
    s: Site, projected: Value, h: Value, c: Value, weight: Value
) -> tuple[Value, ...]:
    w, made_of = s.w, _projection(s.node.input_nodes[0])
    ends = _last_steps(s, 1)
    if made_of is None or ends is None or _readers(s, 2) or not has_kernel("LSTM", h.dtype):
        return _lstm_steps(s, projected, h, c, weight)
    own, other = _two_biases(s, made_of.bias)
    state = _weight(w, weight, _LSTM)
    hidden, _, cell = w.node(
        "LSTM",
        s.values[made_of.x],
        _weight(w, s.values[made_of.weight], _LSTM),
        state,
        _biases(w, own, other, _LSTM, state),
        None,
        w.unsqueeze(h, 0),
        w.unsqueeze(c, 0),
        dtype=(None,) * 3,
        hidden_size=h.extents[1],
    )
    steps, *rest = s.out[0].shape
    hidden.shape, cell.shape = (steps, 1, *rest), (1, *rest)
    for end in ends:
        s.values[end] = w.squeeze(cell, 0)
    states = w.squeeze(hidden, 1)
    return states, states, states


def _two_biases(s: Site, bias: Node | None) -> tuple[Value | None, Value | None]:
    """The bias as the sum of two, which an LSTM keeps apart."""
    if bias is None:
        return None, None
    parts = bias.input_nodes if isinstance(bias.op, ops.Add) else ()
    if parts and all(part.spec == bias.spec for part in parts):
        first, second = (s.values[part] for part in parts)
        return first, second
    return s.values[bias], None


@rule(ops.GruSequence)
def gru_sequence_(
    s: Site, projected: Value, h: Value, weight: Value, bias: Value
) -> tuple[Value, ...]:
    made_of = _projection(s.node.input_nodes[0])
    if made_of is None or _readers(s, 1) or not has_kernel("GRU", h.dtype):
        return _gru_steps(s, projected, h, weight, bias)
    own = None if made_of.bias is None else s.values[made_of.bias]
    states = _whole_layer(s, "GRU", made_of, (own, bias), h, weight, _GRU, linear_before_reset=1)
    return states, states


@rule(ops.GruResetFirst)
def gru_reset_first(s: Site, projected: Value, h: Value, weight: Value) -> tuple[Value, ...]:
    made_of = _projection(s.node.input_nodes[0])
    if made_of is None or _readers(s, 1) or not has_kernel("GRU", h.dtype):
        return _gru_reset_steps(s, projected, h, weight)
    own, other = _two_biases(s, made_of.bias)
    hidden = _whole_layer(s, "GRU", made_of, (own, other), h, weight, _GRU, linear_before_reset=0)
    return hidden, hidden


@rule(ops.RnnSequence)
def rnn_sequence(s: Site, projected: Value, h: Value, weight: Value) -> Value:
    made_of, function = _projection(s.node.input_nodes[0]), _RNN[s.op.nonlinearity]
    if made_of is None or not has_kernel("RNN", h.dtype):
        return _rnn_steps(s, projected, h, weight, function)
    biases = _two_biases(s, made_of.bias)
    return _whole_layer(s, "RNN", made_of, biases, h, weight, (0,), activations=[function])


def _whole_layer(
    s: Site,
    operator: str,
    made_of: _Projection,
    biases: tuple[Value | None, Value | None],
    h: Value,
    weight: Value,
    order: Sequence[int],
    **attributes: Any,
) -> Value:
    """The states of all steps (T, B, H) of a layer of one state, with the product that made its
    input's part taken in."""
    w, state = s.w, _weight(s.w, weight, order)
    hidden: Value = w.node(
        operator,
        s.values[made_of.x],
        _weight(w, s.values[made_of.weight], order),
        state,
        _biases(w, *biases, order, state),
        None,
        w.unsqueeze(h, 0),
        hidden_size=h.extents[1],
        **attributes,
    )
    steps, *rest = (s.out if isinstance(s.out, Spec) else s.out[0]).shape
    hidden.shape = (steps, 1, *rest)
    return w.squeeze(hidden, 1)


# Step by step


@rule(ops.LstmGates)
def lstm_gates(s: Site, sums: Value, cell: Value) -> tuple[Value, ...]:
    after = _lstm_step(s.w, _wide(s, sums), _wide(s, cell))
    return tuple(s.w.cast(each, cell.dtype) for each in after)


def _parts(w: Writer, x: Value, count: int) -> list[Value]:
    """x (B, count * H) as `count` parts (B, H)."""
    rows, width = x.extents
    made = w.node("Split", x, dtype=(None,) * count, axis=1, num_outputs=count)
    for part in made:
        part.shape = (rows, width // count)
    return list(made)


def _lstm_step(w: Writer, sums: Value, cell: Value) -> tuple[Value, Value]:
    i, f, g, o = _parts(w, sums, 4)
    i, f, o = (w.op("Sigmoid", gate) for gate in (i, f, o))
    kept, new = w.op("Mul", f, cell), w.op("Mul", i, w.op("Tanh", g))
    after = w.op("Add", kept, new)
    return w.op("Mul", o, w.op("Tanh", after)), after


@rule(ops.GruGates)
def gru_gates(s: Site, inputs: Value, states: Value, h: Value) -> Value:
    wide = [_wide(s, each) for each in (inputs, states, h)]
    return s.w.cast(_gru_step(s.w, *wide), h.dtype)


def _gru_step(w: Writer, inputs: Value, states: Value, h: Value) -> Value:
    (a, b, c), (d, e, f) = _parts(w, inputs, 3), _parts(w, states, 3)
    r, z = (w.op("Sigmoid", w.op("Add", *pair)) for pair in ((a, d), (b, e)))
    n = w.op("Tanh", w.op("Add", c, w.op("Mul", r, f)))
    return w.op("Add", n, w.op("Mul", z, w.op("Sub", h, n)))


def _lstm_steps(s: Site, projected: Value, h: Value, c: Value, weight: Value) -> tuple[Value, ...]:
    dtype = h.dtype
    projected, h, c, weight = (_wide(s, each) for each in (projected, h, c, weight))

    def step(w: Writer, h: Value, c: Value, share: Value) -> tuple[list[Value], list[Value]]:
        own: Value = w.node("MatMul", h, weight, shape=share.shape)
        sums = w.op("Add", share, own)
        h, c = _lstm_step(w, sums, c)
        return [h, c], [h, c, sums]

    return tuple(s.w.cast(each, dtype) for each in s.w.scan([h, c], [projected], step)[1])


def _gru_steps(
    s: Site, projected: Value, h: Value, weight: Value, bias: Value
) -> tuple[Value, ...]:
    dtype = h.dtype
    projected, h, weight, bias = (_wide(s, each) for each in (projected, h, weight, bias))

    def step(w: Writer, h: Value, share: Value) -> tuple[list[Value], list[Value]]:
        own: Value = w.node("MatMul", h, weight, shape=share.shape)
        sums = w.op("Add", own, bias)
        h = _gru_step(w, share, sums, h)
        return [h], [h, sums]

    return tuple(s.w.cast(each, dtype) for each in s.w.scan([h], [projected], step)[1])


def _gru_reset_steps(s: Site, projected: Value, h: Value, weight: Value) -> tuple[Value, ...]:
    dtype, width = h.dtype, h.extents[1]
    projected, h, weight = (_wide(s, each) for each in (projected, h, weight))
    of_gates, of_new = _columns(s.w, weight, 2 * width)

    def step(w: Writer, h: Value, share: Value) -> tuple[list[Value], list[Value]]:
        both, new = _columns(w, share, 2 * width)
        own: Value = w.node("MatMul", h, of_gates, shape=both.shape)
        gates = w.op("Sigmoid", w.op("Add", both, own))
        r, z = _parts(w, gates, 2)
        kept: Value = w.node("MatMul", w.op("Mul", r, h), of_new, shape=new.shape)
        n = w.op("Tanh", w.op("Add", new, kept))
        h = w.op("Add", n, w.op("Mul", z, w.op("Sub", h, n)))
        return [h], [h, gates]

    return tuple(s.w.cast(each, dtype) for each in s.w.scan([h], [projected], step)[1])


def _columns(w: Writer, x: Value, first: int) -> tuple[Value, Value]:
    """The first columns of a matrix, and the others."""
    rows, width = x.extents
    sizes = (first, width - first)
    made = w.node("Split", x, w.ints(sizes), dtype=(None,) * 2, axis=1)
    for part, size in zip(made, sizes, strict=True):
        part.shape = (rows, size)
    return made[0], made[1]


def _rnn_steps(s: Site, projected: Value, h: Value, weight: Value, function: str) -> Value:
    dtype = h.dtype
    projected, h, weight = (_wide(s, each) for each in (projected, h, weight))

    def step(w: Writer, h: Value, share: Value) -> tuple[list[Value], list[Value]]:
        own: Value = w.node("MatMul", h, weight, shape=share.shape)
        h = w.op(function, w.op("Add", share, own))
        return [h], [h]

    _, (states,) = s.w.scan([h], [projected], step)
    return s.w.cast(states, dtype)


def _wide(s: Site, x: Value) -> Value:
    return s.w.cast(x, "float64" if x.dtype == "float64" else "float32")
