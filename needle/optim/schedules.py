"""Learning rate schedules. Each sets the rate to a function of the number of steps, unless the
program or another schedule also changes the rate."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from ..backend_ndarray.arguments import count, not_negative, share
from ..common.state import state
from .groups import Group
from .optimizer import Optimizer


class Schedule:
    """Base of all schedules: sets the optimizer's `lr`, and the lr of each group that has its own,
    to `rate(base_lr, steps)`. A subclass defines `factor`, or `rate`, or `get_lr` as in PyTorch.

    The constructor sets the rates for 0 steps, and each call of `step` updates them. As in
    PyTorch, the base is the rate that a group had when its first schedule was created,
    `group["initial_lr"]`. If the program or another schedule has changed the rate, `step` continues
    from the changed rate (`chained`). To resume, load a `state_dict`, set `steps`, or give
    last_epoch, the number of steps minus one; last_epoch needs groups with a loaded "initial_lr"
    (raises KeyError otherwise). With `split` each group gets its own rate.
    """

    tells_traces: ClassVar[bool] = True
    _is_absolute = False  # whether `step` ignores changes that others made to the rate

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1, *, split: bool = False) -> None:
        name, groups = type(self).__name__, groups_of(type(self).__name__, optimizer)
        self.optimizer = optimizer
        steps = count(name, "last_epoch", last_epoch, -1) + 1
        for i, group in enumerate(groups):
            if group.initial_lr is None and steps:
                raise KeyError(f"{name}: last_epoch is given, but group {i} has no 'initial_lr'")
            if split:
                group.own.setdefault("lr", group["lr"])
        shared = [i for i, group in enumerate(groups) if "lr" not in group.own]
        self.base_lr = self.base_lrs[shared[0]] if shared else optimizer.lr
        self._steps: float = steps
        if not steps or self._is_absolute:
            self._go_to(steps)

    def __repr__(self) -> str:
        hidden = ("optimizer", "base_lr")
        own = [(k, v) for k, v in vars(self).items() if k[0] != "_" and k not in hidden]
        options = "".join(f"{name}={value!r}, " for name, value in own)
        rates = ", ".join(f"{rate:.4g}" for rate in self.get_last_lr())
        optimizer = type(self.optimizer).__name__
        return (
            f"{type(self).__name__}({options}of {optimizer}: lr {rates} after {self.steps} steps)"
        )

    @property
    def steps(self) -> Any:
        """The number of calls of `step`. Setting it also sets the rates for this number."""
        return self._steps

    @steps.setter
    def steps(self, value: int) -> None:
        self._steps = count(type(self).__name__, "steps", value, 0)
        self._set([self.rate(base, value, i or 0) for i, base in self._bases()])

    @property
    def last_epoch(self) -> Any:
        """PyTorch's name for `steps`."""
        return self._steps

    @property
    def base_lrs(self) -> list[Any]:
        """The base rate of each group."""
        for group in self.optimizer.param_groups:
            if group.initial_lr is None:
                group.initial_lr = group["lr"]
        return [group.initial_lr for group in self.optimizer.param_groups]

    @property
    def group_lrs(self) -> dict[int, float]:
        """The base rates of groups that have a rate of their own, by group."""
        groups, bases = self.optimizer.param_groups, self.base_lrs
        return {i: bases[i] for i, group in enumerate(groups) if "lr" in group.own}

    def _bases(self) -> list[tuple[int | None, float]]:
        """Return (group, base) of each rate that the schedule sets. The group None stands for the
        optimizer's own rate."""
        return [(None, self.base_lr), *self.group_lrs.items()]

    def _rate_of(self, group: int | None) -> float:
        return self.optimizer.lr if group is None else self.optimizer.param_groups[group]["lr"]

    def _set(self, rates: Iterable[float]) -> None:
        """Set the rates, in the order of `_bases`, and everything else that depends on `steps`."""
        for (i, _), rate in zip(self._bases(), rates, strict=True):
            if i is None:
                self.optimizer.lr = rate
            else:
                self.optimizer.param_groups[i].own["lr"] = rate

    def _following(self, group: int | None, base: float, steps: int) -> float:
        """Return the rate after `steps` steps; the current rate is the rate after `steps` - 1."""
        now, i = self._rate_of(group), group or 0
        if not self._is_absolute and now != (self.rate(base, steps - 1, i) if steps else base):
            return self.chained(now, base, steps, i)
        return self.rate(base, steps, i)

    def step(self) -> None:
        """Advance the schedule; call it after each step (or epoch) of the optimizer."""
        if state.trace is not None:
            self._check_fixed(state.trace.here)
            state.trace.at_each_call(self.step)
            return
        self._go_to(self._steps + 1)

    def _check_fixed(self, where: str) -> None:
        """Raise TraceError if `step` changes more than rates: compiled code fixes the rest."""

    def _go_to(self, steps: Any) -> None:
        """Set the rates after `steps` steps; the current rates are the rates after `steps` - 1."""
        if type(self).get_lr is not Schedule.get_lr:
            self._steps = steps
            for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
                group["lr"] = rate
            return
        rates = [self._following(i, base, steps) for i, base in self._bases()]
        self._steps = steps
        self._set(rates)

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        """Return the learning rate of a group after `steps` steps; `base` is its initial rate."""
        return base * self.factor(steps)

    def chained(self, now: float, base: float, steps: int, group: int = 0) -> float:
        """Return the learning rate of a group after `steps` steps. `now` is its rate one step
        earlier, which other code has changed; `base` is its initial rate."""
        before = self.factor(steps - 1) if steps else 1.0
        return now * (self.factor(steps) / before) if before else now

    def factor(self, steps: Any) -> float:
        """Return the multiplier of the base learning rate after `steps` steps."""
        raise NotImplementedError(f"{type(self).__name__} defines no factor")

    def get_last_lr(self) -> list[float]:
        """Return the learning rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[float]:
        """Return the learning rate of each group after `last_epoch` steps."""
        return self.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return {"steps": number, "base_lr": number, "group_lrs": {group: number}, "rates":
        {group: number}}. "group_lrs" and "rates" hold the base and current rates of groups with
        their own rate. The optimizer's base rate is "base_lr"; its current rate is in "rates" under
        the key None."""
        own = {"base_lr": self.base_lr, "group_lrs": self.group_lrs}
        rates = {i: self._rate_of(i) for i, _ in self._bases()}
        return {"steps": self.steps, **own, "rates": rates}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Load `values`, a result of `state_dict`, and set the learning rates. Raises ValueError
        for anything else, and for a group that the optimizer does not have."""
        needed, name = {"steps", "base_lr", "group_lrs"}, type(self).__name__
        if not isinstance(values, Mapping) or not needed <= set(values) <= needed | {"rates"}:
            raise ValueError(f"load_state_dict: {name}: not a result of state_dict")
        groups, own, rates = self.optimizer.param_groups, values["group_lrs"], values.get("rates")
        if not set(own) <= set(range(len(groups))):
            raise ValueError(
                f"load_state_dict: {name}: groups {list(own)}, but the optimizer has {len(groups)}"
            )
        self.base_lr, self._steps = values["base_lr"], values["steps"]
        for i, group in enumerate(groups):
            group.initial_lr = own.get(i, self.base_lr)
            if i in own:
                group.own.setdefault("lr", group["lr"])
        self._set(
            rates[i] if rates and i in rates else self.rate(base, self._steps, i or 0)
            for i, base in self._bases()
        )


def groups_of(owner: str, optimizer: Any) -> list[Group]:
    """Return the optimizer's groups. Raises TypeError for anything else."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{owner}: optimizer is a {type(optimizer).__name__}, not an Optimizer")
    return optimizer.param_groups


class _ForAll(list[Any]):
    """One value for all groups, including groups that are added later."""

    def __getitem__(self, group: Any) -> Any:
        return super().__getitem__(0)


def per_group(
    owner: str, what: str, values: Any, optimizer: Any, check: Callable[[str, str, Any], Any]
) -> list[Any]:
    """Return a checked value for each group, from `values`: a list, or one value for all."""
    groups = groups_of(owner, optimizer)
    if not isinstance(values, (list, tuple)):
        return _ForAll([check(owner, what, values)] * len(groups))
    if len(values) != len(groups):
        raise ValueError(f"{owner}: {what} has {len(values)} values for {len(groups)} groups")
    return [check(owner, what, value) for value in values]


def _function(owner: str, what: str, value: Any) -> Any:
    if not callable(value):
        raise TypeError(f"{owner}: {what} is a {type(value).__name__}, not a function")
    return value


class LambdaLR(Schedule):
    """factor = lr_lambda(steps); lr_lambda may be a list of functions, one for each group."""

    _is_absolute = True

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        name = type(self).__name__
        self.lr_lambdas = per_group(name, "lr_lambda", lr_lambda, optimizer, _function)
        super().__init__(optimizer, last_epoch, split=isinstance(lr_lambda, (list, tuple)))

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        return base * self.lr_lambdas[group](steps)


class MultiplicativeLR(LambdaLR):
    """Each step multiplies the rate by lr_lambda(steps), which may be a list of functions, one for
    each group."""

    _is_absolute = False

    def _following(self, group: int | None, base: float, steps: int) -> float:
        return self.chained(self._rate_of(group), base, steps, group or 0)

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        for step in range(1, steps + 1):
            base = base * self.lr_lambdas[group](step)
        return base

    def chained(self, now: float, base: float, steps: int, group: int = 0) -> float:
        return now * self.lr_lambdas[group](steps) if steps else now


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

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = count("StepLR", "step_size", step_size)
        self.gamma = not_negative("StepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        return self.gamma ** (steps // self.step_size)


class ExponentialLR(Schedule):
    """factor = gamma ** steps."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = not_negative("ExponentialLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        return self.gamma**steps


class MultiStepLR(Schedule):
    """factor = gamma ** n, where n is how many milestones (numbers of steps) have been reached."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones = sorted(count("MultiStepLR", "milestones", m, 0) for m in milestones)
        self.gamma = not_negative("MultiStepLR", "gamma", gamma)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        return self.gamma ** bisect.bisect_right(self.milestones, steps)


class ConstantLR(Schedule):
    """The rate is multiplied by `factor` until `total_iters` steps are done."""

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self._factor = share("ConstantLR", "factor", factor)
        self.total_iters = count("ConstantLR", "total_iters", total_iters, 0)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        return self._factor if steps < self.total_iters else 1.0


class LinearLR(Schedule):
    """factor changes linearly from start_factor to end_factor within total_iters steps, and stays
    there. The keywords `start`, `end` and `total` are other names for the three arguments."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.start_factor = not_negative("LinearLR", "start_factor", start_factor)
        self.end_factor = not_negative("LinearLR", "end_factor", end_factor)
        self.total_iters = count("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        done = min(steps / self.total_iters, 1.0)
        return self.start_factor + (self.end_factor - self.start_factor) * done


class PolynomialLR(Schedule):
    """factor = (1 - steps / total_iters) ** power, and 0 after total_iters steps."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters = count("PolynomialLR", "total_iters", total_iters)
        self.power = not_negative("PolynomialLR", "power", power)
        super().__init__(optimizer, last_epoch)

    def factor(self, steps: Any) -> float:
        return (1.0 - min(steps / self.total_iters, 1.0)) ** self.power


class CosineAnnealingLR(Schedule):
    """The learning rate follows a cosine from base_lr to eta_min within T_max steps, and back
    (Loshchilov and Hutter 2017)."""

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = count("CosineAnnealingLR", "T_max", T_max)
        self.eta_min = not_negative("CosineAnnealingLR", "eta_min", eta_min)
        super().__init__(optimizer, last_epoch)

    def _along(self, steps: Any) -> float:
        return 1 + math.cos(math.pi * steps / self.T_max)

    def rate(self, base: float, steps: Any, group: int = 0) -> float:
        return self.eta_min + (base - self.eta_min) * (self._along(steps) / 2)

    def chained(self, now: float, base: float, steps: int, group: int = 0) -> float:
        if not steps:
            return now
        if (steps - 1 - self.T_max) % (2 * self.T_max) == 0:  # the previous rate is eta_min
            return now + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        return self._along(steps) / self._along(steps - 1) * (now - self.eta_min) + self.eta_min


class CosineLR(Schedule):
    """factor rises linearly within `warmup` steps from 1 / (warmup + 1) to 1, then falls by half a
    cosine to `end` at step `total`, and stays there."""

    def __init__(self, optimizer: Optimizer, total: int, warmup: int = 0, end: float = 0.0) -> None:
        self.total = count("CosineLR", "total", total)
        self.end = not_negative("CosineLR", "end", end)
        self.warmup = count("CosineLR", "warmup", warmup, 0)
        if not 0 <= warmup < total:
            raise ValueError(f"CosineLR: warmup {warmup} is not in [0, {total})")
        super().__init__(optimizer)

    def factor(self, steps: Any) -> float:
        if steps < self.warmup:
            return (steps + 1) / (self.warmup + 1)
        done = min((steps - self.warmup) / (self.total - self.warmup), 1.0)
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))
