"""The reference device's layers on NumPy arrays. See layers.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def _check(right: bool, name: str, *arrays: Array) -> None:
    if not right or len({a.dtype for a in arrays}) != 1:
        given = " and ".join(f"{a.dtype} {a.shape}" for a in arrays)
        raise ValueError(f"{name}: {given} do not match")


def _rows(name: str, x: Array) -> Array:
    """Return x as a float64 matrix whose rows run along its last axis."""
    count = math.prod(x.shape[:-1])
    if not count:
        raise ValueError(f"{name}: x {x.shape} has no rows")
    return x.astype("float64").reshape((count, x.shape[-1]))


def batch_norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, ...]:
    fits = x.ndim > 1 and weight.shape == bias.shape == x.shape[-1:]
    _check(fits, "batch_norm", x, weight, bias)
    wide = _rows("batch_norm", x)
    mean, variance = wide.mean(0), wide.var(0)
    y = (wide - mean) / np.sqrt(variance + eps) * weight + bias
    return tuple(a.astype(x.dtype) for a in (y.reshape(x.shape), mean, variance))


def batch_norm_grad(
    grad: Array, x: Array, weight: Array, mean: Array, variance: Array, eps: float
) -> tuple[Array, ...]:
    fits = x.ndim > 1 and grad.shape == x.shape
    fits = fits and weight.shape == mean.shape == variance.shape == x.shape[-1:]
    _check(fits, "batch_norm_grad", x, grad, weight, mean, variance)
    rows = _rows("batch_norm_grad", x)
    g = grad.astype("float64").reshape(rows.shape)
    scale = 1 / np.sqrt(variance.astype("float64") + eps)
    y = (rows - mean) * scale
    to_weight, to_bias = (g * y).sum(0), g.sum(0)
    to_x = weight * scale * (g - to_bias / len(rows) - y * to_weight / len(rows))
    return tuple(a.astype(x.dtype) for a in (to_x.reshape(x.shape), to_weight, to_bias))


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _gates(name: str, sums: Array, *cells: Array) -> list[Array]:
    first = cells[0]
    fits = sums.ndim == first.ndim == 2 and sums.shape == (first.shape[0], 4 * first.shape[1])
    _check(fits and all(c.shape == first.shape for c in cells), name, sums, *cells)
    i, f, g, o = np.split(sums.astype("float64"), 4, axis=1)
    return [_sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)]


def lstm_gates(sums: Array, cell: Array) -> tuple[Array, ...]:
    i, f, g, o = _gates("lstm_gates", sums, cell)
    following = f * cell + i * g
    return tuple(a.astype(sums.dtype) for a in (o * np.tanh(following), following))


def lstm_gates_grad(
    sums: Array,
    cell: Array,
    following: Array,
    of_hidden: Array | None,
    of_following: Array | None,
) -> tuple[Array, ...]:
    given = [a for a in (following, of_hidden, of_following) if a is not None]
    i, f, g, o = _gates("lstm_gates_grad", sums, cell, *given)
    of_hidden = np.zeros_like(cell) if of_hidden is None else of_hidden
    t = np.tanh(following.astype("float64"))
    of_cell = of_hidden * o * (1 - t * t)
    if of_following is not None:
        of_cell = of_cell + of_following
    parts = [
        of_cell * g * i * (1 - i),
        of_cell * cell * f * (1 - f),
        of_cell * i * (1 - g * g),
        of_hidden * t * o * (1 - o),
    ]
    return tuple(a.astype(sums.dtype) for a in (np.concatenate(parts, 1), of_cell * f))


def lstm_sequence(projected: Array, h: Array, c: Array, w: Array) -> tuple[Array, ...]:
    name = "lstm_sequence"
    _check(projected.ndim == 3 and len(projected) > 0, name, projected, h, c, w)
    _check(w.shape == (*h.shape[1:], *projected.shape[2:]), name, projected, h, c, w)
    made: list[tuple[Array, ...]] = []
    for step in projected:
        sums = step + h @ w
        h, c = lstm_gates(sums, c)
        made.append((h, c, sums))
    return tuple(np.stack(parts) for parts in zip(*made, strict=True))


def lstm_sequence_grad(
    h: Array,
    c: Array,
    w: Array,
    hidden: Array,
    cells: Array,
    sums: Array,
    of_hidden: Array | None,
    of_cells: Array | None,
) -> tuple[Array, ...]:
    of_hidden = np.zeros_like(hidden) if of_hidden is None else of_hidden
    of_cells = np.zeros_like(cells) if of_cells is None else of_cells
    _check(of_hidden.shape == of_cells.shape == cells.shape, "lstm_sequence_grad", cells, of_cells)
    to_h, to_c, to_sums = np.zeros_like(h), np.zeros_like(c), np.zeros_like(sums)
    to_w = np.zeros(w.shape)
    for t in reversed(range(len(sums))):
        before = (hidden[t - 1], cells[t - 1]) if t else (h, c)
        gradients = of_hidden[t] + to_h, of_cells[t] + to_c
        to_sums[t], to_c = lstm_gates_grad(sums[t], before[1], cells[t], *gradients)
        to_h = to_sums[t] @ w.T
        to_w += before[0].T.astype("float64") @ to_sums[t]
    return to_sums, to_h, to_c, to_w.astype(w.dtype)
