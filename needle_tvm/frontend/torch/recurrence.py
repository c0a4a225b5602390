"""PyTorch's LSTM, GRU and RNN as layers whose steps are one operator each.

`torch.export` would write out the steps of a sequence. While a model is exported (`replaced`), the
call of a whole layer is matmuls for all steps at once and, for each layer and direction, the
operator `needle::lstm_steps`, `gru_steps` or `rnn_steps`. These become the ops LstmSequence,
GruSequence and RnnSequence of needle. The same functions decompose `aten.lstm`, `aten.gru` and the
like of programs that were exported elsewhere. LSTMs with projections are refused by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from needle.ops.gru_sequence import GruSequence
from needle.ops.recurrent import LstmSequence
from needle.ops.rnn_sequence import RnnSequence
from needle_tvm._tvm.names import TE_NAMESPACE, relax

_LSTM_GATES, _GRU_GATES = 4, 3


def lstm(x: Any, states: Sequence[Any], weights: Sequence[Any], *options: Any) -> Any:
    """`aten.lstm.input`: (output, h, c); NotImplemented for one with projections or dropout.
    `options` are those of `_layers`."""
    h, c = states
    hidden = weights[1].shape[-1]
    if h.shape[-1] != c.shape[-1] or weights[1].shape[0] != _LSTM_GATES * hidden:
        return NotImplemented
    step = _operators()["lstm_steps"]

    def layer(x: Any, number: int, w: Any, own: Any, bias: Any, own_bias: Any) -> Any:
        both = None if bias is None else bias + own_bias
        hiddens, cells = step(_linear(x, w, both), h[number], c[number], own.t())
        return hiddens, (hiddens, cells)

    return _layers(layer, x, weights, *options)


def gru(x: Any, h: Any, weights: Sequence[Any], *options: Any) -> Any:
    """`aten.gru.input`: (output, h); NotImplemented for one with dropout."""
    step = _operators()["gru_steps"]

    def layer(x: Any, number: int, w: Any, own: Any, bias: Any, own_bias: Any) -> Any:
        own_bias = own.new_zeros(own.shape[0]) if own_bias is None else own_bias
        hiddens = step(_linear(x, w, bias), h[number], own.t(), own_bias)
        return hiddens, (hiddens,)

    return _layers(layer, x, weights, *options)


def rnn(nonlinearity: str, x: Any, h: Any, weights: Sequence[Any], *options: Any) -> Any:
    """`aten.rnn_tanh.input` and `aten.rnn_relu.input`: (output, h); NotImplemented for one with
    dropout."""
    step = _operators()["rnn_steps"]

    def layer(x: Any, number: int, w: Any, own: Any, bias: Any, own_bias: Any) -> Any:
        both = None if bias is None else bias + own_bias
        hiddens = step(_linear(x, w, both), h[number], own.t(), nonlinearity)
        return hiddens, (hiddens,)

    return _layers(layer, x, weights, *options)


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    import torch

    return torch.nn.functional.linear(x, weight, bias)


def _layers(
    layer: Callable[..., Any],
    x: Any,
    weights: Sequence[Any],
    has_bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """The outputs of the last layer, and the last states of all; NotImplemented with dropout.
    `layer` takes the steps (T, B, I), its number and weights, and returns its outputs and its
    states after each step."""
    import torch

    if training and dropout:
        return NotImplemented
    each, directions = 4 if has_bias else 2, 2 if bidirectional else 1
    x, last = x.transpose(0, 1) if batch_first else x, []
    for first in range(0, layers * directions, directions):
        outputs = []
        for number in range(first, first + directions):
            own = [*weights[number * each : (number + 1) * each], None, None][:4]
            backwards = number != first
            hiddens, states = layer(x.flip(0) if backwards else x, number, *own)
            outputs.append(hiddens.flip(0) if backwards else hiddens)
            last.append([state[-1] for state in states])
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    final = (torch.stack(states) for states in zip(*last, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *final)


def called_lstm(*args: Any) -> Any:
    """`torch.lstm` of a padded sequence; NotImplemented for the form that takes packed ones."""
    return lstm(*args) if _is_padded(args) else NotImplemented


def called_gru(*args: Any) -> Any:
    """`torch.gru`, likewise."""
    return gru(*args) if _is_padded(args) else NotImplemented


def called_rnn(nonlinearity: str, *args: Any) -> Any:
    """`torch.rnn_tanh` and `torch.rnn_relu`, likewise."""
    return rnn(nonlinearity, *args) if _is_padded(args) else NotImplemented


def _is_padded(args: Sequence[Any]) -> bool:
    return len(args) == 9 and isinstance(args[3], bool)


@functools.cache
def _operators() -> dict[str, Any]:
    """The operators of all steps, by name. They are entered into PyTorch once."""
    import torch

    def lstm_steps(projected: Any, h: Any, c: Any, w: Any) -> tuple[Any, Any]:
        dtype, (projected, h, c, w) = h.dtype, _wide(projected, h, c, w)
        hiddens, cells = [], []
        for share in projected:
            i, f, g, o = (share + h @ w).chunk(_LSTM_GATES, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hiddens.append(h)
            cells.append(c)
        return torch.stack(hiddens).to(dtype), torch.stack(cells).to(dtype)

    def gru_steps(projected: Any, h: Any, w: Any, bias: Any) -> Any:
        dtype, (projected, h, w, bias) = h.dtype, _wide(projected, h, w, bias)
        hiddens = []
        for share in projected:
            r, z, n = share.chunk(_GRU_GATES, -1)
            own_r, own_z, own_n = (h @ w + bias).chunk(_GRU_GATES, -1)
            n = (n + (r + own_r).sigmoid() * own_n).tanh()
            h = n + (z + own_z).sigmoid() * (h - n)
            hiddens.append(h)
        return torch.stack(hiddens).to(dtype)

    def rnn_steps(projected: Any, h: Any, w: Any, nonlinearity: str) -> Any:
        dtype, (projected, h, w) = h.dtype, _wide(projected, h, w)
        hiddens = []
        for share in projected:
            h = getattr(torch, nonlinearity)(share + h @ w)
            hiddens.append(h)
        return torch.stack(hiddens).to(dtype)

    def fake_lstm_steps(projected: Any, h: Any, c: Any, w: Any) -> tuple[Any, Any]:
        shape = (projected.shape[0], *h.shape)
        return h.new_empty(shape), h.new_empty(shape)

    def fake_gru_steps(projected: Any, h: Any, w: Any, bias: Any) -> Any:
        return h.new_empty((projected.shape[0], *h.shape))

    def fake_rnn_steps(projected: Any, h: Any, w: Any, nonlinearity: str) -> Any:
        return h.new_empty((projected.shape[0], *h.shape))

    found = {}
    for function, fake, schema in (
        (
            lstm_steps,
            fake_lstm_steps,
            "(Tensor projected, Tensor h, Tensor c, Tensor w) -> (Tensor, Tensor)",
        ),
        (
            gru_steps,
            fake_gru_steps,
            "(Tensor projected, Tensor h, Tensor w, Tensor bias) -> Tensor",
        ),
        (
            rnn_steps,
            fake_rnn_steps,
            "(Tensor projected, Tensor h, Tensor w, str nonlinearity) -> Tensor",
        ),
    ):
        name = function.__name__
        operator = torch.library.custom_op(
            f"needle::{name}", function, mutates_args=(), schema=schema
        )
        operator.register_fake(fake)
        found[name] = operator
    return found


def _wide(*tensors: Any) -> list[Any]:
    """Halves in float32: all steps are computed in it, and rounded once."""
    return [each.float() if each.itemsize < 4 else each for each in tensors]


def _converted(op: Callable[..., Any], name: str, results: int) -> Callable[[Any, Any], Any]:
    """The converter of an operator of steps to the op of needle with the same operands. The first
    `results` of the op's results are the operator's. Texts among the arguments are the op's
    attributes."""

    def convert(node: Any, importer: Any) -> Any:
        emit = importer.block_builder.emit
        steps = op(*(each for each in node.args if isinstance(each, str)))

        def expressions(*operands: Any) -> Any:
            made = steps.emit_te(TE_NAMESPACE, *operands)
            return list(made) if isinstance(made, tuple) else made

        made = importer.block_builder.emit_te(
            expressions,
            *(importer.env[each] for each in node.args if not isinstance(each, str)),
            primfunc_name_hint=name,
        )
        known = node.meta["val"]
        known = known if isinstance(known, (tuple, list)) else [known]
        is_tuple = isinstance(made.ty, relax.TupleType)
        parts = [emit(relax.TupleGetItem(made, n)) if is_tuple else made for n in range(results)]
        parts = [
            emit(relax.op.astype(part, str(each.dtype).partition(".")[2]))
            if str(part.ty.dtype) != str(each.dtype).partition(".")[2]
            else part
            for part, each in zip(parts, known, strict=True)
        ]
        return parts[0] if results == 1 else emit(relax.Tuple(parts))

    return convert


def _with_projections(node: Any, importer: Any) -> Any:
    """Raise ValueError: there is no kernel for what `lstm` leaves."""
    raise ValueError("no translation of an LSTM with projections (proj_size)")


# By the names of the operators.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "lstm.input": lstm,
    "gru.input": gru,
    "rnn_tanh.input": functools.partial(rnn, "tanh"),
    "rnn_relu.input": functools.partial(rnn, "relu"),
}
CONVERTERS: dict[str, Callable[[Any, Any], Any]] = {
    "lstm_steps.default": _converted(LstmSequence, "lstm_sequence", 2),
    "lstm.input": _with_projections,
    "gru_steps.default": _converted(GruSequence, "gru_sequence", 1),
    "rnn_steps.default": _converted(RnnSequence, "rnn_sequence", 1),
}
