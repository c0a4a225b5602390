"""The base of all optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray import Device, NDArray, cpu, from_dlpack, zeros
from ..backend_ndarray.arguments import not_negative
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..common.state import call_recording, note_replaced, state
from .clip import clip_grad_norm
from .groups import NUMBERS, Group, Options, split_names
from .traced import record_step

Check = Callable[[str, str, Any], Any]  # (optimizer, option, value) -> the value, or an error


class Optimizer:
    """Base of all optimizers. `params` are the tensors to update; tensors without grad are skipped.

    `params` may also be groups, dicts {"params": tensors, "lr": ..., ...}: the options in a dict
    replace the optimizer's options for its tensors (`param_groups`). Pairs (name, tensor), such as
    those of `model.named_parameters()`, name the tensors; `group["param_names"]` has the names.

    Raises ValueError if there are no parameters, for a parameter that is given twice, for names of
    only some parameters, for an unknown option, and for a learning rate that is negative or not
    finite.
    Raises TypeError for a learning rate that is not a number, and for a parameter that is not a
    floating-point Tensor.
    """

    tells_traces: ClassVar[bool] = True  # a step reports its reads and writes to a trace
    checks: ClassVar[dict[str, Check]] = {}  # by option; lr is checked separately
    _states: ClassVar[tuple[str, ...]] = ()  # names of the arrays that a parameter's state may have
    _optional: ClassVar[tuple[str, ...]] = ()  # names of options that may be None
    _reads_steps: ClassVar[bool] = False  # whether a step depends on the number of earlier steps
    maximize: bool = False  # whether steps go up the gradient; an option only if in `checks`

    def __init__(self, params: Iterable[Any], lr: float, **options: Any) -> None:
        name = type(self).__name__
        if isinstance(params, (Tensor, Mapping)) or not isinstance(params, Iterable):
            raise TypeError(f"{name}: params is a {type(params).__name__}, not a list of Tensors")
        entries = list(params)
        self.lr = not_negative(name, "lr", lr)
        self.state: dict[int, dict[str, NDArray]] = {}  # by position of the parameter, and name
        self._counts: NDArray  # the "step" of every parameter, on the host
        self._steps: dict[int, Any] = {}  # the memory of each "step"
        for option, value in options.items():
            setattr(self, option, self.checks[option](name, option, value))
        self.params: list[Tensor] = []
        self.param_groups: list[Group] = []
        groups = entries if entries and isinstance(entries[0], Mapping) else [{"params": entries}]
        for group in groups:
            self.add_param_group(group)
        if not self.params:
            raise ValueError(f"{name}: no parameters given")

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group {"params": tensors, option: value, ...}. Raises the same errors as the
        constructor."""
        name, number = type(self).__name__, len(self.param_groups)
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(f'{name}: group {number} is not a dict with "params"')
        params = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        params, names = split_names(name, list(params))
        if number and (names is None) != (self.param_groups[0].param_names is None):
            raise ValueError(f"{name}: name the parameters of all groups, or of no group")
        known = {id(param) for param in self.params}
        for i, param in enumerate(params, len(self.params)):
            if not isinstance(param, Tensor):
                raise TypeError(f"{name}: parameter {i} is a {type(param).__name__}, not a Tensor")
            if not is_floating(param.dtype):
                raise TypeError(f"{name}: parameter {i} is {param.spec}, not floating point")
            if id(param) in known:
                raise ValueError(f"{name}: parameter {i} {param.spec} is given twice")
            known.add(id(param))
        made = Group(self, range(len(self.params), len(self.params) + len(params)), names)
        for option, value in group.items():
            if option != "params":
                made[option] = value
        self.params += params
        self.param_groups.append(made)
        self._make_counts()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter once, without recording a graph. `closure` computes the loss and
        its gradients; return its result, or None without a closure."""
        loss = None if closure is None else closure()
        if state.trace is not None:
            call_recording(False, record_step, self, state.trace)
            return loss
        for group in self.param_groups:
            options = group.options
            rule, lr, goes_up = self._rule(options), options.lr, options.maximize
            is_known, group.rule = rule is group.rule, rule
            for i in group.numbers:
                param = self.params[i]
                grad = param.grad
                if grad is None:
                    continue
                g = grad.realize_cached_data()
                kept = self.state.get(i) if is_known else None
                if kept is None:
                    kept = self._kept(i, rule, options)
                steps = self._steps[i]
                rule.update(self._written(param), -g if goes_up else g, kept, lr, steps[0])
                steps[0] += 1
        return loss

    def _rule(self, options: Any) -> Any:
        """Return the step of a parameter with these `options` (attributes): an `ops.Update`, or an
        object with the same `states` and `update`."""
        raise NotImplementedError(f"{type(self).__name__} defines no step")

    def _kept(self, i: int, rule: Any, options: Any) -> dict[str, NDArray]:
        """Return the state of parameter `i`, after adding the arrays that a step needs."""
        param = self.params[i]
        if i not in self.state:
            self.state[i] = {}
            self._set_steps(i, 0)
        kept, data = self.state[i], param._data
        for name in rule.states:
            shape = self._state_shape(name, param)
            if name not in kept and shape is not None:
                kept[name] = zeros_of(data, shape) + self._first(name, options)
        return kept

    def _set_steps(self, i: int, steps: int) -> None:
        """Set parameter `i`'s number of steps, which is a tensor on the host. Python code counts
        steps through `_steps`, which shares this tensor's memory."""
        counter = np.from_dlpack(self._counts)[i : i + 1]
        counter[0] = steps
        self.state[i]["step"] = from_dlpack(counter.reshape(()), device=self._counts.device)
        self._steps[i] = counter.data

    def _make_counts(self) -> None:
        """Create the array that holds every parameter's number of steps."""
        if not self.params:
            return
        device = self.params[0].device
        known = {i: memory[0] for i, memory in self._steps.items()}
        self._counts = zeros(
            (len(self.params),), "int64", cpu() if device.name == "cuda" else device
        )
        for i, steps in known.items():
            self._set_steps(i, steps)
        note_replaced()

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_steps", "_counts")
        return {name: value for name, value in vars(self).items() if name not in hidden}

    def __setstate__(self, values: Mapping[str, Any]) -> None:
        vars(self).update(values)
        self._steps = {}
        self._make_counts()
        for i, kept in self.state.items():
            self._set_steps(i, int(kept["step"].item()))

    def _first(self, name: str, options: Any) -> float:
        """Return the number that fills the state's array `name` before the first step."""
        return 0.0

    def _written(self, param: Tensor) -> NDArray:
        """Return the array to update in place."""
        data: NDArray = param.realize_cached_data()
        if not data.is_compact:
            data = data.compact()  # a write to repeated elements would be wrong
            param._replace(data)
        return data

    def reset_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for param in self.params:
            param.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients of all parameters to None, or with set_to_none False to zeros."""
        if set_to_none:
            self.reset_grad()
            return
        for param in self.params:
            if param.grad is not None:
                grad = param.grad.realize_cached_data()
                param.grad = Tensor(zeros(grad.shape, grad.dtype, grad.device), requires_grad=False)

    def clip_grad_norm(self, max_norm: float = 0.25) -> float:
        """Scale all gradients so that their joint Euclidean norm is at most `max_norm`.

        Returns the norm before scaling.
        """
        return clip_grad_norm(self.params, max_norm)

    def __repr__(self) -> str:
        groups = [self._describe(group) for group in self.param_groups]
        if len(groups) == 1:
            return f"{type(self).__name__}({groups[0]})"
        lines = "".join(f"\n  ({i}): {text}" for i, text in enumerate(groups))
        return f"{type(self).__name__}({lines}\n)"

    def _describe(self, group: Group) -> str:
        options = ", ".join(f"{name}={group[name]!r}" for name in group if name[:5] != "param")
        params = group["params"]
        count, tensors = sum(p.size for p in params), "tensor" if len(params) == 1 else "tensors"
        return f"{options}, {count:,} parameters in {len(params)} {tensors}"

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on besides parameters and gradients.

        The result is {"state": {position: {name: Tensor}}, "numbers": {name: number}}. A parameter
        that has been updated has "step", the number of its updates, as int64 []. The tensors share
        memory with the optimizer, so later steps change them. If group i has its own value for an
        option, "numbers" has the value as "group i option".
        """
        kept = {
            i: {name: Tensor(array, requires_grad=False) for name, array in arrays.items()}
            for i, arrays in sorted(self.state.items())
        }
        return {"state": kept, "numbers": self._numbers()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Copy `values`, a `state_dict` of an optimizer of this class for parameters and groups
        like these. Older states with one number of steps for all parameters, "t", also work.

        Raises ValueError, without any change, with a list of everything that is missing, unexpected
        or does not fit.
        """
        state, numbers = (values.get(k) for k in _PARTS) if isinstance(values, Mapping) else _PARTS
        if not isinstance(state, Mapping) or not isinstance(numbers, Mapping):
            raise ValueError(f"load_state_dict: {type(self).__name__}: not a result of state_dict")
        state, numbers = self._upgraded(state, numbers)
        wrong = [*self._wrong_numbers(numbers), *self._wrong_arrays(state, numbers)]
        if wrong:
            raise ValueError(f"load_state_dict: {type(self).__name__}: {'; '.join(wrong)}")
        self.state, self._steps = {}, {}
        for group in self.param_groups:
            group.rule = None
        for i, arrays in state.items():
            if arrays:
                device = self.params[i].device
                self.state[i] = {name: _copied(array, device) for name, array in arrays.items()}
                self._set_steps(i, int(arrays["step"].item()))
        for name, number in numbers.items():
            self._set_number(name, number)
        note_replaced()

    def _upgraded(
        self, state: Mapping[Any, Any], numbers: Mapping[str, Any]
    ) -> tuple[Mapping[Any, Any], Mapping[str, Any]]:
        """Return (state, numbers) with a "step" for each parameter. An older state has one number
        "t" for all parameters instead. If a state has neither, and the optimizer's steps do not
        depend on their number, each "step" becomes 1."""
        kept = [of for of in state.values() if isinstance(of, Mapping)]
        if any("step" in of for of in kept):
            return state, numbers
        steps = numbers.get("t", None if self._reads_steps else 1)
        if type(steps) is int:
            step = Tensor(np.array(steps, "int64"), device=cpu(), requires_grad=False)
            state = {
                i: {**of, "step": step} if isinstance(of, Mapping) and of else of
                for i, of in state.items()
            }
        return state, {name: number for name, number in numbers.items() if name != "t"}

    def _wrong_numbers(self, numbers: Mapping[str, Any]) -> Iterator[str]:
        own = self._numbers()
        optional = {f"group {i} initial_lr" for i in range(len(self.param_groups))}
        yield from (f"missing {name!r}" for name in own if name not in {*numbers, *optional})
        for name, number in numbers.items():
            if name not in own and name not in optional:
                yield f"unexpected {name!r}"
            elif not isinstance(number, NUMBERS) and not (
                number is None and name.rpartition(" ")[2] in self._optional
            ):
                yield f"{name!r} is a {type(number).__name__}, not a number"

    def _wrong_arrays(self, state: Mapping[Any, Any], numbers: Mapping[str, Any]) -> Iterator[str]:
        for i, arrays in state.items():
            if not (isinstance(i, int) and 0 <= i < len(self.params)):
                yield f"there is no parameter {i!r}"
                continue
            if not isinstance(arrays, Mapping):
                yield f"parameter {i} has a {type(arrays).__name__}, not tensors by name"
                continue
            if not arrays:
                continue
            param = self.params[i]
            known = {name: self._state_shape(name, param) for name in self._states}
            wide = compute_dtype(param.dtype)
            specs = {name: f"{wide}{list(n)}" for name, n in known.items() if n is not None}
            specs["step"] = "int64[]"
            for name in ("step", *self._rule(Options(self._group_of(param), numbers)).states):
                if name in specs and name not in arrays:
                    yield f"parameter {i} lacks {name!r}"
            for name, array in arrays.items():
                if name not in specs:
                    yield f"parameter {i} has an unexpected {name!r}"
                elif not isinstance(array, Tensor):
                    yield f"{name!r} of parameter {i} is a {type(array).__name__}"
                elif str(array.spec) != specs[name]:
                    yield f"{name!r} of parameter {i} is {array.spec}, not {specs[name]}"

    def _state_shape(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        """Return the shape of the state's array `name` of a parameter; None if it has no such
        array."""
        return param.shape

    def _group_of(self, param: Tensor) -> Group:
        number = next(i for i, each in enumerate(self.params) if each is param)
        return next(group for group in self.param_groups if number in group.numbers)

    def _numbers(self) -> dict[str, Any]:
        known = {name: value for name, value in vars(self).items() if name[0] != "_"}
        own = {name: value for name, value in known.items() if isinstance(value, NUMBERS)}
        for i, group in enumerate(self.param_groups):
            own.update({f"group {i} {name}": value for name, value in group.own.items()})
            if group.initial_lr is not None:
                own[f"group {i} initial_lr"] = group.initial_lr
        return own

    def _set_number(self, name: str, number: Any) -> None:
        first, _, rest = name.partition(" ")
        if first != "group":
            setattr(self, name, number)
            return
        i, _, option = rest.partition(" ")
        if option == "initial_lr":
            self.param_groups[int(i)].initial_lr = number
        else:
            self.param_groups[int(i)].own[option] = number


_PARTS = ("state", "numbers")  # keys of state_dict's result


def _copied(value: Tensor, device: Device) -> NDArray:
    data = value.realize_cached_data()
    return data.copy() if data.device is device else data.to(device)


def zeros_of(param: NDArray, shape: tuple[int, ...] | None = None) -> NDArray:
    """Return zeros with the parameter's shape (or `shape`), device and dtype. For a half-precision
    parameter they are float32, because small squares would vanish in half precision."""
    return zeros(param.shape if shape is None else shape, compute_dtype(param.dtype), param.device)


def wide(array: NDArray) -> NDArray:
    """Return `array` in the dtype in which updates are computed."""
    return array.astype(compute_dtype(array.dtype), copy=False)


def write(param: NDArray, value: NDArray) -> None:
    """Set the elements of `param` to `value`, rounded to its dtype."""
    param[...] = value.astype(param.dtype, copy=False)
