"""Schedules with several phases, and a schedule that watches a metric."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..backend_ndarray.arguments import count, fraction, not_negative, share
from ..common.user_code import user_line
from ..errors import TraceError
from .optimizer import Optimizer
from .schedules import Schedule, groups_of, per_group

Phase = tuple[float, str, str]  # the end of the phase, and its first and last level


class _Cycle(Schedule):
    """Base of schedules that also move the optimizer's momentum or beta1."""

    _is_absolute = True
    _momentum_name: str | None = None  # None: the momentum does not change

    def _take_momenta(self, optimizer: Any, base_momentum: Any, max_momentum: Any) -> None:
        """Store the bounds, which may be lists. Raises ValueError for an optimizer without
        momentum."""
        name = type(self).__name__
        self._momenta = [
            per_group(name, what, value, optimizer, fraction)
            for what, value in (("base_momentum", base_momentum), ("max_momentum", max_momentum))
        ]
        known = [n for n in ("momentum", "beta1") if hasattr(optimizer, n)]
        if not known:
            kind = type(optimizer).__name__
            raise ValueError(f"{name}: cycle_momentum needs an optimizer with momentum, not {kind}")
        self._momentum_name = known[0]

    def _check_fixed(self, where: str) -> None:
        """See Schedule."""
        if self._momentum_name is not None:
            raise TraceError(
                f"tracing: {where} steps a {type(self).__name__} that changes the optimizer's "
                f"{self._momentum_name}, which compiled code fixes: make the schedule with "
                f"cycle_momentum=False, or step it outside{user_line()}"
            )

    def _momentum(self, low: float, high: float, steps: Any) -> float:
        raise NotImplementedError

    def _set(self, rates: Iterable[float]) -> None:
        super()._set(rates)
        name = self._momentum_name
        if name is None:
            return
        low, high = self._momenta
        groups = self.optimizer.param_groups
        values = [self._momentum(low[i], high[i], self.steps) for i in range(len(groups))]
        setattr(self.optimizer, name, values[0])
        for group, value in zip(groups, values, strict=True):
            if name in group.own or value != values[0]:
                group.own[name] = value


class OneCycleLR(_Cycle):
    """The learning rate rises from max_lr / div_factor to max_lr within the fraction pct_start of
    total_steps, then falls to max_lr / div_factor / final_div_factor by the end of total_steps
    (Smith and Topin 2018), and stays there.

    epochs * steps_per_epoch may replace total_steps. Each phase follows a cosine or a line
    (`anneal_strategy` "cos" or "linear"). With three_phase the rate falls to the first rate in as
    many steps as it rose, and to the last rate in the remaining steps. With cycle_momentum the
    optimizer's momentum (or beta1) falls from max_momentum to base_momentum and rises again. max_lr
    and the momenta may be lists, with a value for each group. Raises ValueError for numbers out of
    range, or an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
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
        rise = share(name, "pct_start", pct_start) * total_steps
        self._max_lrs = per_group(name, "max_lr", max_lr, optimizer, not_negative)
        self._div_factor, self._final_div_factor = div_factor, final_div_factor
        self._phases: list[Phase] = [(rise - 1, "low", "top")]
        if three_phase:
            self._phases.append((2 * rise - 2, "top", "low"))
        self._phases.append((total_steps - 1, "low" if three_phase else "top", "last"))
        if cycle_momentum:
            self._take_momenta(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch, split=isinstance(max_lr, (list, tuple)))

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        top = self._max_lrs[group]
        low = top / self._div_factor
        return self._at(steps, {"low": low, "top": top, "last": low / self._final_div_factor})

    def _momentum(self, low: float, high: float, steps: Any) -> float:
        return self._at(steps, {"low": high, "top": low, "last": high})

    def _at(self, steps: Any, levels: Mapping[str, float]) -> float:
        """Return the value after `steps` steps of a schedule with these levels."""
        begin, phase = 0.0, self._phases[0]
        for phase in self._phases:
            if steps <= phase[0] or phase is self._phases[-1]:
                break
            begin = phase[0]
        first, last = levels[phase[1]], levels[phase[2]]
        done = min((steps - begin) / (phase[0] - begin), 1.0) if phase[0] > begin else 1.0
        if self.anneal_strategy == "linear":
            return first + (last - first) * done
        return last + (first - last) / 2 * (1 + math.cos(math.pi * done))


class CyclicLR(_Cycle):
    """The learning rate rises linearly from base_lr to max_lr within step_size_up steps and falls
    back within step_size_down steps (None: the same number), repeatedly (Smith 2017).

    The height max_lr - base_lr is multiplied by scale_fn(number of the cycle, counted from 1), or
    with scale_mode "iterations" by scale_fn(steps). Without scale_fn, `mode` gives the factor:
    "triangular" is 1, "triangular2" halves it each cycle, "exp_range" is gamma ** steps. With
    cycle_momentum the optimizer's momentum (or beta1) moves from max_momentum to base_momentum and
    back. The rates and momenta may be lists, with a value for each group. Raises ValueError for
    numbers out of range, or an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        name = "CyclicLR"
        modes: dict[str, tuple[Callable[[float], float], str]] = {
            "triangular": (lambda n: 1.0, "cycle"),
            "triangular2": (lambda n: 0.5 ** (n - 1), "cycle"),
            "exp_range": (lambda n: self.gamma**n, "iterations"),
        }
        if scale_fn is None and mode not in modes:
            raise ValueError(f"{name}: mode {mode!r} is not one of {', '.join(modes)}")
        if scale_fn is not None and (scale_mode not in ("cycle", "iterations")):
            raise ValueError(f"{name}: scale_mode {scale_mode!r} is not 'cycle' or 'iterations'")
        self.gamma = not_negative(name, "gamma", gamma)
        self._scale = modes[mode] if scale_fn is None else (scale_fn, scale_mode)
        self.step_size_up = count(name, "step_size_up", step_size_up)
        down = step_size_up if step_size_down is None else step_size_down
        self.step_size_down = count(name, "step_size_down", down)
        rates = (("base_lr", base_lr), ("max_lr", max_lr))
        self._rates = [per_group(name, *rate, optimizer, not_negative) for rate in rates]
        if cycle_momentum:
            self._take_momenta(optimizer, base_momentum, max_momentum)
        several = isinstance(base_lr, (list, tuple)) or isinstance(max_lr, (list, tuple))
        super().__init__(optimizer, last_epoch, split=several)

    def _height(self, steps: Any) -> float:
        """Return the position between the lower bound (0) and the upper bound (1)."""
        size = self.step_size_up + self.step_size_down
        cycle = math.floor(1 + steps / size)
        x, rise = 1.0 + steps / size - cycle, self.step_size_up / size
        scale, unit = self._scale
        done = x / rise if x <= rise else (x - 1) / (rise - 1)
        return done * scale(cycle if unit == "cycle" else steps)

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        low, high = (rates[group] for rates in self._rates)
        return low + (high - low) * self._height(steps)

    def _momentum(self, low: float, high: float, steps: Any) -> float:
        return high - (high - low) * self._height(steps)


class CosineAnnealingWarmRestarts(Schedule):
    """The learning rate falls by half a cosine from base_lr to eta_min within T_0 steps, then
    starts again; each fall takes T_mult times as many steps as the one before (Loshchilov and
    Hutter 2017). `step(epoch)` goes to an epoch that need not be a whole number, such as epoch +
    batch / batches."""

    _is_absolute = True

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_0 = count("CosineAnnealingWarmRestarts", "T_0", T_0)
        self.T_mult = count("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        self.eta_min = not_negative("CosineAnnealingWarmRestarts", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Advance by one step, or go to `epoch`."""
        if epoch is not None:
            self._steps = not_negative(type(self).__name__, "epoch", epoch) - 1
        super().step()

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        length = self.T_0
        if self.T_mult == 1:
            steps = steps % length
        while steps >= length:
            steps, length = steps - length, length * self.T_mult
        along = (1 + math.cos(math.pi * steps / length)) / 2
        return self.eta_min + (base - self.eta_min) * along


class SequentialLR(Schedule):
    """The schedules in `schedulers`, one after the other: schedule i begins, at its own step 0,
    when milestones[i - 1] steps are done. All must belong to `optimizer`. Raises ValueError unless
    the milestones are in ascending order and there is one fewer than schedulers."""

    _is_absolute = True

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[Schedule],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        self.schedulers = _of_one("SequentialLR", schedulers, optimizer)
        ascending = [count("SequentialLR", "milestones", m) for m in milestones]
        if len(ascending) != len(schedulers) - 1 or ascending != sorted(set(ascending)):
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers need one milestone fewer, in "
                f"ascending order, not {list(milestones)}"
            )
        self.milestones = ascending
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        i = bisect.bisect_right(self.milestones, steps)
        begin = self.milestones[i - 1] if i else 0
        return self.schedulers[i].rate(base, steps - begin, group)


class ChainedScheduler:
    """Several schedules, `schedulers`, that step together; each one starts from the rate that the
    schedule before it has set. Raises ValueError unless all belong to the same optimizer, and to
    `optimizer` if it is given."""

    def __init__(self, schedulers: Sequence[Schedule], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler: schedulers is empty; give at least one")
        of = getattr(schedulers[0], "optimizer", None) if optimizer is None else optimizer
        self.schedulers = _of_one("ChainedScheduler", schedulers, of)
        self.optimizer = self.schedulers[0].optimizer

    def step(self) -> None:
        """Advance all schedules by one step (or epoch)."""
        for schedule in self.schedulers:
            schedule.step()

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each group."""
        return self.schedulers[-1].get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return {"schedulers": [the state_dict of each]}."""
        return {"schedulers": [schedule.state_dict() for schedule in self.schedulers]}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Load `values`, a result of `state_dict`. Raises ValueError for anything else."""
        states = values.get("schedulers") if isinstance(values, Mapping) else None
        if not isinstance(states, (list, tuple)) or len(states) != len(self.schedulers):
            raise ValueError("load_state_dict: ChainedScheduler: not a result of state_dict")
        for schedule, state in zip(self.schedulers, states, strict=True):
            schedule.load_state_dict(state)


def _of_one(owner: str, schedulers: Sequence[Any], optimizer: Any) -> list[Schedule]:
    """Return the schedulers. Raises TypeError for an item that is not a Schedule, ValueError for a
    schedule of another optimizer."""
    for i, each in enumerate(schedulers):
        if not isinstance(each, Schedule):
            kind = type(each).__name__
            raise TypeError(f"{owner}: schedulers[{i}] is a {kind}, not a Schedule")
        if each.optimizer is not optimizer:
            raise ValueError(f"{owner}: schedulers[{i}] belongs to another optimizer")
    return list(schedulers)


class ReduceLROnPlateau:
    """Multiplies the learning rate of each group by `factor` when the metric given to `step` has
    not improved for more than `patience` steps; then waits for `cooldown` steps.

    `mode` says whether a metric improves by becoming smaller ("min") or larger ("max").
    `threshold` is the least improvement that counts: a fraction of the best metric or, with
    threshold_mode "abs", an absolute number. No rate falls below min_lr or changes by less than
    eps.
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
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        name = "ReduceLROnPlateau"
        groups_of(name, optimizer)
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
        self.min_lrs = per_group(name, "min_lr", min_lr, optimizer, not_negative)
        self.eps = not_negative(name, "eps", eps)
        self.best = math.inf if mode == "min" else -math.inf
        self.bad_steps = 0
        self.waiting = 0  # remaining steps of the cooldown
        self.steps = 0

    def step(self, metrics: Any) -> None:
        """Advance by one step (or epoch) with the metric `metrics`, a number or a Tensor of one
        element."""
        value = float(metrics)
        self.steps += 1
        if self._is_better(value):
            self.best, self.bad_steps = value, 0
        else:
            self.bad_steps += 1
        if self.waiting > 0:
            self.waiting -= 1
            self.bad_steps = 0
        if self.bad_steps > self.patience:
            for i, group in enumerate(self.optimizer.param_groups):
                rate = max(group["lr"] * self.factor, self.min_lrs[i])
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.waiting, self.bad_steps = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        least = self.threshold
        if self.threshold_mode == "rel":
            least = abs(self.best) * self.threshold if math.isfinite(self.best) else 0.0
        return value < self.best - least if self.mode == "min" else value > self.best + least

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers that the next steps depend on, besides the optimizer and the
        options."""
        return {name: getattr(self, name) for name in _PLATEAU}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Load `values`, a result of `state_dict`. Raises ValueError for anything else."""
        if not isinstance(values, Mapping) or set(values) != set(_PLATEAU):
            raise ValueError("load_state_dict: ReduceLROnPlateau: not a result of state_dict")
        for name, value in values.items():
            setattr(self, name, value)


_PLATEAU = ("best", "bad_steps", "waiting", "steps")
