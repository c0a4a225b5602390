"""Optimizer steps as ops. Each computes the new parameter and state from the old ones and the
gradient. `needle.optim` takes the same steps in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import NDArray
from ..op import register
from ._update import Functions, Update, coupled, decayed, error_samples, samples


@register
class SgdUpdate(Update):
    """A step of SGD: g = gradient + weight_decay * p; u = momentum * u + (1 - dampening) * g;
    p -= lr * u. If momentum is 0, there is no u, and g takes its place. The first g is not dampened
    unless `dampens_first`. With `nesterov`, p -= lr * (g + momentum * u)."""

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    dampens_first: bool = False

    samples = (
        *samples((), weight_decay=0.1),
        *samples(("u",), momentum=0.9, dampening=0.3),
        *samples(("u",), momentum=0.9, dampening=0.9, dampens_first=True),
        *samples(("u",), momentum=0.9, weight_decay=0.1, nesterov=True),
    )
    error_samples = error_samples(0)

    @property
    def states(self) -> tuple[str, ...]:
        return ("u",) if self.momentum else ()

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        kept = 1.0 - self.dampening
        return lr, kept if self.dampens_first else kept + (1.0 - f.above(step, 0)) * self.dampening

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        lr, kept = scalars
        g = decayed(g, p, self.weight_decay)
        if not self.momentum:
            return p - g * lr, {}
        u = state["u"] * self.momentum + g * kept
        return p - (g + u * self.momentum if self.nesterov else u) * lr, {"u": u}

    def update(
        self, param: NDArray, grad: NDArray, state: Mapping[str, NDArray], lr: float, step: int
    ) -> None:
        if self.nesterov:
            super().update(param, grad, state, lr, step)
            return
        is_whole = step == 0 and not self.dampens_first
        velocity = state["u"].view if self.momentum else None
        param.device.kernels.sgd_step(
            param.view,
            grad.view,
            velocity,
            lr,
            self.momentum,
            0.0 if is_whole else self.dampening,
            self.weight_decay,
        )


@register
class AdamUpdate(Update):
    """A step of Adam: m and v are moving averages of g and g * g, where g = gradient +
    weight_decay * p; p -= lr * m' / (sqrt(v') + eps). With `bias_correction`, m' and v' are m and v
    divided by 1 - beta ** (step + 1). If `decoupled`, g is the gradient, and p -= lr * weight_decay
    * p comes first. With `amsgrad`, v_max, the largest v so far, replaces v in the step."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    bias_correction: bool = True
    amsgrad: bool = False
    decoupled: bool = False

    samples = (
        *samples(("m", "v"), weight_decay=0.1),
        *samples(("m", "v"), weight_decay=0.1, bias_correction=False, decoupled=True),
        *samples(("m", "v", "v_max"), amsgrad=True, weight_decay=0.1),
        *samples(("m", "v", "v_max"), amsgrad=True, weight_decay=0.1, decoupled=True),
    )
    error_samples = error_samples(2)

    @property
    def states(self) -> tuple[str, ...]:
        return ("m", "v", "v_max") if self.amsgrad else ("m", "v")

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        if not self.bias_correction:
            return lr, 1.0, 1.0
        return lr, 1.0 - f.power(self.beta1, step + 1), 1.0 - f.power(self.beta2, step + 1)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        lr, first, second = scalars
        p, g = coupled(self, p, g, lr)
        m = state["m"] * self.beta1 + g * (1 - self.beta1)
        kept = {"m": m, "v": state["v"] * self.beta2 + g * g * (1 - self.beta2)}
        if self.amsgrad:
            kept["v_max"] = f.maximum(state["v_max"], kept["v"])
        size = f.sqrt(kept["v_max" if self.amsgrad else "v"] / second) + self.eps
        return p - m / first / size * lr, kept

    def update(
        self, param: NDArray, grad: NDArray, state: Mapping[str, NDArray], lr: float, step: int
    ) -> None:
        if self.amsgrad:
            super().update(param, grad, state, lr, step)
            return
        corrects = self.bias_correction
        param.device.kernels.adam_step(
            param.view,
            grad.view,
            state["m"].view,
            state["v"].view,
            lr,
            self.beta1,
            self.beta2,
            self.eps,
            self.weight_decay,
            1.0 - self.beta1 ** (step + 1) if corrects else 1.0,
            1.0 - self.beta2 ** (step + 1) if corrects else 1.0,
            self.decoupled,
        )


@register
class AdagradUpdate(Update):
    """A step of Adagrad: v += g * g, where g = gradient + weight_decay * p;
    p -= lr' * g / (sqrt(v) + eps), where lr' = lr / (1 + step * lr_decay)."""

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10

    samples = (*samples(("v",)), *samples(("v",), lr_decay=0.1, weight_decay=0.1))
    error_samples = error_samples(1)
    states = ("v",)

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        return (lr / (step * self.lr_decay + 1.0),)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        g = decayed(g, p, self.weight_decay)
        v = state["v"] + g * g
        return p - g / (f.sqrt(v) + self.eps) * scalars[0], {"v": v}


@register
class RmspropUpdate(Update):
    """A step of RMSprop: v = alpha * v + (1 - alpha) * g * g, where g = gradient + weight_decay *
    p; d = g / (sqrt(v) + eps); p -= lr * d. With momentum, u = momentum * u + d; p -= lr * u. If
    `centered`, the v in d is replaced by v - a * a, where a is the moving average of g."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    samples = (
        *samples(("v",), weight_decay=0.1),
        *samples(("v", "u"), momentum=0.8, alpha=0.9),
        *samples(("v", "average"), centered=True, alpha=0.3),
    )
    error_samples = error_samples(1)

    @property
    def states(self) -> tuple[str, ...]:
        more = (("u", self.momentum), ("average", self.centered))
        return ("v", *(name for name, is_kept in more if is_kept))

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        g = decayed(g, p, self.weight_decay)
        v = state["v"] * self.alpha + g * g * (1 - self.alpha)
        kept, variance = {"v": v}, v
        if self.centered:
            average = state["average"] * self.alpha + g * (1 - self.alpha)
            kept["average"], variance = average, v - average * average
        d = g / (f.sqrt(variance) + self.eps)
        if self.momentum:
            d = kept["u"] = state["u"] * self.momentum + d
        return p - d * scalars[0], kept


@register
class LionUpdate(Update):
    """A step of Lion: p -= lr * (sign(beta1 * m + (1 - beta1) * gradient) + weight_decay * p);
    m = beta2 * m + (1 - beta2) * gradient."""

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0

    samples = (*samples(("m",)), *samples(("m",), beta1=0.5, weight_decay=0.1))
    error_samples = error_samples(1)
    states = ("m",)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        direction = f.sign(state["m"] * self.beta1 + g * (1 - self.beta1))
        m = state["m"] * self.beta2 + g * (1 - self.beta2)
        return p - decayed(direction, p, self.weight_decay) * scalars[0], {"m": m}


def sgd_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Take one step of SGD; return the new parameter and the incremented step. `inputs` are
    parameter, gradient, lr and step. With momentum there is also u, the running sum of gradients:
    it precedes lr in the inputs, and the new u precedes the step in the result. `options` are the
    fields of SgdUpdate. lr is a float of shape (), step an int64 of shape ().

    Raises TypeError for other dtypes or another number of inputs, ShapeError for other shapes.

    >>> p, g = ndl.ones(2), ndl.ones(2)
    >>> new, step = ndl.ops.sgd_update(p, g, ndl.Tensor(0.5), ndl.Tensor(0, dtype="int64"))
    >>> new.tolist(), step.item()
    ([0.5, 0.5], 1)
    """
    return apply(SgdUpdate(**options), inputs)


def adam_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Take one step of Adam, or of AdamW if `decoupled`; return the new parameter, the new states
    and the incremented step. The `inputs` are parameter, gradient, m, v, lr and step; with
    `amsgrad`, v_max follows v. `options` are the fields of AdamUpdate."""
    return apply(AdamUpdate(**options), inputs)


def adagrad_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Take one step of Adagrad; return the new parameter, the new v and the incremented step. The
    `inputs` are parameter, gradient, v (the sum of squared gradients), lr and step. `options` are
    the fields of AdagradUpdate."""
    return apply(AdagradUpdate(**options), inputs)


def rmsprop_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Take one step of RMSprop; return the new parameter, the new states and the incremented step.
    The `inputs` are parameter, gradient, v, lr and step; v is followed by u if there is `momentum`,
    and then by the average if `centered`. `options` are the fields of RmspropUpdate."""
    return apply(RmspropUpdate(**options), inputs)


def lion_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Take one step of Lion; return the new parameter, the new m and the incremented step. The
    `inputs` are parameter, gradient, m, lr and step. `options` are the fields of LionUpdate."""
    return apply(LionUpdate(**options), inputs)
