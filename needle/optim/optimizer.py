"""What all optimizers share."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .._state import state
from ..autograd import Tensor, mark_changed
from ..backend_ndarray import NDArray, zeros
from ..backend_ndarray.dtypes import is_floating


class Optimizer:
    """Base of all optimizers. `params` are the tensors to change; those without grad are skipped.

    Raises ValueError for no parameters or a negative learning rate, TypeError for a parameter that
    is no floating-point Tensor.
    """

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        name = type(self).__name__
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
        """Changes every parameter once. Records no graph."""
        for i, param in enumerate(self.params):
            if state.trace is not None:
                state.trace.refuse_write(param)
            grad = param.grad
            if grad is None:
                continue
            data = param.realize_cached_data()
            if not data.is_compact:
                data = data.compact()  # writing to repeated elements would be wrong
                param._replace(data)
            self._update(i, data, grad.realize_cached_data())
            mark_changed(param)

    def _update(self, i: int, param: NDArray, grad: NDArray) -> None:
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    def reset_grad(self) -> None:
        """Forgets the gradients of all parameters."""
        for param in self.params:
            param.grad = None

    zero_grad = reset_grad

    def clip_grad_norm(self, max_norm: float = 0.25) -> float:
        """Scales all gradients together so that their Euclidean norm is at most `max_norm`.

        Returns the norm before.
        """
        grads = [(p, p.grad.realize_cached_data()) for p in self.params if p.grad is not None]
        total = math.sqrt(sum(float((g * g).sum()) for _, g in grads))
        # As torch.nn.utils.clip_grad_norm_: a norm of zero must not divide by zero.
        scale = max_norm / (total + 1e-6)
        if not scale >= 1:
            for param, grad in grads:
                # A new array: gradients of several parameters may share one.
                param.grad = Tensor(grad * scale, requires_grad=False)
        return total


def not_negative(name: str, what: str, value: float) -> float:
    """`value`, or ValueError when it is negative or no number."""
    if not value >= 0:
        raise ValueError(f"{name}: {what} {value} is not >= 0")
    return value


def fraction(name: str, what: str, value: float) -> float:
    """`value`, or ValueError when it is not in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name}: {what} {value} is not in [0, 1)")
    return value


def zeros_of(param: NDArray) -> NDArray:
    """State of the parameter's shape, dtype and device."""
    return zeros(param.shape, param.dtype, param.device)
