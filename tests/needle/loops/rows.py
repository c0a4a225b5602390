"""Cells that differ in what they do with states, slices and what is around them.

A cell takes m, needle or PyTorch, whose functions of these names are alike. `s` is a list of states
of shape (3,), `x` a slice of shape (3,), `w` a matrix that the cell closes over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    cell: Callable[..., Any]  # (m, s, x, w) -> (next states, ys)
    states: int = 1


def _with_no_grad(m, s, x, w):
    with m.no_grad():
        factor = s[0] * 2
    return [s[0] * 0.5 + factor * x], [s[0] * factor]


def _part_of_a_tuple(m, s, x, w):
    with m.no_grad():
        factor = m.sort(s[0], 0)[0]
    return [s[0] * 0.5 + factor * x], [m.sort(s[0] * x, 0)[0]]


ROWS = {
    # What becomes of states
    "passed on": Row(lambda m, s, x, w: ([s[0], s[1] + x * s[0]], [s[0]]), 2),
    "swapped": Row(lambda m, s, x, w: ([s[1], s[0]], [s[0] * x, s[1]]), 2),
    "swapped and changed": Row(lambda m, s, x, w: ([s[1], s[0] * 0.9 + x], [s[0] * s[1]]), 2),
    "rotated": Row(lambda m, s, x, w: ([s[1], s[2], s[0] * x], [s[0], s[1], s[2]]), 3),
    "a constant": Row(lambda m, s, x, w: ([w[0] * 2], [s[0] + x])),
    "the slice": Row(lambda m, s, x, w: ([x], [s[0]])),
    "a view of the slice": Row(lambda m, s, x, w: ([x.reshape(1, 3)[0]], [s[0].reshape(3, 1)])),
    "a broadcast slice": Row(lambda m, s, x, w: ([x[:1] * (s[0] * 0 + 1)], [s[0] * x])),
    "two of one value": Row(lambda m, s, x, w: ([s[0] * s[1] + x] * 2, [s[0]]), 2),
    "not read": Row(lambda m, s, x, w: ([m.tanh(x)], [x * 2])),
    "shifted": Row(lambda m, s, x, w: ([m.stack([s[0][1], s[0][2], x[0]])], [s[0][0] * x])),
    # Results
    "no results": Row(lambda m, s, x, w: ([m.tanh(s[0] + x)], [])),
    "the new state": Row(lambda m, s, x, w: ([n := m.tanh(s[0] + x)], [n, n])),
    "old and new state": Row(lambda m, s, x, w: ([n := s[0] * 0.5 + x], [s[0], n, n - s[0]])),
    "slices and constants": Row(lambda m, s, x, w: ([s[0] * 0.9], [x, w, w @ w, x * 1])),
    "numbers": Row(lambda m, s, x, w: ([s[0] * 0.5 + x], [(s[0] * x).sum(), x[0], s[0][1:2]])),
    # What is computed before and behind the loop
    "products of slices": Row(lambda m, s, x, w: ([m.tanh(s[0] @ w + x @ w)], [(x @ w) * s[0]])),
    "products of results": Row(lambda m, s, x, w: ([s[0] * 0.9 + x], [m.tanh(s[0] @ w) @ w])),
    "products of constants": Row(lambda m, s, x, w: ([m.tanh(s[0] @ (w @ w))], [w @ x])),
    "inner products": Row(lambda m, s, x, w: ([s[0] * (s[0] @ x) * 0.1 + x], [x @ x])),
    "outer products": Row(
        lambda m, s, x, w: ([m.tanh((s[0].reshape(3, 1) * x) @ w).sum(0)], [x.reshape(3, 1) * s[0]])
    ),
    # Gradients that stop
    "detached": Row(lambda m, s, x, w: ([m.tanh(s[0].detach() + x) * s[0]], [s[0].detach() * x])),
    "a whole state detached": Row(lambda m, s, x, w: ([s[0].detach() * 0.5 + x @ w], [s[0]])),
    "without gradient": Row(_with_no_grad),
    "a tuple without gradient": Row(_part_of_a_tuple),
    # Ops
    "choices": Row(lambda m, s, x, w: ([m.where(s[0] > x, s[0] * 0.5, x)], [m.maximum(s[0], x)])),
    "sorts": Row(lambda m, s, x, w: ([m.sort(s[0] * 0.7 + x, 0)[0]], [m.topk(s[0] * x, 2)[0]])),
    "places": Row(lambda m, s, x, w: ([s[0] * 0.5 + w[m.argmax(s[0], 0)]], [x[m.argmax(x, 0)]])),
    "running sums": Row(lambda m, s, x, w: ([m.cumsum(s[0] * 0.3 + x, 0)], [s[0]])),
    "reductions": Row(
        lambda m, s, x, w: ([m.softmax(s[0] + x, 0)], [m.logsumexp(s[0], 0), m.prod(x, 0)])
    ),
}
