"""Rules for recurrent layers: scans that are equivalent to ONNX's LSTM, GRU and RNN.

ONNX's operators multiply the input by its weights themselves, so the product that computes the
scan's sequence becomes part of the operator. They return h of all steps, but c only of the last
step, so a scan remains a Scan if its c of all steps is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ... import ops
from ...autograd.node import Node
from ...op.subgraph import Body
from ...recurrence import layers as usual
from ._dtypes import has_kernel
from ._rules import Site, rule
from ._writer import Value, Writer

_LSTM_ORDER = (0, 3, 1, 2)  # i, f, g, o in ONNX's order: i, o, f, c
_GRU_ORDER = (1, 0, 2)  # r, z, n in ONNX's order: z, r, h


class _Projection(NamedTuple):
    """The nodes of a product x @ weight + bias."""

    x: Node
    weight: Node
    bias: Node | None


def _projection(node: Node) -> _Projection | None:
    """Return the product that computes a projected sequence (T, B, gates * H), or None."""
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
    """Convert a weight (features, gates * H) to ONNX's layout (1, gates * H, features), with the
    gates in the given `order`."""
    turned = _gates(w, w.transpose(value, (1, 0)), order)
    return w.unsqueeze(turned, 0)


def _gates(w: Writer, value: Value, order: Sequence[int]) -> Value:
    """Return the gates along the first axis in the given `order`."""
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
    """Return the biases of the input and of the state as (1, 2 * gates * H)."""
    if first is None and second is None:
        return None
    width = like_.extents[1]
    zeros = w.full(0, like_.dtype, (width,))
    both = [_gates(w, each, order) if each is not None else zeros for each in (first, second)]
    return w.unsqueeze(w.concat(both, 0, (2 * width,)), 0)


_Layer = Callable[[Site, _Projection, bool], list[Value]]


def layer(s: Site, used: Collection[int]) -> tuple[Value, ...] | None:
    """Write a Scan at `s` as a recurrent operator of ONNX, if it is equivalent to one, and return
    its results. Return None for any other Scan. Only the results in `used` are read."""
    steps, states = s.op.body.steps, s.op.states
    write = next((write for body, write in _LAYERS if steps == body.steps), None)
    if write is None:
        return None
    outputs, hidden = s.op.body.outputs, s.op.body.outputs[0]
    made_of = _projection(s.node.input_nodes[states])
    (operator, emit) = write
    if made_of is None or not has_kernel(operator, s.out[0].dtype):
        return None
    if any(n >= states and outputs[n] != hidden for n in used):  # reads more than h
        return None
    whole, *last = emit(s, made_of, s.op.reverse)
    shape = s.out[0].shape
    whole.shape = (s.op.length, 1, *shape)
    for each in last:
        each.shape = (1, *shape)
    found = [Value("", spec.dtype, spec.shape) for spec in s.out]
    for n in used:
        found[n] = s.w.squeeze(last[n], 0) if n < states else s.w.squeeze(whole, 1)
    return tuple(found)


def _lstm(s: Site, made_of: _Projection, reverse: bool) -> list[Value]:
    h, c, _, weight = (s.values[node] for node in s.node.input_nodes)
    biases = _two_biases(s, made_of.bias)
    return _operator(s, "LSTM", made_of, biases, [h, c], weight, _LSTM_ORDER, reverse)


def _gru(s: Site, made_of: _Projection, reverse: bool) -> list[Value]:
    h, _, weight, bias = (s.values[node] for node in s.node.input_nodes)
    biases = None if made_of.bias is None else s.values[made_of.bias], bias
    order = _GRU_ORDER
    return _operator(s, "GRU", made_of, biases, [h], weight, order, reverse, linear_before_reset=1)


def _rnn(function: str) -> _Layer:
    def emit(s: Site, made_of: _Projection, reverse: bool) -> list[Value]:
        h, _, weight = (s.values[node] for node in s.node.input_nodes)
        biases = _two_biases(s, made_of.bias)
        return _operator(
            s, "RNN", made_of, biases, [h], weight, (0,), reverse, activations=[function]
        )

    return emit


_LAYERS: Sequence[tuple[Body, tuple[str, _Layer]]] = (
    (usual.LSTM, ("LSTM", _lstm)),
    (usual.GRU, ("GRU", _gru)),
    (usual.RNN["tanh"], ("RNN", _rnn("Tanh"))),
    (usual.RNN["relu"], ("RNN", _rnn("Relu"))),
)


def _operator(
    s: Site,
    operator: str,
    made_of: _Projection,
    biases: tuple[Value | None, Value | None],
    states: Sequence[Value],
    weight: Value,
    order: Sequence[int],
    reverse: bool,
    **attributes: Any,
) -> list[Value]:
    """Write a layer `operator` that also multiplies its input by the weights. Return its outputs at
    all steps (T, 1, B, H) and its last states (1, B, H)."""
    w, state = s.w, _weight(s.w, weight, order)
    if reverse:
        attributes["direction"] = "reverse"
    made = w.node(
        operator,
        s.values[made_of.x],
        _weight(w, s.values[made_of.weight], order),
        state,
        _biases(w, *biases, order, state),
        None,
        *[w.unsqueeze(each, 0) for each in states],
        dtype=(None,) * (1 + len(states)),
        hidden_size=states[0].extents[1],
        **attributes,
    )
    return list(made)


def _two_biases(s: Site, bias: Node | None) -> tuple[Value | None, Value | None]:
    """Return a bias as two biases, as the operators expect: the two terms of a sum, or the bias and
    None."""
    if bias is None:
        return None, None
    parts = bias.input_nodes if isinstance(bias.op, ops.Add) else ()
    if parts and all(part.spec == bias.spec for part in parts):
        first, second = (s.values[part] for part in parts)
        return first, second
    return s.values[bias], None


@rule(ops.LstmGates)
def lstm_gates(s: Site, sums: Value, cell: Value) -> tuple[Value, ...]:
    after = _lstm_step(s.w, _wide(s, sums), _wide(s, cell))
    return tuple(s.w.cast(each, cell.dtype) for each in after)


def _parts(w: Writer, x: Value, count: int) -> list[Value]:
    """Split x (B, count * H) into `count` parts (B, H)."""
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


def _wide(s: Site, x: Value) -> Value:
    return s.w.cast(x, "float64" if x.dtype == "float64" else "float32")
