"""Twelve cells that people write, each with `ndl.scan` in a few lines.

`CELLS` has, for each: the model, a function of Tensors whose first is (steps, batch, ...); the same
in NumPy, as a loop over steps and over the batch where that is shorter; and inputs. B is the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import needle as ndl

# Recurrent layers


def peephole_lstm(x, h, c, w, u, b, p):
    """Gers and Schmidhuber, "Recurrent nets that time and count" (2000): gates see the cell."""

    def cell(state, x):
        h, c = state
        i, f, g, o = ndl.chunk(x @ w + h @ u + b, 4, -1)
        i, f = ndl.sigmoid(i + p[0] * c), ndl.sigmoid(f + p[1] * c)
        c = f * c + i * ndl.tanh(g)
        h = ndl.sigmoid(o + p[2] * c) * ndl.tanh(c)
        return (h, c), h

    (h, c), hs = ndl.scan(cell, (h, c), x)
    return h, c, hs


def layer_norm_lstm(x, h, c, w, u, gains, biases):
    """Ba, Kiros and Hinton, "Layer normalization" (2016)."""

    def cell(state, x):
        z = ndl.layer_norm(x @ w, gains[0], biases[0]) + ndl.layer_norm(
            state["h"] @ u, gains[1], biases[1]
        )
        i, f, g, o = ndl.chunk(z, 4, -1)
        c = ndl.sigmoid(f) * state["c"] + ndl.sigmoid(i) * ndl.tanh(g)
        h = ndl.sigmoid(o) * ndl.tanh(ndl.layer_norm(c, ndl.ones_like(c[0]), ndl.zeros_like(c[0])))
        return {"h": h, "c": c}, h

    state, hs = ndl.scan(cell, {"h": h, "c": c}, x)
    return state["c"], hs


def minimal_gru(x, h, w, u, b):
    """Zhou and others, "Minimal gated unit for recurrent neural networks" (2016)."""

    def cell(h, x):
        f = ndl.sigmoid(x @ w[0] + h @ u[0] + b[0])
        new = ndl.tanh(x @ w[1] + (f * h) @ u[1] + b[1])
        h = (1 - f) * h + f * new
        return h, h

    return ndl.scan(cell, h, x, reverse=True)


def ind_rnn(x, h, w, u, b):
    """Li and others, "Independently recurrent neural network" (2018)."""

    def cell(h, x):
        h = ndl.relu(x @ w + u * h + b)
        return h, h

    return ndl.scan(cell, h, x)


# State-space models and attention that is linear in time


def s4d(x, rate, angle, b, c, step):
    """Gu and others, "On the parameterization and initialization of diagonal state space models"
    (2022). Complex numbers are pairs; x is (steps, B, D), the state (B, D, N)."""
    size = ndl.exp(-ndl.exp(rate) * step)
    re, im = size * ndl.cos(angle * step), size * ndl.sin(angle * step)

    def cell(state, x):
        a, b_ = state
        a, b_ = re * a - im * b_ + b * ndl.unsqueeze(x, -1), re * b_ + im * a
        return (a, b_), 2 * (c[0] * a - c[1] * b_).sum(-1)

    zero = ndl.zeros_like(ndl.unsqueeze(x[0], -1) * rate)
    return ndl.scan(cell, (zero, zero), x)[1]


def s6(x, a, w_step, b_step, w_b, w_c, d):
    """Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces" (2023)."""

    def cell(h, x):  # x: (B, D), h: (B, D, N)
        step = ndl.softplus(x @ w_step + b_step)
        decay = ndl.exp(ndl.unsqueeze(step, -1) * -ndl.exp(a))
        h = decay * h + ndl.unsqueeze(step * x, -1) * ndl.unsqueeze(x @ w_b, 1)
        return h, (h * ndl.unsqueeze(x @ w_c, 1)).sum(-1) + d * x

    return ndl.scan(cell, ndl.zeros_like(ndl.unsqueeze(x[0], -1) * a), x)


def rwkv(x, decay, bonus, w_k, w_v, w_r):
    """Peng and others, "RWKV: reinventing RNNs for the transformer era" (2023), section D: the
    time mixing, with a running maximum against overflow."""

    def cell(state, x):
        top, bottom, most = state
        k, v = x @ w_k, x @ w_v
        peak = ndl.maximum(most, bonus + k)
        old, new = ndl.exp(most - peak), ndl.exp(bonus + k - peak)
        y = ndl.sigmoid(x @ w_r) * (old * top + new * v) / (old * bottom + new)
        peak = ndl.maximum(most - ndl.exp(decay), k)
        old, new = ndl.exp(most - ndl.exp(decay) - peak), ndl.exp(k - peak)
        return (old * top + new * v, old * bottom + new, peak), y

    zero = ndl.zeros_like(x[0])
    return ndl.scan(cell, (zero, zero, zero - 1e30), x)[1]


def gated_linear_attention(x, w_q, w_k, w_v, w_a):
    """Yang and others, "Gated linear attention transformers" (2023): the state is a matrix."""

    def cell(s, x):
        q, k, v, gate = x @ w_q, x @ w_k, x @ w_v, ndl.sigmoid(x @ w_a)
        s = ndl.unsqueeze(gate, -1) * s + ndl.unsqueeze(k, -1) * ndl.unsqueeze(v, 1)
        return s, ndl.squeeze(ndl.unsqueeze(q, 1) @ s, 1)

    first = ndl.zeros(x.shape[1], w_k.shape[1], w_v.shape[1], dtype=x.dtype)
    return ndl.scan(cell, first, x)


# Filters, spikes and searches


def kalman_filter(x, mean, cov, f, q, h, r):
    """Kalman, "A new approach to linear filtering and prediction problems" (1960): two measurements
    of a state, whose covariance has a closed inverse; x: (steps, B, 2)."""

    def inverse(s):
        a, b, c, d = s[:, :1, :1], s[:, :1, 1:], s[:, 1:, :1], s[:, 1:, 1:]
        turned = ndl.concat([ndl.concat([d, -b], 2), ndl.concat([-c, a], 2)], 1)
        return turned / (a * d - b * c)

    def cell(state, x):
        mean, cov = state
        mean, cov = mean @ f.transpose(), f @ cov @ f.transpose() + q
        gain = cov @ h.transpose() @ inverse(h @ cov @ h.transpose() + r)
        error = x - mean @ h.transpose()
        mean = mean + ndl.squeeze(gain @ ndl.unsqueeze(error, -1), -1)
        return (mean, cov - gain @ h @ cov), {"mean": mean, "error": error}

    (mean, cov), seen = ndl.scan(cell, (mean, cov), x)
    return mean, cov, seen["mean"], seen["error"]


def leaky_integrator(x, v, w, decay):
    """A layer of leaky integrate-and-fire neurons; a spike lowers the potential by 1."""

    def cell(v, x):
        v = decay * v + x @ w
        fires = v > 1
        return ndl.where(fires, v - 1, v), (fires.astype(x.dtype), v)

    v, (spikes, before) = ndl.scan(cell, v, x)
    return v, spikes, before


def hmm_forward(x, first, moves):
    """The forward algorithm of a hidden Markov model in logarithms (Rabiner, 1989); x has the
    log likelihoods of each observation, (steps, B, K)."""

    def cell(alpha, x):
        alpha = ndl.logsumexp(ndl.unsqueeze(alpha, -1) + moves, 1) + x
        return alpha, None

    alpha, _ = ndl.scan(cell, first + x[0], x[1:])
    return ndl.logsumexp(alpha, 1)


def beam_search(x, moves):
    """Scores of the 3 best paths through a Markov chain, and each step's tokens and parents; x has
    the log likelihoods of each step's tokens, (steps, B, V)."""
    size = moves.shape[0]

    def cell(state, x):
        scores, last = state
        found = ndl.unsqueeze(scores, -1) + ndl.embedding(last, moves) + ndl.unsqueeze(x, 1)
        scores, at = ndl.topk(found.reshape(-1, 3 * size), 3)
        parent, token = at // size, at % size
        return (scores, token), (parent, token)

    scores, last = ndl.topk(x[0], 3)
    (scores, _), (parents, tokens) = ndl.scan(cell, (scores, last), x[1:])
    return scores, parents, tokens


# The same in NumPy


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _normalized(x, gain=1.0, bias=0.0):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias


def np_peephole_lstm(x, h, c, w, u, b, p):
    hs = []
    for x_t in x:
        i, f, g, o = np.split(x_t @ w + h @ u + b, 4, -1)
        c = _sigmoid(f + p[1] * c) * c + _sigmoid(i + p[0] * c) * np.tanh(g)
        h = _sigmoid(o + p[2] * c) * np.tanh(c)
        hs.append(h)
    return h, c, np.stack(hs)


def np_layer_norm_lstm(x, h, c, w, u, gains, biases):
    hs = []
    for x_t in x:
        z = _normalized(x_t @ w, gains[0], biases[0]) + _normalized(h @ u, gains[1], biases[1])
        i, f, g, o = np.split(z, 4, -1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(_normalized(c))
        hs.append(h)
    return c, np.stack(hs)


def np_minimal_gru(x, h, w, u, b):
    hs = []
    for x_t in x[::-1]:
        f = _sigmoid(x_t @ w[0] + h @ u[0] + b[0])
        h = (1 - f) * h + f * np.tanh(x_t @ w[1] + (f * h) @ u[1] + b[1])
        hs.append(h)
    return h, np.stack(hs[::-1])


def np_ind_rnn(x, h, w, u, b):
    hs = []
    for x_t in x:
        h = np.maximum(x_t @ w + u * h + b, 0)
        hs.append(h)
    return h, np.stack(hs)


def np_s4d(x, rate, angle, b, c, step):
    a = np.exp((-np.exp(rate) + 1j * angle) * step)
    h, ys = np.zeros((*x.shape[1:], rate.shape[-1]), complex), []
    for x_t in x:
        h = a * h + b * x_t[..., None]
        ys.append(2 * ((c[0] + 1j * c[1]) * h).sum(-1).real)
    return (np.stack(ys),)


def np_s6(x, a, w_step, b_step, w_b, w_c, d):
    h, ys = np.zeros((*x.shape[1:], a.shape[-1])), []
    for x_t in x:
        step = np.log1p(np.exp(x_t @ w_step + b_step))
        h = np.exp(-np.exp(a) * step[..., None]) * h
        h = h + np.einsum("bd,bd,bn->bdn", step, x_t, x_t @ w_b)
        ys.append(np.einsum("bdn,bn->bd", h, x_t @ w_c) + d * x_t)
    return h, np.stack(ys)


def np_rwkv(x, decay, bonus, w_k, w_v, w_r):
    """As the sums are defined, without a running maximum."""
    k, v, r = x @ w_k, x @ w_v, _sigmoid(x @ w_r)
    ys = []
    for t in range(len(x)):
        ages = np.arange(t - 1, -1, -1).reshape(-1, 1, 1)
        weights = np.exp(-np.exp(decay) * ages + k[:t])
        own = np.exp(bonus + k[t])
        total = (weights * v[:t]).sum(0) + own * v[t]
        ys.append(r[t] * total / (weights.sum(0) + own))
    return (np.stack(ys),)


def np_gated_linear_attention(x, w_q, w_k, w_v, w_a):
    s, ys = np.zeros((x.shape[1], w_k.shape[1], w_v.shape[1])), []
    for x_t in x:
        s = _sigmoid(x_t @ w_a)[..., None] * s + np.einsum("bk,bv->bkv", x_t @ w_k, x_t @ w_v)
        ys.append(np.einsum("bk,bkv->bv", x_t @ w_q, s))
    return s, np.stack(ys)


def np_kalman_filter(x, mean, cov, f, q, h, r):
    means, errors = np.zeros((*x.shape[:2], mean.shape[-1])), np.zeros_like(x)
    ends = [], []
    for b in range(x.shape[1]):
        m, p = mean[b], cov[b]
        for t in range(len(x)):
            m, p = f @ m, f @ p @ f.T + q
            errors[t, b] = x[t, b] - h @ m
            gain = np.linalg.solve(h @ p @ h.T + r, h @ p.T).T
            m, p = m + gain @ errors[t, b], (np.eye(len(m)) - gain @ h) @ p
            means[t, b] = m
        ends[0].append(m)
        ends[1].append(p)
    return np.stack(ends[0]), np.stack(ends[1]), means, errors


def np_leaky_integrator(x, v, w, decay):
    spikes, before = [], []
    for x_t in x:
        v = decay * v + x_t @ w
        before.append(v)
        spikes.append((v > 1).astype(v.dtype))
        v = v - spikes[-1]
    return v, np.stack(spikes), np.stack(before)


def np_hmm_forward(x, first, moves):
    alpha = np.exp(first + x[0])
    for x_t in x[1:]:
        alpha = alpha @ np.exp(moves) * np.exp(x_t)
    return (np.log(alpha.sum(-1)),)


def np_beam_search(x, moves):
    steps, batch, size = x.shape
    scores = np.zeros((batch, 3))
    parents = np.zeros((steps - 1, batch, 3), int)
    tokens = np.zeros_like(parents)
    for b in range(batch):
        beams = sorted(((x[0, b, v], v) for v in range(size)), reverse=True)[:3]
        for t in range(1, steps):
            every = [
                (score + moves[last, v] + x[t, b, v], v, parent)
                for parent, (score, last) in enumerate(beams)
                for v in range(size)
            ]
            best = sorted(every, reverse=True)[:3]
            beams = [(score, v) for score, v, _ in best]
            parents[t - 1, b] = [parent for _, _, parent in best]
            tokens[t - 1, b] = [v for _, v, _ in best]
        scores[b] = [score for score, _ in beams]
    return scores, parents, tokens


class Cell(NamedTuple):
    """`shapes` are those of the inputs, in which "T" and "B" stand for steps and batch. `adjusted`
    maps arrays of normal numbers to the inputs. `has_gradient` is False for integers' sake."""

    model: object
    numpy: object
    shapes: tuple
    adjusted: object = None
    has_gradient: bool = True

    def inputs(self, steps, batch, dtype="float64", seed=0):
        rng = np.random.default_rng(seed)
        sizes = {"T": steps, "B": batch}
        arrays = [
            rng.normal(size=[sizes.get(n, n) for n in shape]) * (1 if at == 0 else 0.6)
            for at, shape in enumerate(self.shapes)
        ]
        arrays = self.adjusted(*arrays) if self.adjusted else arrays
        return [np.asarray(a, dtype) for a in arrays]


def _covariance(a):
    return a @ np.swapaxes(a, -1, -2) + np.eye(a.shape[-1])


def _of_filter(x, mean, cov, f, q, h, r):
    return x, mean, _covariance(cov), f, _covariance(q), h, _covariance(r)


_H = ("B", 5)
CELLS = {
    "peephole_lstm": Cell(
        *(peephole_lstm, np_peephole_lstm),
        (("T", "B", 3), _H, _H, (3, 20), (5, 20), (20,), (3, 5)),
    ),
    "layer_norm_lstm": Cell(
        *(layer_norm_lstm, np_layer_norm_lstm),
        (("T", "B", 3), _H, _H, (3, 20), (5, 20), (2, 20), (2, 20)),
    ),
    "minimal_gru": Cell(
        *(minimal_gru, np_minimal_gru), (("T", "B", 3), _H, (2, 3, 5), (2, 5, 5), (2, 5))
    ),
    "ind_rnn": Cell(ind_rnn, np_ind_rnn, (("T", "B", 3), _H, (3, 5), (5,), (5,))),
    "s4d": Cell(
        *(s4d, np_s4d),
        (("T", "B", 3), (3, 4), (3, 4), (3, 4), (2, 3, 4), (3, 1)),
        lambda x, rate, angle, b, c, step: (x, rate, 4 * angle, b, c, np.exp(step - 1)),
    ),
    "s6": Cell(s6, np_s6, (("T", "B", 3), (3, 4), (3, 3), (3,), (3, 4), (3, 4), (3,))),
    "rwkv": Cell(rwkv, np_rwkv, (("T", "B", 4), (4,), (4,), (4, 4), (4, 4), (4, 4))),
    "gated_linear_attention": Cell(
        *(gated_linear_attention, np_gated_linear_attention),
        (("T", "B", 5), (5, 3), (5, 3), (5, 4), (5, 3)),
    ),
    "kalman_filter": Cell(
        *(kalman_filter, np_kalman_filter),
        (("T", "B", 2), ("B", 3), ("B", 3, 3), (3, 3), (3, 3), (2, 3), (2, 2)),
        _of_filter,
    ),
    "leaky_integrator": Cell(
        *(leaky_integrator, np_leaky_integrator),
        (("T", "B", 3), ("B", 6), (3, 6), (6,)),
        lambda x, v, w, decay: (x, v, w, _sigmoid(decay + 1)),
    ),
    "hmm_forward": Cell(hmm_forward, np_hmm_forward, (("T", "B", 4), (4,), (4, 4))),
    "beam_search": Cell(beam_search, np_beam_search, (("T", "B", 7), (7, 7)), None, False),
}


def parts(results):
    """A model's results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def gradient(cell, order=1):
    """The function of a cell's inputs that returns their gradients, or a function of the gradients'
    own gradients."""

    def taken(values, inputs, create_graph):
        total = sum((value * ndl.cos(value)).sum() for value in values if "float" in value.dtype)
        return ndl.autograd.grad(total, inputs, create_graph=create_graph)

    def function(*inputs):
        values = parts(cell.model(*inputs))
        for more in range(order)[::-1]:
            values = taken(values, inputs, create_graph=more > 0)
        return tuple(values)

    return function
