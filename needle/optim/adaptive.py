"""Optimizers that scale each step by the earlier gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import Any, ClassVar, NamedTuple

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import finite, flag, fraction, not_negative, share
from ..backend_ndarray.dtypes import finfo
from ..op import remembered
from ..ops import (
    AdadeltaUpdate,
    AdagradUpdate,
    AdamaxUpdate,
    LionUpdate,
    NadamUpdate,
    RadamUpdate,
    RmspropUpdate,
)
from .groups import pair_of
from .optimizer import Check, Optimizer, wide, write

_ADAGRAD, _RMSPROP, _LION = map(remembered, (AdagradUpdate, RmspropUpdate, LionUpdate))
_ADADELTA, _ADAMAX = map(remembered, (AdadeltaUpdate, AdamaxUpdate))
_NADAM, _RADAM = map(remembered, (NadamUpdate, RadamUpdate))


def _at_least_one(owner: str, what: str, value: Any) -> float:
    number = finite(owner, what, value)
    if number < 1:
        raise ValueError(f"{owner}: {what} {value} is not >= 1")
    return number


class Adagrad(Optimizer):
    """v += g * g, where g = grad + weight_decay * p; p -= lr' * g / (sqrt(v) + eps), where lr' = lr
    / (1 + (step - 1) * lr_decay), and v starts at initial_accumulator_value (Duchi et al. 2011).
    With `maximize`, grad is negated first."""

    checks: ClassVar[dict[str, Check]] = {
        "lr_decay": not_negative,
        "weight_decay": not_negative,
        "initial_accumulator_value": not_negative,
        "eps": not_negative,
        "maximize": flag,
    }
    _states = ("v",)
    _reads_steps = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )

    def _first(self, name: str, options: Any) -> float:
        return float(options.initial_accumulator_value)

    def _rule(self, options: Any) -> Any:
        return _ADAGRAD(options.lr_decay, options.weight_decay, options.eps)


class RMSprop(Optimizer):
    """v = alpha * v + (1 - alpha) * g * g, where g = grad + weight_decay * p; d = g / (sqrt(v) +
    eps); p -= lr * d (Tieleman and Hinton 2012). With momentum, the last step is instead
    u = momentum * u + d; p -= lr * u.

    If `centered`, the square of the moving average of g is subtracted from v (Graves 2013). With
    `maximize`, grad is negated first.
    """

    checks: ClassVar[dict[str, Check]] = {
        "alpha": fraction,
        "eps": not_negative,
        "weight_decay": not_negative,
        "momentum": fraction,
        "centered": flag,
        "maximize": flag,
    }
    _states = ("v", "u", "average")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )

    def _rule(self, options: Any) -> Any:
        o = options
        return _RMSPROP(o.alpha, o.eps, o.weight_decay, o.momentum, o.centered)


class Lion(Optimizer):
    """p -= lr * (sign(beta1 * m + (1 - beta1) * grad) + weight_decay * p);
    m = beta2 * m + (1 - beta2) * grad (Chen et al. 2023). `betas` is (beta1, beta2)."""

    checks: ClassVar[dict[str, Check]] = {
        "beta1": fraction,
        "beta2": fraction,
        "weight_decay": not_negative,
    }
    _states = ("m",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        beta1, beta2 = pair_of("Lion", betas)
        super().__init__(params, lr, beta1=beta1, beta2=beta2, weight_decay=weight_decay)

    def _rule(self, options: Any) -> Any:
        return _LION(options.beta1, options.beta2, options.weight_decay)


class Adadelta(Optimizer):
    """v = rho * v + (1 - rho) * g * g, where g = grad + weight_decay * p; d = sqrt(deltas + eps) /
    sqrt(v + eps) * g; deltas = rho * deltas + (1 - rho) * d * d; p -= lr * d (Zeiler 2012). With
    `maximize`, grad is negated first."""

    checks: ClassVar[dict[str, Check]] = {
        "rho": share,
        "eps": not_negative,
        "weight_decay": not_negative,
        "maximize": flag,
    }
    _states = ("v", "deltas")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def _rule(self, options: Any) -> Any:
        return _ADADELTA(options.rho, options.eps, options.weight_decay)


class _OfAdam(Optimizer):
    """Base of Adam's variants, with their common options."""

    checks: ClassVar[dict[str, Check]] = {
        "beta1": fraction,
        "beta2": fraction,
        "eps": not_negative,
        "weight_decay": not_negative,
        "maximize": flag,
    }
    _states: ClassVar[tuple[str, ...]] = ("m", "v")
    _reads_steps = True

    def __init__(self, params: Iterable[Any], lr: float, betas: Any, **options: Any) -> None:
        beta1, beta2 = pair_of(type(self).__name__, betas)
        super().__init__(params, lr, beta1=beta1, beta2=beta2, **options)


class Adamax(_OfAdam):
    """m = moving average of g, where g = grad + weight_decay * p; largest = max(beta2 * largest,
    |g| + eps); p -= lr / (1 - beta1 ** step) * m / largest (Kingma and Ba 2014). `betas` is (beta1,
    beta2). With `maximize`, grad is negated first."""

    _states = ("m", "largest")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps=eps, weight_decay=weight_decay, maximize=maximize)

    def _rule(self, options: Any) -> Any:
        return _ADAMAX(options.beta1, options.beta2, options.eps, options.weight_decay)


class NAdam(_OfAdam):
    """Adam with Nesterov momentum. The momentum coefficient of step t is mu(t) = beta1 * (1 -
    0.96 ** (t * momentum_decay) / 2) (Dozat 2016); `ops.NadamUpdate` has the formula. `betas` is
    (beta1, beta2); `eps` is added to the root of the second moments.

    With `decoupled_weight_decay`, p -= lr * weight_decay * p before each step, and nothing is added
    to grad. With `maximize`, grad is negated first.
    """

    checks: ClassVar[dict[str, Check]] = {
        **_OfAdam.checks,
        "momentum_decay": not_negative,
        "decoupled_weight_decay": flag,
    }
    _states = ("m", "v", "mu_product")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps=eps,
            weight_decay=weight_decay,
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )

    def _state_shape(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        return () if name == "mu_product" else param.shape

    def _first(self, name: str, options: Any) -> float:
        return 1.0 if name == "mu_product" else 0.0

    def _rule(self, options: Any) -> Any:
        o, decoupled = options, options.decoupled_weight_decay
        return _NADAM(o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum_decay, decoupled)


class RAdam(_OfAdam):
    """Adam with rectified steps. In the first steps the variance of 1 / sqrt(v) is not defined, and
    p -= lr * m / (1 - beta1 ** step). Later steps are Adam's steps, multiplied by the square root
    of a ratio: the least variance of 1 / sqrt(v) over its variance at this step (Liu et al. 2020).
    `betas` is (beta1, beta2); `eps` is added to sqrt(v).

    With `decoupled_weight_decay`, p -= lr * weight_decay * p before each step, and nothing is added
    to grad. With `maximize`, grad is negated first.
    """

    checks: ClassVar[dict[str, Check]] = {**_OfAdam.checks, "decoupled_weight_decay": flag}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )

    def _rule(self, options: Any) -> Any:
        o = options
        return _RADAM(o.beta1, o.beta2, o.eps, o.weight_decay, o.decoupled_weight_decay)


class Adafactor(Optimizer):
    """Adam without momentum that keeps the second moments as one number for each row and column of
    the last two axes (Shazeer and Stern 2018), as in PyTorch.

    With decay b = step ** beta2_decay: v = (1 - b) * v + b * g * g (for a matrix, only the row
    means and column means are kept); d' = g / sqrt(v); p -= lr * weight_decay * p; p -= lr' * d' /
    max(1, rms(d') / d), where d >= 1 and lr' = max(eps2, rms(p)) * min(lr, 1 / sqrt(step)).
    `eps` is (eps1, eps2). eps1 is a lower bound for the mean of the row means, and eps1 ** 2 for v;
    None means the machine epsilon. With `maximize`, grad is negated first.
    """

    checks: ClassVar[dict[str, Check]] = {
        "beta2_decay": finite,
        "eps2": not_negative,
        "d": _at_least_one,
        "weight_decay": not_negative,
        "maximize": flag,
    }
    _states = ("v", "rows", "columns")
    _reads_steps = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if not isinstance(eps, (tuple, list)) or len(eps) != 2:
            raise TypeError(f"Adafactor: eps {eps!r} is not a pair (eps1, eps2)")
        if finite("Adafactor", "beta2_decay", beta2_decay) > 0:
            raise ValueError(f"Adafactor: beta2_decay {beta2_decay} is not <= 0")
        self.eps1 = None if eps[0] is None else not_negative("Adafactor", "eps1", eps[0])
        super().__init__(
            params,
            lr,
            beta2_decay=beta2_decay,
            eps2=eps[1],
            d=d,
            weight_decay=weight_decay,
            maximize=maximize,
        )

    def _state_shape(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        shape = param.shape
        if len(shape) < 2:
            return shape if name == "v" else None
        shapes = {"rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1])}
        return shapes.get(name)

    def _rule(self, options: Any) -> Any:
        o = options
        return _AdafactorStep(self.eps1, o.beta2_decay, o.eps2, o.d, o.weight_decay)


class _AdafactorStep(NamedTuple):
    """The step of one parameter, with the interface of `ops.Update`."""

    eps1: float | None
    beta2_decay: float
    eps2: float
    d: float
    weight_decay: float

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state's arrays: v for a vector or number, else rows and columns."""
        return "v", "rows", "columns"

    def update(
        self, param: NDArray, grad: NDArray, state: Mapping[str, NDArray], lr: float, step: int
    ) -> None:
        """Take the step in place."""
        p, g, step = wide(param), wide(grad), step + 1
        least = float(finfo(p.dtype).eps) if self.eps1 is None else self.eps1
        part = float(step) ** self.beta2_decay
        rate = _larger(self.eps2, _rms(p)) * min(lr, 1 / sqrt(step))
        square = g * g
        if param.ndim > 1:
            rows, columns = state["rows"], state["columns"]
            _move(rows, square.mean(-1, keepdims=True), part)
            _move(columns, square.mean(-2, keepdims=True), part)
            variance = rows * columns / rows.mean(-2, keepdims=True).maximum(least)
        else:
            variance = state["v"]
            _move(variance, square, part)
        change = variance.maximum(least * least).rsqrt() * g
        scale = rate / _larger(1.0, _rms(change) / self.d)
        write(param, p * (1 - lr * self.weight_decay) - change * scale)


def _larger(a: float, b: float) -> float:
    """Return the larger of two numbers, or NaN if b is NaN (the result of `max` would depend on the
    order)."""
    return b if b != b else max(a, b)


def _move(average: NDArray, value: NDArray, share: float) -> None:
    """Do average += share * (value - average), in place."""
    write(average, average + (value - average) * share)


def _rms(x: NDArray) -> float:
    return sqrt(float((x * x).mean())) if x.size else 0.0
