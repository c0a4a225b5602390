"""The contestants of `bench.recurrence`: factories for needle_runtime.process.timing.

Each contestant gets files of the input x, of shape (steps, batch, ...), and of the weights. In mode
`forward` a call's weights are constants. In mode `gradient` a call takes weights as inputs, as
training must, and returns their gradients for the sum of y * y.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from apps.contestants import Calls, as_tensors, calls, fresh, load_arrays
from needle_runtime.process.child import load_function

LAYERS = ("LSTM", "GRU", "RNN")
_CELLS = "tests.needle.loops.cells"


def needle_function(name: str, weights: Sequence[Any]) -> Callable[..., Any]:
    """Return a layer of `needle.nn`, or a cell of tests/needle/loops/cells.py, as a function of x
    and, optionally, of weights to use in place of `weights`."""
    if name not in LAYERS:
        model = load_function(f"{_CELLS}:{name}")
        return lambda x, *given: model(x, *(given or weights))[-1]
    from needle import nn

    sizes = weights[0].shape[0], weights[1].shape[0], len(weights) // 4
    module: Any = getattr(nn, name)(*sizes)

    def bind(given: Sequence[Any]) -> None:
        each = iter(given)
        for (cell,) in module.layers():
            # Ordinary assignment to attributes is refused while tracing.
            vars(cell).update({key: next(each) for key in ("W_ih", "W_hh", "bias_ih", "bias_hh")})

    bind(weights)

    def function(x: Any, *given: Any) -> Any:
        if given:
            bind(given)
        return module(x)[0]

    return function


def needle_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of x and the weights: the gradients of the weights for the sum of y * y."""
    import needle as ndl

    def gradient(x: Any, *weights: Any) -> Any:
        y = function(x, *weights)
        return tuple(ndl.autograd.grad((y * y).sum(), list(weights)))

    return gradient


def needle(name: str, mode: str, inputs: str, weights: str, threads: int, compiled: bool) -> Calls:
    """Return a contestant: needle, eager or compiled."""
    import needle as ndl

    arrays = load_arrays(weights)
    leaves = [ndl.Tensor(each, requires_grad=mode == "gradient") for each in arrays]
    function = needle_function(name, leaves)
    sets = [as_tensors(each) for each in fresh(load_arrays(inputs))]
    if mode == "gradient":
        function, sets = needle_gradient(function), [[*each, *leaves] for each in sets]
    if compiled:
        import needle_tvm

        executable: Any = needle_tvm.compile(function, *sets[0], threads=threads)
        return calls(lambda each: executable(*each), sets)

    def run(each: Sequence[Any]) -> Any:
        if mode == "gradient":
            return function(*each)
        with ndl.no_grad():
            return function(*each)

    return calls(run, sets)


def torch_module(name: str, weights: Sequence[np.ndarray]) -> Any:
    """Return PyTorch's layer with these weights."""
    import torch

    module = getattr(torch.nn, name)(len(weights[0]), len(weights[1]), len(weights) // 4)
    keys = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
    named = {f"{keys[i % 4]}{i // 4}": torch.from_numpy(w.T.copy()) for i, w in enumerate(weights)}
    module.load_state_dict(named)
    return module


def torch_results(module: Any, mode: str, x: Any, called: Any = None) -> list[Any]:
    """Return a layer's outputs, or the gradients of its weights; `called` replaces the module."""
    import torch

    called = module if called is None else called  # not `or`: some modules have no length
    if mode == "forward":
        with torch.inference_mode():
            return [called(x)[0]]
    y = called(x)[0]
    return list(torch.autograd.grad((y * y).sum(), list(module.parameters())))


def as_ours(mode: str, found: Sequence[Any]) -> list[np.ndarray]:
    """Return PyTorch's results as arrays, weights in our layout."""
    return [(each.t() if mode == "gradient" else each).numpy() for each in found]


def pytorch(name: str, mode: str, inputs: str, weights: str, threads: int, compiled: bool) -> Calls:
    """Return a contestant: PyTorch, eager or by torch.compile."""
    import torch

    torch.set_num_threads(threads)
    module = torch_module(name, load_arrays(weights)).train(mode == "gradient")
    run = partial(torch_results, module, mode, called=torch.compile(module) if compiled else None)
    sets = [torch.from_numpy(x) for (x,) in fresh(load_arrays(inputs))]
    return calls(run, sets, partial(as_ours, mode))


def jax(name: str, mode: str, inputs: str, weights: str) -> Calls:
    """Return a contestant: JAX's `lax.scan` under jit; products with x are outside the loop."""
    import jax
    from jax import numpy as jnp

    function = jax_function(name)
    given = [jnp.asarray(each) for each in load_arrays(weights)]
    if mode == "forward":
        run: Any = jax.jit(lambda x: (function(x, *given),))
    else:

        def total(given: Sequence[Any], x: Any) -> Any:
            return (function(x, *given) ** 2).sum()

        run = partial(jax.jit(jax.grad(total)), given)
    sets = [jnp.asarray(x) for (x,) in fresh(load_arrays(inputs))]
    return calls(
        lambda x: jax.block_until_ready(run(x)),
        sets,
        lambda found: [np.asarray(each) for each in found],
    )


def jax_function(name: str) -> Callable[..., Any]:
    """Return the same function of x and weights as `needle_function`, in JAX."""
    from jax import lax, nn
    from jax import numpy as jnp

    def lstm(w: Any, _: Any, state: Any, sums: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(sums + h @ w, 4, -1)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(w: Any, b: Any, state: Any, sums: Any) -> Any:
        (h,) = state
        a, b, c = jnp.split(h @ w + b, 3, -1)
        r, z, n = jnp.split(sums, 3, -1)
        r, z = nn.sigmoid(r + a), nn.sigmoid(z + b)
        h = (1 - z) * jnp.tanh(n + r * c) + z * h
        return (h,), h

    def rnn(w: Any, _: Any, state: Any, sums: Any) -> Any:
        h = jnp.tanh(sums + state[0] @ w)
        return (h,), h

    def layer(x: Any, *weights: Any) -> Any:
        for at in range(0, len(weights), 4):
            w_ih, w_hh, b_ih, b_hh = weights[at : at + 4]
            sums = x @ w_ih + b_ih + (0 if name == "GRU" else b_hh)
            zero = jnp.zeros((x.shape[1], len(w_hh)))
            cell = partial({"LSTM": lstm, "GRU": gru, "RNN": rnn}[name], w_hh, b_hh)
            x = lax.scan(cell, (zero,) * (2 if name == "LSTM" else 1), sums)[1]
        return x

    def peephole_lstm(x: Any, h: Any, c: Any, w: Any, u: Any, b: Any, p: Any) -> Any:
        def cell(state: Any, sums: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(sums + h @ u, 4, -1)
            c, i = nn.sigmoid(f + p[1] * c) * c, nn.sigmoid(i + p[0] * c)
            c = c + i * jnp.tanh(g)
            h = nn.sigmoid(o + p[2] * c) * jnp.tanh(c)
            return (h, c), h

        return lax.scan(cell, (h, c), x @ w + b)[1]

    def minimal_gru(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
        def cell(h: Any, sums: Any) -> Any:
            f = nn.sigmoid(sums[0] + h @ u[0])
            h = (1 - f) * h + f * jnp.tanh(sums[1] + (f * h) @ u[1])
            return h, h

        return lax.scan(cell, h, (x @ w[0] + b[0], x @ w[1] + b[1]), reverse=True)[1]

    def s6(x: Any, a: Any, w_step: Any, b_step: Any, w_b: Any, w_c: Any, d: Any) -> Any:
        def cell(h: Any, each: Any) -> Any:
            x, step, b, c = each
            h = jnp.exp(step[..., None] * -jnp.exp(a)) * h + (step * x)[..., None] * b[:, None]
            return h, (h * c[:, None]).sum(-1) + d * x

        first = jnp.zeros((x.shape[1], *a.shape))
        return lax.scan(cell, first, (x, nn.softplus(x @ w_step + b_step), x @ w_b, x @ w_c))[1]

    def gated_linear_attention(x: Any, w_q: Any, w_k: Any, w_v: Any, w_a: Any) -> Any:
        def cell(s: Any, each: Any) -> Any:
            q, k, v, gate = each
            s = gate[..., None] * s + k[..., None] * v[:, None]
            return s, (q[:, None] @ s)[:, 0]

        first = jnp.zeros((x.shape[1], w_k.shape[1], w_v.shape[1]))
        return lax.scan(cell, first, (x @ w_q, x @ w_k, x @ w_v, nn.sigmoid(x @ w_a)))[1]

    own = (peephole_lstm, minimal_gru, s6, gated_linear_attention)
    return layer if name in LAYERS else {each.__name__: each for each in own}[name]
