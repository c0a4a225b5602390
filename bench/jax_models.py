"""The models of `bench.training_models` in JAX. `LOSSES[name]` is a function of the weights (see
`weights_of`), the statistics of batch norms, and a batch; it returns the loss and new statistics.

Weights have needle's layout, (inputs, outputs). Images have their channels last, the layout that
XLA convolves fastest on a CPU. `step_of` makes a whole training step from a loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

from bench.training_models import HEADS, LATENT, STRIDES, VISCOSITY

Arrays = dict[str, Any]
_MOMENTUM = 0.1  # momentum of batch norm statistics
_BETAS, _EPS, _DECAY = (0.9, 0.999), 1e-8, 0.01  # of AdamW: PyTorch's defaults
_DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def weights_of(state: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
    """Return the parameters and the statistics in the state of a needle model."""
    arrays = {name.replace("modules.", ""): jnp.asarray(array) for name, array in state.items()}
    statistics = {name: array for name, array in arrays.items() if ".running_" in name}
    return {name: arrays[name] for name in arrays.keys() - statistics.keys()}, statistics


def step_of(loss: Callable[..., Any], norm: float) -> Callable[..., Any]:
    """Return a step of AdamW on gradients clipped to a norm. The step takes the state (parameters,
    statistics, both moments, count; it reuses the state's memory), the learning rate and a batch.
    It returns the new state and the loss."""

    def step(state: Any, rate: Any, *batch: Any) -> Any:
        p, statistics, m, v, count = state
        of_loss = jax.value_and_grad(loss, has_aux=True)
        (value, statistics), g = of_loss(p, statistics, *batch)
        total = jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(g)))
        g = jax.tree.map(lambda x: x * jnp.minimum(1.0, norm / (total + 1e-6)), g)
        count, (b1, b2) = count + 1, _BETAS
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, g)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, g)
        c1, c2 = 1 - b1**count, 1 - b2**count

        def updated(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - rate * _DECAY) - rate * (m / c1) / (jnp.sqrt(v / c2) + _EPS)

        return (jax.tree.map(updated, p, m, v), statistics, m, v, count), value

    return jax.jit(step, donate_argnums=0)


def first_state(p: Arrays, statistics: Arrays) -> Any:
    """Return the state for the first step."""
    zeros = [jax.tree.map(jnp.zeros_like, p) for _ in range(2)]
    return p, statistics, *zeros, jnp.zeros((), "float32")


def _dense(p: Arrays, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def _layer_norm(p: Arrays, name: str, x: Any) -> Any:
    x = nn.standardize(x, epsilon=1e-5)
    return x * p[f"{name}.weight"] + p[f"{name}.bias"]


def _mlp(p: Arrays, names: str, x: Any, activation: Callable[[Any], Any]) -> Any:
    *hidden, last = names.split()
    for name in hidden:
        x = activation(_dense(p, name, x))
    return _dense(p, last, x)


def _conv(p: Arrays, name: str, x: Any, stride: int = 1) -> Any:
    w = p[f"{name}.weight"]
    padding = [(w.shape[0] // 2,) * 2] * 2
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=_DIMENSIONS)


def _batch_norm(p: Arrays, statistics: Arrays, name: str, x: Any) -> Any:
    """Apply batch norm and write the new statistics to the dict."""
    count = x.size // x.shape[-1]
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    unbiased = variance * (count / (count - 1))
    for key, value in (("mean", mean), ("var", unbiased)):
        old = statistics[f"{name}.running_{key}"]
        statistics[f"{name}.running_{key}"] = old + _MOMENTUM * (value - old)
    scale = p[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    return (x - mean) * scale + p[f"{name}.bias"]


def _max_pool(x: Any, size: int, stride: int, padding: int = 0) -> Any:
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    sides = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, sides)


def _cross_entropy(scores: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(nn.log_softmax(scores), labels[..., None], -1)
    return -chosen.mean()


def _vae(p: Arrays, statistics: Arrays, x: Any, noise: Any) -> Any:
    mean, log_variance = jnp.split(
        _mlp(p, "encoder.0 encoder.2 encoder.4", x, nn.relu), [LATENT], -1
    )
    hidden = mean + jnp.exp(0.5 * log_variance) * noise
    y = _mlp(p, "decoder.0 decoder.2 decoder.4", hidden, nn.relu)
    unlikelihood = (nn.softplus(y) - x * y).sum()
    distance = (1 + log_variance - mean**2 - jnp.exp(log_variance)).sum()
    return (unlikelihood - 0.5 * distance) / len(x), statistics


def _gnn(p: Arrays, statistics: Arrays, x: Any, y: Any) -> Any:
    apart = x[:, :, None] - x[:, None]
    weights = nn.softmax(-(apart**2).sum(-1) * jnp.exp(p["scale"]))
    for layer in ("layers.0", "layers.1", "layers.2"):
        others = weights @ _dense(p, f"{layer}.others", x)
        x = nn.relu(_layer_norm(p, f"{layer}.norm", _dense(p, f"{layer}.own", x) + others))
    return ((_dense(p, "head", x.mean(1)) - y) ** 2).mean(), statistics


def _pinn(p: Arrays, statistics: Arrays, t: Any, x: Any, start: Any) -> Any:
    def u(t: Any, x: Any) -> Any:
        return _mlp(p, "0 2 4 6", jnp.concatenate([t, x], -1), jnp.tanh)

    # Forward mode over forward mode: one direction for all points at once.
    ones = jnp.ones_like(t)

    def along_x(x: Any) -> Any:
        return jax.jvp(partial(u, t), (x,), (ones,))

    (now, along), (_, twice) = jax.jvp(along_x, (x,), (ones,))
    _, in_time = jax.jvp(lambda t: u(t, x), (t,), (ones,))
    inside = in_time + now * along - VISCOSITY * twice
    first = u(jnp.zeros_like(start), start) + jnp.sin(math.pi * start)
    parts = inside, first, u(t, ones), u(t, -ones)
    return sum((each**2).mean() for each in parts), statistics


def _cnn(p: Arrays, statistics: Arrays, x: Any, y: Any) -> Any:
    statistics, x = dict(statistics), x.transpose(0, 2, 3, 1)
    for conv, norm in (("0", "1"), ("4", "5")):
        x = _conv(p, conv, x) + p[f"{conv}.bias"]
        x = _max_pool(nn.relu(_batch_norm(p, statistics, norm, x)), 2, 2)
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return _cross_entropy(_mlp(p, "9 12", x, nn.relu), y), statistics


def _lstm(p: Arrays, statistics: Arrays, x: Any, y: Any) -> Any:
    x = x.swapaxes(0, 1)
    for layer in ("rnn.lstm_cells.0", "rnn.lstm_cells.1"):
        w = p[f"{layer}.W_hh"]
        sums = x @ p[f"{layer}.W_ih"] + p[f"{layer}.bias_ih"] + p[f"{layer}.bias_hh"]

        def cell(state: Any, sums: Any, w: Any = w) -> Any:
            h, c = state
            i, f, g, o = jnp.split(sums + h @ w, 4, -1)
            c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], len(w)))
        x = lax.scan(cell, (zero, zero), sums)[1]
    return ((_dense(p, "head", x[-1]) - y) ** 2).mean(), statistics


def _gpt(p: Arrays, statistics: Arrays, x: Any, y: Any) -> Any:
    x = p["tokens.weight"][x] + p["positions.weight"][: x.shape[1]]
    for layer in range(sum(name.endswith("qkv.weight") for name in p)):
        own, mlp = f"blocks.{layer}.attention", f"blocks.{layer}.mlp"
        shape = (*x.shape[:2], HEADS, -1)
        parts = jnp.split(_dense(p, f"{own}.1.qkv", _layer_norm(p, f"{own}.0", x)), 3, -1)
        q, k, v = (each.reshape(shape) for each in parts)
        found = nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + _dense(p, f"{own}.1.proj", found)
        hidden = _layer_norm(p, f"{mlp}.0", x)
        x = x + _mlp(p, f"{mlp}.1 {mlp}.3", hidden, partial(nn.gelu, approximate=False))
    return _cross_entropy(_layer_norm(p, "norm", x) @ p["head.weight"], y), statistics


def _resnet(p: Arrays, statistics: Arrays, x: Any, y: Any) -> Any:
    statistics, x = dict(statistics), x.transpose(0, 2, 3, 1)

    def normed(name: str, x: Any, stride: int) -> Any:
        return _batch_norm(p, statistics, f"{name}1", _conv(p, f"{name}0", x, stride))

    x = _max_pool(nn.relu(normed("0.", x, 2)), 3, 2, 1)
    for number, stride in enumerate(STRIDES, 3):
        name = f"{number}"
        y_ = nn.relu(normed(f"{name}.first.", x, stride))
        y_ = normed(f"{name}.second.", y_, 1)
        if f"{name}.shortcut.0.weight" in p:
            x = normed(f"{name}.shortcut.", x, stride)
        x = nn.relu(x + y_)
    return _cross_entropy(_dense(p, f"{3 + len(STRIDES) + 2}", x.mean((1, 2))), y), statistics


LOSSES: dict[str, Callable[..., Any]] = {
    each.__name__.removeprefix("_"): each
    for each in (_vae, _gnn, _pinn, _cnn, _lstm, _gpt, _resnet)
}
