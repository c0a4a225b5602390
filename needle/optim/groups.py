"""Groups of an optimizer's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from ..backend_ndarray.arguments import not_negative
from ..common.state import state
from ..errors import TraceError

NUMBERS = (bool, int, float)


def pair_of(owner: str, betas: Any) -> tuple[float, float]:
    """Return `betas` as a pair. Raises TypeError for anything else."""
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise TypeError(f"{owner}: betas {betas!r} is not a pair (beta1, beta2)")
    return betas[0], betas[1]


def split_names(owner: str, params: list[Any]) -> tuple[list[Any], list[str] | None]:
    """Return the parameters, and their names if `params` are pairs (name, parameter). Raises
    ValueError if only some are pairs."""
    named = [isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in params]
    if not any(named):
        return params, None
    if not all(named):
        first = named.index(False)
        raise ValueError(
            f"{owner}: parameter {first} has no name, but other parameters have: name all of them"
        )
    return [param for _, param in params], [name for name, _ in params]


class Group(MutableMapping[str, Any]):
    """Parameters that share options: a mapping with "params" and each option.

    If the group has no value of its own for an option, it returns the optimizer's. "betas" is
    the pair of beta1 and beta2. Setting an option sets it for the group alone, or for the optimizer
    if it has only this group. "param_names" are the names of the parameters, if they have names.
    "initial_lr" is the rate that schedules start from, if there was a schedule.
    """

    def __init__(self, optimizer: Any, numbers: range, param_names: list[str] | None) -> None:
        self.optimizer, self.numbers, self.param_names = optimizer, numbers, param_names
        self.own: dict[str, Any] = {}
        self.initial_lr: float | None = None  # the rate before the first schedule changed it
        self.rule: Any = None  # the last step's rule; all parameters have the state that it needs

    @property
    def options(self) -> Any:
        """An object whose attributes are the options."""
        return Options(self) if self.own else self.optimizer

    def _names(self) -> tuple[str, ...]:
        return ("lr", *self.optimizer.checks)

    def __getitem__(self, name: str) -> Any:
        if name == "params":
            return [self.optimizer.params[i] for i in self.numbers]
        if name == "param_names" and self.param_names is not None:
            return list(self.param_names)
        if name == "betas" and "beta1" in self._names():
            return self["beta1"], self["beta2"]
        if name == "initial_lr" and self.initial_lr is not None:
            return self.initial_lr
        if name not in self._names():
            raise KeyError(name)
        return self.own[name] if name in self.own else getattr(self.optimizer, name)

    def __setitem__(self, name: str, value: Any) -> None:
        owner = type(self.optimizer).__name__
        if state.trace is not None:
            raise TraceError(
                f"tracing: the function sets {name!r} of {owner}, which happens only in the trace: "
                "set it outside, or step a schedule in the function"
            )
        if name == "betas" and "beta1" in self._names():
            self["beta1"], self["beta2"] = pair_of(owner, value)
            return
        if name == "initial_lr":
            self.initial_lr = not_negative(owner, name, value)
            return
        if name not in self._names():
            known = ", ".join(self._names())
            raise ValueError(f"{owner}: a group has no option {name!r}; its options are {known}")
        check = not_negative if name == "lr" else self.optimizer.checks[name]
        value = check(owner, name, value)
        if self.optimizer.param_groups == [self] and name not in self.own:
            setattr(self.optimizer, name, value)
        else:
            self.own[name] = value

    def __delitem__(self, name: str) -> None:
        del self.own[name]

    def __iter__(self) -> Iterator[str]:
        named = () if self.param_names is None else ("param_names",)
        return iter(("params", *named, *self._names()))

    def __len__(self) -> int:
        return len([*self])

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Group({self.optimizer._describe(self)})"


class Options:
    """The options of a group as attributes. `numbers`, from a state_dict, replace the group's own
    options; all other attributes come from the optimizer."""

    def __init__(self, group: Group, numbers: Mapping[str, Any] | None = None) -> None:
        self._group, self._own = group, group.own
        if numbers is not None:
            first = f"group {group.optimizer.param_groups.index(group)} "
            given = [(n, v) for n, v in numbers.items() if isinstance(v, NUMBERS) or v is None]
            self._own = dict(given) | {
                n.removeprefix(first): v for n, v in given if n.startswith(first)
            }

    def __getattr__(self, name: str) -> Any:
        own = self._own
        return own[name] if name in own else getattr(self._group.optimizer, name)
