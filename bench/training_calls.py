"""The contestants of `bench.training_steps`: factories for needle_runtime.process.timing.

A call is a whole step on the next batch of a file: forward, loss, backward, clipping by norm,
AdamW, and the loss read. All contestants begin with the weights of a file. The outputs are the
losses of the first COMPARED steps: a wrong gradient or update shows from the second step on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from apps.contestants import load_named
from bench.training_models import MODELS
from needle_runtime.process.timing import Calls

COMPARED = 5
NORM = 1.0  # norm to which gradients are clipped
RATE = 1e-4  # learning rate of the compared steps
# Learning rate of the timed steps. Thousands of steps on a few batches at RATE would bring the
# loss to zero, and gradients to denormal numbers, which are slow to compute with.
TIMED_RATE = 1e-6


def calls(
    step: Callable[..., Any], batches: Iterable[Any], slow_down: Callable[[], object]
) -> Calls:
    """Return a contestant that steps through the batches in turn; `slow_down` sets TIMED_RATE."""
    turns, losses = itertools.cycle(batches), []

    def call() -> None:
        loss = float(step(*next(turns)))
        if len(losses) < COMPARED:
            losses.append(loss)

    def outputs() -> list[np.ndarray]:
        while len(losses) < COMPARED:
            call()
        slow_down()
        return [np.array(losses)]

    return call, outputs


def load_batches(path: str, convert: Callable[[np.ndarray], Any]) -> list[list[Any]]:
    """Return the batches of a file; its arrays are named like "3.0", the first array of batch 3."""
    batches: dict[str, list[Any]] = {}
    for name, array in load_named(path).items():
        batches.setdefault(name.partition(".")[0], []).append(convert(array))
    return list(batches.values())


def _written(
    framework: Any, model: Any, loss: Callable[..., Any], batches: list[Any], **optimizer: Any
) -> tuple[Callable[..., Any], Callable[..., Calls]]:
    """Return a step as users write it, and a function that makes a contestant of a step."""
    for module in model.train().modules():
        if isinstance(module, framework.nn.Dropout):
            module.p = 0.0  # frameworks draw different random numbers
    adam = framework.optim.AdamW(model.parameters(), lr=RATE, **optimizer)

    def step(*tensors: Any) -> Any:
        found = loss(model, *tensors)
        found.backward()
        framework.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        adam.step()
        adam.zero_grad()  # comes last, so that a step's memory includes its gradients
        return found.detach()

    def slow_down() -> None:
        for group in adam.param_groups:
            group["lr"] = TIMED_RATE

    return step, lambda step: calls(step, batches, slow_down)


def needle(name: str, weights: str, batches: str, compiled: bool, dtype: str = "float32") -> Calls:
    """Return a contestant: needle's step, eager or, with `compiled`, under needle_tvm.jit."""
    import needle as ndl

    def convert(array: np.ndarray) -> Any:
        array = array.astype(dtype) if array.dtype.kind == "f" else array
        return ndl.Tensor(array, requires_grad=False)

    model, _, loss = MODELS[name](ndl)
    model.load_state_dict(load_named(weights))
    step, made = _written(ndl, model.to(dtype), loss, load_batches(batches, convert))
    if compiled:
        import needle_tvm

        step = needle_tvm.jit(step)
    return made(step)


def pytorch(name: str, weights: str, batches: str, threads: int, compiled: bool) -> Calls:
    """Return a contestant: PyTorch's eager step with the fused optimizer or, with `compiled`,
    `torch.compile` of the loss, which can compile `func.grad` but not `autograd.grad`."""
    import torch

    torch.set_num_threads(threads)
    how = {"functional": True} if compiled and name == "pinn" else {}
    model, _, loss = MODELS[name](torch, **how)
    state = {key: torch.from_numpy(array) for key, array in load_named(weights).items()}
    model.load_state_dict(state, strict=False)  # PyTorch also counts batches, without effect
    loss = torch.compile(loss) if compiled else loss
    sets = load_batches(batches, torch.from_numpy)
    step, made = _written(torch, model, loss, sets, fused=True)
    return made(step)


def jax(name: str, weights: str, batches: str) -> Calls:
    """Return a contestant: JAX's `jit` of the whole step; the new state overwrites the old one."""
    compiled, state, sets = jax_parts(name, weights, batches)
    rate = RATE

    def step(*batch: Any) -> Any:
        nonlocal state
        state, loss = compiled(state, rate, *batch)
        return loss

    def slow_down() -> None:
        nonlocal rate
        rate = TIMED_RATE

    return calls(step, sets, slow_down)


def jax_parts(name: str, weights: str, batches: str) -> tuple[Any, Any, list[list[Any]]]:
    """Return JAX's step (see `jax_models.step_of`), its first state, and the batches."""
    from jax import numpy as jnp

    from bench import jax_models

    state = jax_models.first_state(*jax_models.weights_of(load_named(weights)))
    step = jax_models.step_of(jax_models.LOSSES[name], NORM)
    return step, state, load_batches(batches, jnp.asarray)
