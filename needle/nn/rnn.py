"""Recurrent layers: plain and LSTM, a step at a time and over whole sequences.

As in PyTorch, each layer reads the one below it, and gates have the order i, f, g, o. Weights are
drawn uniformly from +-1 / sqrt(hidden_size).
"""

from __future__ import annotations

import math
from typing import Any

from .. import init, ops
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import counts
from ..errors import ShapeError, TraceError
from ..extents import is_symbolic
from ..tensor import Tensor
from .module import Module, Parameter

_NONLINEARITIES = {"tanh": ops.tanh, "relu": ops.relu}


class _Cell(Module):
    """Base of both cells: weights for the input and the state, for `gates` pre-activations."""

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size = input_size
        self.hidden_size = hidden_size
        bound = 1 / math.sqrt(hidden_size)
        width = hidden_size * self.gates
        where: dict[str, Any] = {"low": -bound, "high": bound, "device": device, "dtype": dtype}
        self.W_ih = Parameter(init.rand(input_size, width, **where))
        self.W_hh = Parameter(init.rand(hidden_size, width, **where))
        self.bias_ih = Parameter(init.rand(width, **where)) if bias else None
        self.bias_hh = Parameter(init.rand(width, **where)) if bias else None

    def project(self, X: Tensor) -> Tensor:
        """The input's part of the gates: (..., input_size) -> (..., gates * hidden_size)."""
        y = ops.matmul(X, self.W_ih)
        if self.bias_ih is None or self.bias_hh is None:
            return y
        return y + (self.bias_ih + self.bias_hh)

    def zero_state(self, X: Tensor) -> Tensor:
        """The state before the first step, for inputs like X."""
        return init.zeros(X.shape[-2], self.hidden_size, device=X.device, dtype=X.dtype)

    def check_input(self, X: Tensor, ndim: int) -> None:
        """ShapeError unless X has `ndim` axes, the last of extent input_size."""
        axes = "(seq_len, bs, input_size)" if ndim == 3 else "(bs, input_size)"
        if X.ndim != ndim or X.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: X of shape {X.shape}; it must be {axes} with input_size "
                f"{self.input_size}"
            )

    def check_state(self, h: Tensor, X: Tensor) -> None:
        """ShapeError unless `h` is a state for inputs like X."""
        expected = (X.shape[-2], self.hidden_size)
        if h.shape != expected:
            raise ShapeError(
                f"{type(self).__name__}: a state of shape {h.shape}; it must be {expected}"
            )

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias_ih is not None}"


class RNNCell(_Cell):
    """h' = nonlinearity(X @ W_ih + bias_ih + h @ W_hh + bias_hh), with "tanh" or "relu".

    W_ih (input_size, hidden_size), W_hh (hidden_size, hidden_size), biases (hidden_size,) or None.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        if nonlinearity not in tuple(_NONLINEARITIES):  # also of an unhashable type
            known = " or ".join(map(repr, _NONLINEARITIES))
            raise ValueError(f"RNNCell: nonlinearity {nonlinearity!r} is not {known}")
        self.nonlinearity = nonlinearity

    def forward(self, X: Tensor, h: Tensor | None = None) -> Tensor:
        """X (bs, input_size), h (bs, hidden_size) or None for zeros -> h' (bs, hidden_size)."""
        self.check_input(X, 2)
        h = self.zero_state(X) if h is None else h
        self.check_state(h, X)
        return self.step(self.project(X), h)

    def step(self, projected: Tensor, h: Tensor) -> Tensor:
        """h' from the projected input and h."""
        return _NONLINEARITIES[self.nonlinearity](projected + ops.matmul(h, self.W_hh))


class LSTMCell(_Cell):
    """i, f, g, o = X @ W_ih + bias_ih + h @ W_hh + bias_hh, side by side;
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g); h' = sigmoid(o) * tanh(c').

    W_ih (input_size, 4 * hidden_size), W_hh (hidden_size, 4 * hidden_size), biases
    (4 * hidden_size,) or None.
    """

    gates = 4

    def forward(self, X: Tensor, h: Any = None) -> tuple[Tensor, Tensor]:
        """X (bs, input_size), h = (h, c), each (bs, hidden_size), or None for zeros -> (h', c')."""
        self.check_input(X, 2)
        hidden, cell = _pair("LSTMCell", h) or (self.zero_state(X), self.zero_state(X))
        self.check_state(hidden, X)
        self.check_state(cell, X)
        return self.step(self.project(X), hidden, cell)

    def step(self, projected: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """(h', c') from the projected input, h and c."""
        hidden, cell = ops.lstm_gates(projected + ops.matmul(h, self.W_hh), c)
        return hidden, cell


class RNN(Module):
    """`num_layers` layers of RNNCell over sequences; the cells are in `rnn_cells`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.rnn_cells = [
            RNNCell(inputs, hidden_size, bias, nonlinearity, device, dtype)
            for inputs in _input_sizes("RNN", input_size, hidden_size, num_layers)
        ]

    def forward(self, X: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """X (seq_len, bs, input_size), h0 (num_layers, bs, hidden_size) or None for zeros ->
        output (seq_len, bs, hidden_size) of the last layer, h_n (num_layers, bs, hidden_size)."""
        _check_sequence(self.rnn_cells[0], X)
        if is_symbolic(X.shape[:1]):
            raise TraceError(
                f"RNN: X of shape {X.shape} has as many steps as a size that is not known while "
                "tracing; give axis 0 a number, or use LSTM, whose steps are one operation"
            )
        states = _states(self.rnn_cells, X, h0)
        last = []
        for cell, h in zip(self.rnn_cells, states, strict=True):
            outputs = []
            for projected in ops.split(cell.project(X), 0):
                h = cell.step(projected, h)
                outputs.append(h)
            X = ops.stack(outputs, 0)
            last.append(h)
        return X, ops.stack(last, 0)


class LSTM(Module):
    """`num_layers` layers of LSTMCell over sequences; the cells are in `lstm_cells`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.lstm_cells = [
            LSTMCell(inputs, hidden_size, bias, device, dtype)
            for inputs in _input_sizes("LSTM", input_size, hidden_size, num_layers)
        ]

    def forward(self, X: Tensor, h: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """X (seq_len, bs, input_size), h = (h0, c0), each (num_layers, bs, hidden_size), or None
        for zeros -> output (seq_len, bs, hidden_size) of the last layer, (h_n, c_n) like (h0, c0).
        """
        _check_sequence(self.lstm_cells[0], X)
        h0, c0 = _pair("LSTM", h) or (None, None)
        hiddens, cells = _states(self.lstm_cells, X, h0), _states(self.lstm_cells, X, c0)
        last_hidden, last_cell = [], []
        for layer, hidden, cell in zip(self.lstm_cells, hiddens, cells, strict=True):
            X, after, _ = ops.lstm_sequence(layer.project(X), hidden, cell, layer.W_hh)
            hidden, cell = X[-1], after[-1]
            last_hidden.append(hidden)
            last_cell.append(cell)
        return X, (ops.stack(last_hidden, 0), ops.stack(last_cell, 0))


def _input_sizes(name: str, input_size: int, hidden_size: int, num_layers: int) -> list[int]:
    counts(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
    return [input_size] + [hidden_size] * (num_layers - 1)


def _check_sequence(cell: _Cell, X: Tensor) -> None:
    cell.check_input(X, 3)
    if X.shape[0] == 0:
        raise ShapeError(f"{type(cell).__name__}: X of shape {X.shape} is a sequence of no steps")


def _states(cells: Any, X: Tensor, state: Tensor | None) -> list[Tensor]:
    """The initial state of each layer."""
    if state is None:
        return [cell.zero_state(X) for cell in cells]
    expected = (len(cells), X.shape[1], cells[0].hidden_size)
    if state.shape != expected:
        raise ShapeError(
            f"{type(cells[0]).__name__}: an initial state of shape {state.shape}; it must be "
            f"{expected}"
        )
    return list(ops.split(state, 0))


def _pair(name: str, h: Any) -> tuple[Tensor, Tensor] | None:
    if h is None:
        return None
    if not isinstance(h, (tuple, list)) or len(h) != 2:
        raise TypeError(f"{name}: the state must be a pair (h, c), not a {type(h).__name__}")
    return h[0], h[1]
