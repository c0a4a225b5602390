"""L-BFGS (Liu and Nocedal 1989), with a line search for the strong Wolfe conditions (Nocedal and
Wright, Numerical Optimization, algorithms 3.5 and 3.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray.arguments import count, not_negative
from ..common.state import call_recording, state
from .line_search import strong_wolfe
from .optimizer import Check, Optimizer
from .traced import computed_by_python

Vector = np.ndarray[Any, Any]


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last `history_size` changes of parameters and gradients.

    `step(closure)` calls the closure, which recomputes the loss and its gradients, up to
    `max_eval` times (None: max_iter * 5 // 4) in up to `max_iter` iterations. It stops when no
    gradient is above tolerance_grad, or when the loss or all parameters change by no more than
    tolerance_change. With line_search_fn "strong_wolfe", lr is the first step length to try;
    without a line search, it is the length of every step. Vectors are kept on the host in float64.
    All parameters must be in one group.
    """

    checks: ClassVar[dict[str, Check]] = {
        "max_iter": count,
        "max_eval": count,
        "tolerance_grad": not_negative,
        "tolerance_change": not_negative,
        "history_size": count,
    }
    max_iter: int
    max_eval: int
    tolerance_grad: float
    tolerance_change: float
    history_size: int

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if line_search_fn not in (None, "strong_wolfe"):
            raise ValueError(
                f"LBFGS: line_search_fn {line_search_fn!r} is not None or 'strong_wolfe'"
            )
        self.line_search_fn = line_search_fn
        self.iterations = 0
        self.length = 0.0  # the length of the last step, in units of the direction
        self.scale = 1.0  # the scale of the inverse Hessian before the first change
        self._direction: Vector | None = None
        self._gradient: Vector | None = None  # before the last step
        self._history: list[tuple[Vector, Vector]] = []  # changes of parameters and of gradients
        super().__init__(
            params,
            lr,
            max_iter=max_iter,
            max_eval=max_iter * 5 // 4 if max_eval is None else max_eval,
            tolerance_grad=tolerance_grad,
            tolerance_change=tolerance_change,
            history_size=history_size,
        )

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add the only group. Raises ValueError for a second group."""
        if self.param_groups:
            raise ValueError("LBFGS: there can be only one group of parameters")
        super().add_param_group(group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take up to max_iter steps. Returns the closure's first result. Raises TypeError without a
        closure."""
        if not callable(closure):
            raise TypeError(f"LBFGS: step needs a closure, not a {type(closure).__name__}")
        if state.trace is not None:
            raise computed_by_python(self)
        first = call_recording(True, closure)
        loss, evaluations = float(first), 1
        gradient = self._flat_gradient()
        if _largest(gradient) <= self.tolerance_grad:
            return first

        def measure() -> tuple[float, Vector]:
            return float(call_recording(True, closure)), self._flat_gradient()

        for iteration in range(self.max_iter):
            self.iterations += 1
            direction = self._next_direction(gradient)
            self._gradient, before = gradient, loss
            length = self.lr
            if self.iterations == 1:
                length *= min(1.0, 1.0 / float(np.abs(gradient).sum()))
            slope = float(gradient @ direction)
            if slope > -self.tolerance_change:
                break
            origin, start = self._flat_params(), (loss, gradient, direction)
            if self.line_search_fn is not None:
                found = strong_wolfe(self._along(origin, direction, measure), length, *start)
                length, loss, gradient = found.length, found.loss, found.gradient
                evaluations += found.evaluations
                self._set(origin + length * direction)
            else:
                self._set(origin + length * direction)
                if iteration + 1 < self.max_iter:
                    loss, gradient = measure()
                    evaluations += 1
            self._direction, self.length = direction, length
            if evaluations >= self.max_eval or _largest(gradient) <= self.tolerance_grad:
                break
            if _largest(length * direction) <= self.tolerance_change:
                break
            if abs(loss - before) < self.tolerance_change:
                break
        return first

    def _along(
        self, origin: Vector, direction: Vector, measure: Callable[[], tuple[float, Vector]]
    ) -> Callable[[float], tuple[float, Vector]]:
        """Return a function that computes the loss and gradient for a step length."""

        def at(length: float) -> tuple[float, Vector]:
            self._set(origin + length * direction)
            return measure()

        return at

    def _next_direction(self, gradient: Vector) -> Vector:
        """Return the negative gradient, multiplied by the inverse Hessian that the history implies
        (two-loop recursion)."""
        if self._direction is not None and self._gradient is not None:
            change, move = gradient - self._gradient, self.length * self._direction
            product = float(change @ move)
            if product > 1e-10:
                self._history = [*self._history, (move, change)][-self.history_size :]
                self.scale = product / float(change @ change)
        q, shares = -gradient, []
        for move, change in reversed(self._history):
            share = float(move @ q) / float(change @ move)
            shares.append(share)
            q = q - share * change
        q = q * self.scale
        for (move, change), share in zip(self._history, reversed(shares), strict=True):
            q = q + (share - float(change @ q) / float(change @ move)) * move
        return q

    def _flat_gradient(self) -> Vector:
        parts = [
            np.zeros(p.size) if p.grad is None else p.grad.numpy().astype("float64").reshape(-1)
            for p in self.params
        ]
        return np.concatenate(parts)

    def _flat_params(self) -> Vector:
        return np.concatenate([p.numpy().astype("float64").reshape(-1) for p in self.params])

    def _set(self, values: Vector) -> None:
        at = 0
        for param in self.params:
            part = values[at : at + param.size].reshape(param.shape)
            self._written(param)[...] = part
            at += param.size

    # One state for all parameters together, stored under the first parameter.

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the form that all optimizers use. Each vector has the elements of all
        parameters, one after the other."""
        kept: dict[str, Tensor] = {}
        if self._direction is not None and self._gradient is not None:
            kept["direction"] = make_const(self._direction)
            kept["gradient"] = make_const(self._gradient)
            rows = (len(self._history), len(self._gradient))
            for k, name in enumerate(("moves", "changes")):
                stacked = np.array([pair[k] for pair in self._history]).reshape(rows)
                kept[name] = make_const(stacked)
        return {"state": {0: kept} if kept else {}, "numbers": self._numbers()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Copy `values`, a `state_dict`, as every Optimizer does."""
        state = values.get("state") if isinstance(values, Mapping) else None
        vectors = state.get(0, {}) if isinstance(state, Mapping) else {}
        size = sum(param.size for param in self.params)
        numbers = values.get("numbers") if isinstance(values, Mapping) else None
        if not isinstance(numbers, Mapping) or not isinstance(state, Mapping):
            raise ValueError("load_state_dict: LBFGS: not a result of state_dict")
        wrong = list(self._wrong_numbers(numbers))
        for name, tensor in vectors.items():
            if name not in ("direction", "gradient", "moves", "changes"):
                wrong.append(f"unexpected {name!r}")
            elif not isinstance(tensor, Tensor) or tensor.shape[-1:] != (size,):
                wrong.append(f"{name!r} is not a Tensor of {size} numbers for each vector")
        if wrong:
            raise ValueError(f"load_state_dict: LBFGS: {'; '.join(wrong)}")
        for name, number in numbers.items():
            setattr(self, name, number)
        arrays = {name: tensor.numpy() for name, tensor in vectors.items()}
        self._direction, self._gradient = arrays.get("direction"), arrays.get("gradient")
        pairs = zip(arrays.get("moves", ()), arrays.get("changes", ()), strict=True)
        self._history = [(move, change) for move, change in pairs]


def _largest(vector: Vector) -> float:
    return float(np.abs(vector).max(initial=0.0))
