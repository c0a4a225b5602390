"""Ops that the frozen programs name and needle no longer has, as scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needle as ndl
from needle import ops
from needle.recurrence import layers

Tensor = Any


def _before(first: Tensor, states: Tensor) -> Tensor:
    """The states before each step, from those after it."""
    return ops.concat([ops.unsqueeze(first, 0), states[:-1]], 0)


def lstm() -> Callable[..., Any]:
    def run(z: Tensor, h: Tensor, c: Tensor, w: Tensor) -> Any:
        hidden, cells, *_ = layers.lstm(z, h, c, w)
        return hidden, cells, z + _before(h, hidden) @ w

    return run


def gru() -> Callable[..., Any]:
    def run(z: Tensor, h: Tensor, w: Tensor, bias: Tensor) -> Any:
        hidden, _ = layers.gru(z, h, w, bias)
        return hidden, _before(h, hidden) @ w + bias

    return run


def gru_reset_first() -> Callable[..., Any]:
    def run(z: Tensor, h: Tensor, w: Tensor) -> Any:
        width = h.shape[1]

        def cell(h: Tensor, z: Tensor) -> Any:
            gates = ops.sigmoid(z[:, : 2 * width] + h @ w[:, : 2 * width])
            r, keep = gates[:, :width], gates[:, width:]
            new = ops.tanh(z[:, 2 * width :] + (r * h) @ w[:, 2 * width :])
            after = new + keep * (h - new)
            return after, (after, gates)

        return ndl.scan(cell, h, z)[1]

    return run


def rnn(nonlinearity: str = "tanh") -> Callable[..., Any]:
    return lambda z, h, w: layers.rnn(z, h, w, nonlinearity=nonlinearity)[0]


GONE = {
    "LstmSequence": lstm,
    "GruSequence": gru,
    "GruResetFirst": gru_reset_first,
    "RnnSequence": rnn,
}
