"""Recurrent layers over whole sequences: RNN, LSTM and GRU.

As in PyTorch, each layer reads the outputs of the layer below it. A bidirectional layer also reads
the sequence backwards, with a second cell, and concatenates both outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .. import init, ops
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import counts, fraction
from ..errors import ShapeError
from ..recurrence import layers as recurrent
from . import functional as F
from .cells import Cell, GRUCell, LSTMCell, RNNCell, pair
from .layout import Form, Layout, transposed
from .module import Module


class _Recurrent(Module):
    """Base class of the recurrent layers. The lists `<kind>_cells` and, if bidirectional,
    `<kind>_cells_reverse` have one cell per layer."""

    kind: ClassVar[str]

    def __init__(
        self,
        cell: Callable[[int], Cell],
        input_size: int,
        hidden_size: int,
        num_layers: int,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        counts(name, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        self.batch_first = batch_first
        self.bidirectional = bidirectional
        self.dropout = fraction(name, "dropout", dropout)
        width = hidden_size * (2 if bidirectional else 1)
        sizes = [input_size] + [width] * (num_layers - 1)
        setattr(self, f"{self.kind}_cells", [cell(size) for size in sizes])
        if bidirectional:
            setattr(self, f"{self.kind}_cells_reverse", [cell(size) for size in sizes])

    def layers(self) -> list[list[Cell]]:
        """Return the cells of each layer: one cell, or one forward and one backward cell."""
        forward = getattr(self, f"{self.kind}_cells")
        backward = [getattr(self, f"{self.kind}_cells_reverse")] if self.bidirectional else []
        return [list(cells) for cells in zip(forward, *backward, strict=True)]

    def flatten_parameters(self) -> None:
        """Do nothing, because needle's weights need not share one block of memory."""

    def torch_layout(self) -> Layout:
        forms: dict[str, Form] = {}
        for direction in ("", "_reverse") if self.bidirectional else ("",):
            cells = f"{self.kind}_cells{direction}"
            for i in range(len(getattr(self, cells))):
                end = f"_l{i}{direction}"
                forms[f"{cells}.{i}.W_ih"] = transposed(f"weight_ih{end}")
                forms[f"{cells}.{i}.W_hh"] = transposed(f"weight_hh{end}")
                forms[f"{cells}.{i}.bias_ih"] = Form(f"bias_ih{end}")
                forms[f"{cells}.{i}.bias_hh"] = Form(f"bias_hh{end}")
        return forms

    def _run(self, X: Tensor, *states: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the outputs of the last layer, and the states of each layer and direction after
        the last step, each (layers * directions, bs, hidden_size)."""
        first = self.layers()[0][0]
        if self.batch_first:
            if X.ndim != 3:
                first.check_input(X, 3)  # raises the error
            X = ops.transpose(X, (0, 1))
        _check_sequence(first, X)
        layers = self.layers()
        flat = [cell for layer in layers for cell in layer]
        begin = [iter(_states(flat, X, state)) for state in states]
        last: list[list[Tensor]] = [[] for _ in states]
        for i, layer in enumerate(layers):
            if i:
                X = F.dropout(X, self.dropout, self.training)
            outputs = []
            for backward, cell in enumerate(layer):
                Z, *after = self._sequence(cell, X, bool(backward), *[next(s) for s in begin])
                outputs.append(Z)
                for kept, state in zip(last, after, strict=True):
                    kept.append(state)
            X = outputs[0] if len(outputs) == 1 else ops.concat(outputs, 2)
        X = ops.transpose(X, (0, 1)) if self.batch_first else X
        return X, tuple(ops.stack(kept, 0) for kept in last)

    def _sequence(self, cell: Any, X: Tensor, reverse: bool, *state: Tensor) -> tuple[Tensor, ...]:
        """Run one cell over X. Return the outputs of all steps and the states after the last
        step."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        cells = self.layers()
        first = cells[0][0]
        options = {
            "batch_first": self.batch_first,
            "dropout": self.dropout,
            "bidirectional": self.bidirectional,
        }
        shown = "".join(f", {name}={value}" for name, value in options.items() if value)
        return f"{first.input_size}, {first.hidden_size}, num_layers={len(cells)}{shown}"


class RNN(_Recurrent):
    """`num_layers` layers of RNNCell over sequences; the cells are in `rnn_cells`.

    input_size, hidden_size and nonlinearity are as in RNNCell. Sequences are (seq_len, bs,
    input_size) or, with `batch_first`, (bs, seq_len, input_size); `forward` lists all other shapes.
    With `bidirectional`, a layer has a second cell, in `rnn_cells_reverse`, that reads the sequence
    backwards. In train mode `dropout` drops outputs of all layers but the last.
    """

    kind = "rnn"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        def cell(size: int) -> Cell:
            return RNNCell(size, hidden_size, bias, nonlinearity, device, dtype)

        sizes = input_size, hidden_size, num_layers
        super().__init__(cell, *sizes, batch_first, dropout, bidirectional)

    def forward(self, X: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the layers over X (seq_len, bs, input_size), or (bs, seq_len, input_size) with
        batch_first, starting at the states h0 (num_layers, bs, hidden_size) (None: zeros). Return
        the output (seq_len, bs, hidden_size) of the last layer, and the last states, shaped like
        h0. If bidirectional, the output has 2 * hidden_size features, and the states are
        (num_layers * 2, ...): for each layer, the forward state and then the backward state."""
        X, (last,) = self._run(X, h0)
        return X, last

    def _sequence(self, cell: Any, X: Tensor, reverse: bool, *state: Tensor) -> tuple[Tensor, ...]:
        (h,), name = state, cell.nonlinearity
        return recurrent.rnn(cell.project(X), h, cell.W_hh, nonlinearity=name, reverse=reverse)


class GRU(_Recurrent):
    """`num_layers` layers of GRUCell over sequences; the cells are in `gru_cells`. The arguments
    are as in RNN, without nonlinearity.

    With `bidirectional`, a layer has a second cell, in `gru_cells_reverse`, that reads the sequence
    backwards. In train mode `dropout` drops outputs of all layers but the last.

    >>> output, last = nn.GRU(3, 4, bidirectional=True)(ndl.zeros(7, 2, 3))
    >>> output.shape, last.shape
    ((7, 2, 8), (2, 2, 4))
    """

    kind = "gru"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        def cell(size: int) -> Cell:
            return GRUCell(size, hidden_size, bias, device, dtype)

        sizes = input_size, hidden_size, num_layers
        super().__init__(cell, *sizes, batch_first, dropout, bidirectional)

    def forward(self, X: Tensor, h0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """X, h0 and the results are as in RNN."""
        X, (last,) = self._run(X, h0)
        return X, last

    def _sequence(self, cell: Any, X: Tensor, reverse: bool, *state: Tensor) -> tuple[Tensor, ...]:
        bias = cell.bias_hh
        if bias is None:
            bias = init.zeros(cell.W_hh.shape[1], device=X.device, dtype=X.dtype)
        (h,) = state
        return recurrent.gru(cell.project(X), h, cell.W_hh, bias, reverse=reverse)


class LSTM(_Recurrent):
    """`num_layers` layers of LSTMCell over sequences; the cells are in `lstm_cells`. The arguments
    are as in RNN, without nonlinearity.

    With `bidirectional`, a layer has a second cell, in `lstm_cells_reverse`, that reads the
    sequence backwards. In train mode `dropout` drops outputs of all layers but the last.

    >>> output, (h, c) = nn.LSTM(3, 4, num_layers=2, batch_first=True)(ndl.zeros(2, 7, 3))
    >>> output.shape, h.shape, c.shape
    ((2, 7, 4), (2, 2, 4), (2, 2, 4))
    """

    kind = "lstm"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: str = "float32",
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        def cell(size: int) -> Cell:
            return LSTMCell(size, hidden_size, bias, device, dtype)

        sizes = input_size, hidden_size, num_layers
        super().__init__(cell, *sizes, batch_first, dropout, bidirectional)

    def forward(self, X: Tensor, h: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the layers over X (seq_len, bs, input_size), starting at the states h = (h0, c0),
        each (num_layers, bs, hidden_size) (None: zeros). Return the output (seq_len, bs,
        hidden_size) of the last layer, and the last states, shaped like (h0, c0). batch_first and
        bidirectional change the shapes as in RNN.
        """
        X, (hidden, cell) = self._run(X, *(pair("LSTM", h) or (None, None)))
        return X, (hidden, cell)

    def _sequence(self, cell: Any, X: Tensor, reverse: bool, *state: Tensor) -> tuple[Tensor, ...]:
        h, c = state
        Z, _, *last = recurrent.lstm(cell.project(X), h, c, cell.W_hh, reverse=reverse)
        return Z, *last


def _check_sequence(cell: Cell, X: Tensor) -> None:
    cell.check_input(X, 3)
    if X.shape[0] == 0:
        raise ShapeError(f"{type(cell).__name__}: X {X.shape} has no steps; give at least one")


def _states(cells: list[Cell], X: Tensor, state: Tensor | None) -> list[Tensor]:
    """Return the initial state of each cell."""
    if state is None:
        return [cell.zero_state(X) for cell in cells]
    expected = (len(cells), X.shape[1], cells[0].hidden_size)
    if state.shape != expected:
        raise ShapeError(
            f"{type(cells[0]).__name__}: the initial state has shape {state.shape}; it must be "
            f"{expected}"
        )
    return list(ops.split(state, 0))
