"""Learning rate schedules. Each is a function of the number of steps alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..backend_ndarray.arguments import count, not_negative
from .optimizer import Optimizer


class Schedule:
    """Base of all schedules: sets the optimizer's `lr` to `base_lr * factor(steps)`.

    The constructor sets it for 0 steps, and each call of `step` again. To resume, set `steps`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            name = type(self).__name__
            raise TypeError(f"{name}: optimizer is a {type(optimizer).__name__}, not an Optimizer")
        self.optimizer = optimizer
        self.base_lr = optimizer.lr
        self.steps = 0

    @property
    def steps(self) -> int:
        """The number of calls of `step`."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._steps = count(type(self).__name__, "steps", value, 0)
        self.optimizer.lr = self.base_lr * self.factor(self._steps)

    def step(self) -> None:
        """Advance the schedule; call it after each step (or epoch) of the optimizer."""
        self.steps += 1

    def factor(self, steps: int) -> float:
        """The multiplier of the base learning rate after `steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} defines no factor")


class LambdaLR(Schedule):
    """factor = fn(steps)."""

    def __init__(self, optimizer: Optimizer, fn: Callable[[int], float]) -> None:
        if not callable(fn):
            raise TypeError(f"LambdaLR: fn is a {type(fn).__name__}, not a function")
        self.fn = fn
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        return self.fn(steps)


class StepLR(Schedule):
    """factor = gamma ** (steps // step_size)."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size = count("StepLR", "step_size", step_size)
        self.gamma = not_negative("StepLR", "gamma", gamma)
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        return self.gamma ** (steps // self.step_size)


class ExponentialLR(Schedule):
    """factor = gamma ** steps."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = not_negative("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        return self.gamma**steps


class LinearLR(Schedule):
    """factor changes linearly from `start` to `end` within `total` steps, and stays there."""

    def __init__(
        self, optimizer: Optimizer, start: float = 0.0, end: float = 1.0, total: int = 100
    ) -> None:
        self.start = not_negative("LinearLR", "start", start)
        self.end = not_negative("LinearLR", "end", end)
        self.total = count("LinearLR", "total", total)
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        done = min(steps / self.total, 1.0)
        return self.start + (self.end - self.start) * done


class CosineLR(Schedule):
    """factor rises linearly within `warmup` steps from 1 / (warmup + 1) to 1, then falls by half a
    cosine until step `total` to `end`, and stays there."""

    def __init__(self, optimizer: Optimizer, total: int, warmup: int = 0, end: float = 0.0) -> None:
        self.total = count("CosineLR", "total", total)
        self.end = not_negative("CosineLR", "end", end)
        self.warmup = count("CosineLR", "warmup", warmup, 0)
        if not 0 <= warmup < total:
            raise ValueError(f"CosineLR: warmup {warmup} is not in [0, {total})")
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        if steps < self.warmup:
            return (steps + 1) / (self.warmup + 1)
        done = min((steps - self.warmup) / (self.total - self.warmup), 1.0)
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))
