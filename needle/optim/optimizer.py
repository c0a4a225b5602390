"""The base of all optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .._state import state
from ..backend_ndarray import Device, NDArray, zeros
from ..backend_ndarray.arguments import not_negative
from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..tensor import Tensor


class Optimizer:
    """Base of all optimizers. `params` are the tensors to update; those without grad are skipped.

    Raises ValueError for no parameters or a learning rate that is negative or not finite, TypeError
    for one that is not a number, and for a parameter that is not a floating-point Tensor.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        name = type(self).__name__
        if isinstance(params, Tensor) or not isinstance(params, Iterable):
            raise TypeError(f"{name}: params is a {type(params).__name__}, not a list of Tensors")
        self.params = list(params)
        self.lr = not_negative(name, "lr", lr)
        if not self.params:
            raise ValueError(f"{name}: no parameters given")
        for i, param in enumerate(self.params):
            if not isinstance(param, Tensor):
                raise TypeError(f"{name}: parameter {i} is a {type(param).__name__}, not a Tensor")
            if not is_floating(param.dtype):
                raise TypeError(f"{name}: parameter {i} is {param.spec}, not floating point")

    def step(self) -> None:
        """Update every parameter once. Records no graph."""
        for i, param in enumerate(self.params):
            if state.trace is not None:
                state.trace.refuse_write(param)
            grad = param.grad
            if grad is None:
                continue
            data = param.realize_cached_data()
            if not data.is_compact:
                data = data.compact()  # a write to repeated elements would be wrong
                param._replace(data)
            self._update(i, data, grad.realize_cached_data())

    def _update(self, i: int, param: NDArray, grad: NDArray) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    def reset_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for param in self.params:
            param.grad = None

    zero_grad = reset_grad

    def clip_grad_norm(self, max_norm: float = 0.25) -> float:
        """Scale all gradients so that their joint Euclidean norm is at most `max_norm`.

        Returns the norm before scaling.
        """
        not_negative("clip_grad_norm", "max_norm", max_norm)
        grads = [(p, p.grad.realize_cached_data()) for p in self.params if p.grad is not None]
        total = math.sqrt(sum(float((g * g).sum()) for _, g in grads))
        # As in torch.nn.utils.clip_grad_norm_, so that a norm of zero is not a divisor.
        scale = max_norm / (total + 1e-6)
        if not scale >= 1:
            for param, grad in grads:
                # A new array, because gradients of several parameters may share one.
                param.grad = Tensor(grad * scale, requires_grad=False)
        return total

    # State: a subclass keeps its options and counters as numbers, and its state per parameter in
    # dicts of NDArrays by the parameter's position.

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on besides parameters and gradients.

        Returns {"state": {position: {name: Tensor}}, "numbers": {name: number}}. The tensors share
        memory with the optimizer, so later steps change them.
        """
        kept: dict[int, dict[str, Tensor]] = {}
        for name, arrays in self._arrays().items():
            for i, array in arrays.items():
                kept.setdefault(i, {})[name] = Tensor(array, requires_grad=False)
        return {"state": dict(sorted(kept.items())), "numbers": self._numbers()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Copy a `state_dict` of an optimizer of this class for parameters like these.

        ValueError lists everything that is missing, unexpected or does not fit; then nothing
        changes.
        """
        state, numbers = (values.get(k) for k in _PARTS) if isinstance(values, Mapping) else _PARTS
        if not isinstance(state, Mapping) or not isinstance(numbers, Mapping):
            raise ValueError(f"load_state_dict: {type(self).__name__}: not what state_dict gives")
        own, names = self._numbers(), self._arrays()
        wrong = [f"missing {name!r}" for name in own if name not in numbers]
        for name, number in numbers.items():
            if name not in own:
                wrong.append(f"unexpected {name!r}")
            elif not isinstance(number, _NUMBERS):
                wrong.append(f"{name!r} is a {type(number).__name__}, not a number")
        for i, arrays in state.items():
            if not (isinstance(i, int) and 0 <= i < len(self.params)):
                wrong.append(f"there is no parameter {i!r}")
                continue
            if not isinstance(arrays, Mapping):
                wrong.append(f"parameter {i} has a {type(arrays).__name__}, not tensors by name")
                continue
            wrong += [f"parameter {i} lacks {name!r}" for name in names if name not in arrays]
            for name, array in arrays.items():
                param = self.params[i]
                if name not in names:
                    wrong.append(f"parameter {i} has an unexpected {name!r}")
                    continue
                if not isinstance(array, Tensor):
                    wrong.append(f"{name!r} of parameter {i} is a {type(array).__name__}")
                    continue
                found = str(array.spec)
                needed = f"{compute_dtype(param.dtype)}{list(param.shape)}"
                if found != needed:
                    wrong.append(f"{name!r} of parameter {i} is {found}, not {needed}")
        if wrong:
            raise ValueError(f"load_state_dict: {type(self).__name__}: {'; '.join(wrong)}")
        for name in names:
            arrays = {i: _copied(of[name], self.params[i].device) for i, of in state.items()}
            setattr(self, name, arrays)
        for name, number in numbers.items():
            setattr(self, name, number)

    def _numbers(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, _NUMBERS)}

    def _arrays(self) -> dict[str, dict[int, NDArray]]:
        return {name: value for name, value in vars(self).items() if isinstance(value, dict)}


_NUMBERS = (bool, int, float)
_PARTS = ("state", "numbers")  # keys of state_dict's result


def _copied(value: Tensor, device: Device) -> NDArray:
    data = value.realize_cached_data()
    return data.copy() if data.device is device else data.to(device)


def zeros_of(param: NDArray) -> NDArray:
    """Zeros of the parameter's shape, device and dtype; float32 for a half-precision parameter,
    because small squares would vanish in it."""
    return zeros(param.shape, compute_dtype(param.dtype), param.device)
