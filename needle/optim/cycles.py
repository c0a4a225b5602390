"""Schedules of several phases, and one that watches a metric."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..backend_ndarray.arguments import count, fraction, not_negative, share
from .optimizer import Optimizer
from .schedules import Schedule

Phase = tuple[float, float, float, float, float]  # end, lr from and to, momentum from and to


class OneCycleLR(Schedule):
    """The learning rate rises from max_lr / div_factor to max_lr within the share pct_start of
    total_steps, and falls to max_lr / div_factor / final_div_factor until their end (Smith and
    Topin 2018). It stays there.

    total_steps may be given as epochs * steps_per_epoch. Each phase follows a cosine, or a line
    (`anneal_strategy` "cos" or "linear"). With three_phase it falls to the first rate as long as it
    rose, and to the last rate in what remains. With cycle_momentum the optimizer's momentum (or
    beta1) falls from max_momentum to base_momentum and rises again. All groups have the same rate.
    ValueError for numbers that make no sense, or an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        name = "OneCycleLR"
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError(f"{name}: give total_steps, or epochs and steps_per_epoch")
            count(name, "steps_per_epoch", steps_per_epoch)
            total_steps = count(name, "epochs", epochs) * steps_per_epoch
        self.total_steps = count(name, "total_steps", total_steps)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"{name}: anneal_strategy {anneal_strategy!r} is not 'cos' or 'linear'"
            )
        if not (div_factor > 0 and final_div_factor > 0):
            raise ValueError(
                f"{name}: div_factor {div_factor} and final_div_factor {final_div_factor} must be "
                "above 0"
            )
        self.anneal_strategy = anneal_strategy
        top = not_negative(name, "max_lr", max_lr)
        low = top / div_factor
        last = low / final_div_factor
        slow, fast = (
            fraction(name, "base_momentum", base_momentum),
            fraction(name, "max_momentum", max_momentum),
        )
        rise = share(name, "pct_start", pct_start) * total_steps
        self.phases: list[Phase] = [(rise - 1, low, top, fast, slow)]
        if three_phase:
            self.phases.append((2 * rise - 2, top, low, slow, fast))
            self.phases.append((total_steps - 1, low, last, fast, fast))
        else:
            self.phases.append((total_steps - 1, top, last, slow, fast))
        self.momentum_name = None
        if cycle_momentum and isinstance(optimizer, Optimizer):
            known = [n for n in ("momentum", "beta1") if hasattr(optimizer, n)]
            if not known:
                kind = type(optimizer).__name__
                raise ValueError(f"{name}: cycle_momentum needs an optimizer with one, not {kind}")
            self.momentum_name = known[0]
        super().__init__(optimizer)

    def _apply(self, steps: int) -> None:
        super()._apply(steps)
        if self.momentum_name is not None:
            setattr(self.optimizer, self.momentum_name, self._at(steps, 3))

    def rate(self, base: float, steps: int) -> float:
        return self._at(steps, 1)

    def _at(self, steps: int, entry: int) -> float:
        """The value after `steps` steps that goes from `entry` of a phase to the one behind it."""
        begin = 0.0
        for phase in self.phases:
            if steps <= phase[0] or phase is self.phases[-1]:
                break
            begin = phase[0]
        first, last = phase[entry], phase[entry + 1]
        done = min((steps - begin) / (phase[0] - begin), 1.0) if phase[0] > begin else 1.0
        if self.anneal_strategy == "linear":
            return first + (last - first) * done
        return last + (first - last) / 2 * (1 + math.cos(math.pi * done))


class SequentialLR(Schedule):
    """One schedule of `schedulers` after the other: number i begins, at its own step 0, when
    milestones[i - 1] steps are done. All must be of `optimizer`, and were made before any step.
    ValueError unless there is one milestone fewer, in ascending order."""

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[Schedule], milestones: Sequence[int]
    ) -> None:
        for i, each in enumerate(schedulers):
            if not isinstance(each, Schedule):
                kind = type(each).__name__
                raise TypeError(f"SequentialLR: schedulers[{i}] is a {kind}, not a Schedule")
            if each.optimizer is not optimizer:
                raise ValueError(f"SequentialLR: schedulers[{i}] is of another optimizer")
        ascending = [count("SequentialLR", "milestones", m) for m in milestones]
        if len(ascending) != len(schedulers) - 1 or ascending != sorted(set(ascending)):
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need as many milestones less one, "
                f"ascending, not {list(milestones)}"
            )
        self.schedulers, self.milestones = list(schedulers), ascending
        # The first schedule was made before any changed the optimizer's rates.
        first = self.schedulers[0]
        optimizer.lr = first.base_lr
        for i, base in first.group_lrs.items():
            optimizer.param_groups[i].own["lr"] = base
        super().__init__(optimizer)

    def rate(self, base: float, steps: int) -> float:
        i = bisect.bisect_right(self.milestones, steps)
        return self.schedulers[i].rate(base, steps - (self.milestones[i - 1] if i else 0))


class ReduceLROnPlateau:
    """Multiplies the learning rate of each group by `factor` when the metric given to `step` has
    not improved for more than `patience` steps; then waits for `cooldown` steps.

    `mode` says whether a metric improves by becoming smaller ("min") or larger ("max"), and
    `threshold` by how much: as a share of the best ("rel") or itself ("abs", threshold_mode). No
    rate falls below min_lr or changes by less than eps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        name = "ReduceLROnPlateau"
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{name}: optimizer is a {type(optimizer).__name__}, not an Optimizer")
        if mode not in ("min", "max"):
            raise ValueError(f"{name}: mode {mode!r} is not 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"{name}: threshold_mode {threshold_mode!r} is not 'rel' or 'abs'")
        self.optimizer = optimizer
        self.mode, self.threshold_mode = mode, threshold_mode
        self.factor = fraction(name, "factor", factor)
        self.patience = count(name, "patience", patience, 0)
        self.threshold = not_negative(name, "threshold", threshold)
        self.cooldown = count(name, "cooldown", cooldown, 0)
        self.min_lr = not_negative(name, "min_lr", min_lr)
        self.eps = not_negative(name, "eps", eps)
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_steps = 0
        self.waiting = 0  # steps of the cooldown that remain
        self.steps = 0

    def step(self, metric: Any) -> None:
        """Advance by one step (or epoch) whose metric, a number or a Tensor of one element, this
        is."""
        value = float(metric)
        self.steps += 1
        if self._is_better(value):
            self.best, self.bad_steps = value, 0
        else:
            self.bad_steps += 1
        if self.waiting > 0:
            self.waiting -= 1
            self.bad_steps = 0
        if self.bad_steps > self.patience:
            for group in self.optimizer.param_groups:
                rate = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.waiting, self.bad_steps = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        least = self.threshold
        if self.threshold_mode == "rel":
            least = abs(self.best) * self.threshold if math.isfinite(self.best) else 0.0
        return value < self.best - least if self.mode == "min" else value > self.best + least

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What the next steps depend on besides the optimizer and the options."""
        return {name: getattr(self, name) for name in _PLATEAU}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take over `values`, a `state_dict`. ValueError for anything else."""
        if not isinstance(values, Mapping) or set(values) != set(_PLATEAU):
            raise ValueError("load_state_dict: ReduceLROnPlateau: not what state_dict gives")
        for name, value in values.items():
            setattr(self, name, value)


_PLATEAU = ("best", "bad_steps", "waiting", "steps")
