"""Cells of recurrent layers: single steps of a plain RNN, an LSTM and a GRU.

As in PyTorch, gates have the order i, f, g, o (LSTM) and r, z, n (GRU). Weights are drawn uniformly
between -b and b = 1 / sqrt(hidden_size).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from .. import init, ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts
from ..errors import ShapeError
from .layout import Layout, transposed
from .module import Module
from .parameter import Parameter

_NONLINEARITIES = {"tanh": ops.tanh, "relu": ops.relu}


class Cell(Module):
    """Base class of the cells, which map the input and the state to the pre-activations of `gates`
    gates."""

    _parameter_names = frozenset({"W_ih", "W_hh", "bias_ih", "bias_hh"})
    _torch_axes: ClassVar = {"W_ih": (1, 0), "W_hh": (1, 0)}

    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        if isinstance(bias, str):  # in PyTorch's RNN this argument is the nonlinearity
            raise TypeError(
                f"{type(self).__name__}: bias is {bias!r}, not a bool; give nonlinearity by name"
            )
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
        """Return the input's pre-activations: (..., input_size) -> (..., gates * hidden_size)."""
        y = ops.matmul(X, self.W_ih)
        if self.bias_ih is None or self.bias_hh is None:
            return y
        return y + (self.bias_ih + self.bias_hh)

    def zero_state(self, X: Tensor) -> Tensor:
        """Return the state before the first step, for inputs like X."""
        return init.zeros(X.shape[-2], self.hidden_size, device=X.device, dtype=X.dtype)

    def check_input(self, X: Tensor, ndim: int) -> None:
        """Raise ShapeError unless X has `ndim` axes, the last of extent input_size."""
        axes = "(seq_len, bs, input_size)" if ndim == 3 else "(bs, input_size)"
        if X.ndim != ndim or X.shape[-1] != self.input_size:
            raise ShapeError(
                f"{type(self).__name__}: X has shape {X.shape}; it must be {axes} with input_size "
                f"{self.input_size}"
            )

    def check_state(self, h: Tensor, X: Tensor) -> None:
        """Raise ShapeError unless `h` is a state for inputs like X."""
        expected = (X.shape[-2], self.hidden_size)
        if h.shape != expected:
            raise ShapeError(
                f"{type(self).__name__}: a state has shape {h.shape}; it must be {expected}"
            )

    def torch_layout(self) -> Layout:
        return {"W_ih": transposed("weight_ih"), "W_hh": transposed("weight_hh")}

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, bias={self.bias_ih is not None}"


class RNNCell(Cell):
    """h' = nonlinearity(X @ W_ih + bias_ih + h @ W_hh + bias_hh), with "tanh" or "relu".

    W_ih is (input_size, hidden_size) and W_hh (hidden_size, hidden_size); the biases are
    (hidden_size,) or None.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype)
        if nonlinearity not in tuple(_NONLINEARITIES):  # a tuple takes unhashable values
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
        """Return h', computed from the projected input and h."""
        return _NONLINEARITIES[self.nonlinearity](projected + ops.matmul(h, self.W_hh))


class LSTMCell(Cell):
    """i, f, g, o = X @ W_ih + bias_ih + h @ W_hh + bias_hh, side by side;
    c' = sigmoid(f) * c + sigmoid(i) * tanh(g); h' = sigmoid(o) * tanh(c').

    W_ih is (input_size, 4 * hidden_size), W_hh is (hidden_size, 4 * hidden_size), and the biases
    are (4 * hidden_size,) or None.

    >>> h, c = nn.LSTMCell(3, 4)(ndl.zeros(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    gates = 4

    def forward(self, X: Tensor, h: Any = None) -> tuple[Tensor, Tensor]:
        """X (bs, input_size), h = (h, c), each (bs, hidden_size), or None for zeros -> (h', c')."""
        self.check_input(X, 2)
        hidden, cell = pair("LSTMCell", h) or (self.zero_state(X), self.zero_state(X))
        self.check_state(hidden, X)
        self.check_state(cell, X)
        return self.step(self.project(X), hidden, cell)

    def step(self, projected: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return (h', c'), computed from the projected input, h and c."""
        hidden, cell = ops.lstm_gates(projected + ops.matmul(h, self.W_hh), c)
        return hidden, cell


class GRUCell(Cell):
    """a_r, a_z, a_n = X @ W_ih + bias_ih and b_r, b_z, b_n = h @ W_hh + bias_hh, each side by side;
    r = sigmoid(a_r + b_r), z = sigmoid(a_z + b_z), n = tanh(a_n + r * b_n), and h' = (1 - z) * n +
    z * h.

    W_ih is (input_size, 3 * hidden_size), W_hh is (hidden_size, 3 * hidden_size), and the biases
    are (3 * hidden_size,) or None (Cho et al. 2014; the reset gate is applied as in PyTorch).
    """

    gates = 3

    def project(self, X: Tensor) -> Tensor:
        """Return the input's pre-activations: (..., input_size) -> (..., 3 * hidden_size)."""
        y = ops.matmul(X, self.W_ih)
        return y if self.bias_ih is None else y + self.bias_ih

    def forward(self, X: Tensor, h: Tensor | None = None) -> Tensor:
        """X (bs, input_size), h (bs, hidden_size) or None for zeros -> h' (bs, hidden_size)."""
        self.check_input(X, 2)
        h = self.zero_state(X) if h is None else h
        self.check_state(h, X)
        return self.step(self.project(X), h)

    def step(self, projected: Tensor, h: Tensor) -> Tensor:
        """Return h', computed from the projected input and h."""
        own = ops.matmul(h, self.W_hh)
        own = own if self.bias_hh is None else own + self.bias_hh
        return ops.gru_gates(projected, own, h)


def pair(name: str, h: Any) -> tuple[Tensor, Tensor] | None:
    """Return `h` as an LSTM's state (h, c), or None if it is None. Raises TypeError for any other
    value."""
    if h is None:
        return None
    if not isinstance(h, (tuple, list)) or len(h) != 2:
        raise TypeError(f"{name}: the state must be a pair (h, c), not a {type(h).__name__}")
    return h[0], h[1]
