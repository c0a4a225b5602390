"""Learning rate schedules. Each is a function of the number of steps alone."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..backend_ndarray.arguments import count, not_negative
from .optimizer import Optimizer


class Schedule:
    """Base of all schedules: sets the optimizer's `lr` to `base_lr * factor(steps)`, and likewise
    that of each group which has one of its own.

    The constructor sets it for 0 steps, and each call of `step` again. To resume, set `steps`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            name = type(self).__name__
            raise TypeError(f"{name}: optimizer is a {type(optimizer).__name__}, not an Optimizer")
        self.optimizer = optimizer
        self.base_lr = optimizer.lr
        self.group_lrs = {
            i: group.own["lr"]
            for i, group in enumerate(optimizer.param_groups)
            if "lr" in group.own
        }
        self.steps = 0

    def __repr__(self) -> str:
        hidden = ("optimizer", "base_lr", "group_lrs", "phases")
        own = [(k, v) for k, v in vars(self).items() if k[0] != "_" and k not in hidden]
        options = "".join(f"{name}={value!r}, " for name, value in own)
        rates = ", ".join(f"{rate:.4g}" for rate in self.get_last_lr())
        optimizer = type(self.optimizer).__name__
        return (
            f"{type(self).__name__}({options}of {optimizer}: lr {rates} after {self.steps} steps)"
        )

    @property
    def steps(self) -> int:
        """The number of calls of `step`."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._steps = count(type(self).__name__, "steps", value, 0)
        self._apply(self._steps)

    def _apply(self, steps: int) -> None:
        """Set what the optimizer has after `steps` steps."""
        self.optimizer.lr = self.rate(self.base_lr, steps)
        for i, base in self.group_lrs.items():
            self.optimizer.param_groups[i].own["lr"] = self.rate(base, steps)

    def step(self) -> None:
        """Advance the schedule; call it after each step (or epoch) of the optimizer."""
        self.steps += 1

    def rate(self, base: float, steps: int) -> float:
        """The learning rate after `steps` steps, from `base`, that at the beginning."""
        return base * self.factor(steps)

    def factor(self, steps: int) -> float:
        """The multiplier of the base learning rate after `steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} defines no factor")

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """{"steps": number, "base_lr": number, "group_lrs": {group: number}}."""
        return {"steps": self.steps, "base_lr": self.base_lr, "group_lrs": dict(self.group_lrs)}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over `values`, a `state_dict`, and set the learning rates. ValueError for anything
        else."""
        if not isinstance(values, Mapping) or set(values) != {"steps", "base_lr", "group_lrs"}:
            raise ValueError(f"load_state_dict: {type(self).__name__}: not what state_dict gives")
        self.base_lr, self.group_lrs = values["base_lr"], dict(values["group_lrs"])
        self.steps = values["steps"]


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
    """factor = gamma ** (steps // step_size).

    >>> optimizer = ndl.optim.SGD([ndl.zeros(2, requires_grad=True)], lr=1.0)
    >>> schedule = ndl.optim.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> rates = []
    >>> for _ in range(4):
    ...     rates.append(optimizer.lr)
    ...     optimizer.step()
    ...     schedule.step()
    >>> rates
    [1.0, 1.0, 0.5, 0.5]
    """

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


class MultiStepLR(Schedule):
    """factor = gamma ** n for the n milestones, numbers of steps, that were reached."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1) -> None:
        self.milestones = sorted(count("MultiStepLR", "milestones", m, 0) for m in milestones)
        self.gamma = not_negative("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        return self.gamma ** bisect.bisect_right(self.milestones, steps)


class LinearLR(Schedule):
    """factor changes linearly from `start` to `end` within `total` steps, and stays there.
    start_factor, end_factor and total_iters are PyTorch's names of these."""

    def __init__(
        self,
        optimizer: Optimizer,
        start: float = 1.0 / 3,
        end: float = 1.0,
        total: int = 5,
        *,
        start_factor: float | None = None,
        end_factor: float | None = None,
        total_iters: int | None = None,
    ) -> None:
        start = start if start_factor is None else start_factor
        end = end if end_factor is None else end_factor
        total = total if total_iters is None else total_iters
        self.start = not_negative("LinearLR", "start", start)
        self.end = not_negative("LinearLR", "end", end)
        self.total = count("LinearLR", "total", total)
        super().__init__(optimizer)

    def factor(self, steps: int) -> float:
        done = min(steps / self.total, 1.0)
        return self.start + (self.end - self.start) * done


class CosineAnnealingLR(Schedule):
    """The learning rate follows a cosine from base_lr to eta_min within T_max steps, and back
    (Loshchilov and Hutter 2017)."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max = count("CosineAnnealingLR", "T_max", T_max)
        self.eta_min = not_negative("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer)

    def rate(self, base: float, steps: int) -> float:
        along = (1 + math.cos(math.pi * steps / self.T_max)) / 2
        return self.eta_min + (base - self.eta_min) * along


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
