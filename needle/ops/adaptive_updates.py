"""Steps of other optimizers related to Adam and Adagrad, as ops; see `updates`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor, TensorTuple
from ..op import register
from ._update import Functions, Update, coupled, decayed, error_samples, samples


@register
class AdamaxUpdate(Update):
    """A step of Adamax: m is the moving average of g, where g = gradient + weight_decay * p;
    largest = max(beta2 * largest, |g| + eps); p -= lr / (1 - beta1 ** (step + 1)) * m / largest."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    samples = (
        *samples(("m", "largest")),
        *samples(("m", "largest"), beta2=0.5, weight_decay=0.1, eps=0.1),
    )
    error_samples = error_samples(2)
    states = ("m", "largest")

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        return (lr / (1.0 - f.power(self.beta1, step + 1)),)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        g = decayed(g, p, self.weight_decay)
        m = state["m"] * self.beta1 + g * (1 - self.beta1)
        largest = f.maximum(state["largest"] * self.beta2, f.maximum(g, g * -1.0) + self.eps)
        return p - m / largest * scalars[0], {"m": m, "largest": largest}


@register
class NadamUpdate(Update):
    """A step of NAdam: m and v are moving averages of g and g * g, where g = gradient +
    weight_decay * p. With t = step + 1, mu(t) = beta1 * (1 - 0.96 ** (t * momentum_decay) / 2), and
    mu_product the product of mu(1) to mu(t): p -= lr * ((1 - mu(t)) / (1 - mu_product) * g +
    mu(t + 1) / (1 - mu_product * mu(t + 1)) * m) / (sqrt(v / (1 - beta2 ** t)) + eps). If
    `decoupled`, g is the gradient, and p -= lr * weight_decay * p comes first."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled: bool = False

    numbers = frozenset({"mu_product"})
    samples = (
        *samples(("m", "v", "mu_product"), numbers=("mu_product",), weight_decay=0.1),
        *samples(
            ("m", "v", "mu_product"),
            numbers=("mu_product",),
            weight_decay=0.1,
            momentum_decay=0.5,
            decoupled=True,
        ),
    )
    error_samples = error_samples(2, numbers=1)
    states = ("m", "v", "mu_product")

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        def mu(t: Any) -> Any:
            return (1.0 - f.power(0.96, t * self.momentum_decay) * 0.5) * self.beta1

        return lr, mu(step + 1), mu(step + 2), 1.0 - f.power(self.beta2, step + 1)

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        lr, mu, following, second = scalars
        p, g = coupled(self, p, g, lr)
        m = state["m"] * self.beta1 + g * (1 - self.beta1)
        v = state["v"] * self.beta2 + g * g * (1 - self.beta2)
        product = state["mu_product"] * mu
        size = f.sqrt(v / second) + self.eps
        step = g * (lr * (1.0 - mu)) / (1.0 - product)
        step = step + m * (lr * following) / (1.0 - product * following)
        return p - step / size, {"m": m, "v": v, "mu_product": product}


@register
class RadamUpdate(Update):
    """A step of RAdam: m and v are moving averages of g and g * g, where g = gradient +
    weight_decay * p. The step is Adam's times a factor r(step + 1). In the first steps, where the
    factor is not defined, p -= lr * m / (1 - beta1 ** (step + 1)). If `decoupled`, g is the
    gradient, and p -= lr * weight_decay * p comes first."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    samples = (
        *samples(("m", "v"), weight_decay=0.1),
        *samples(("m", "v"), weight_decay=0.1, decoupled=True, beta2=0.95),
        *samples(("m", "v"), beta2=0.5),
    )
    error_samples = error_samples(2)
    states = ("m", "v")

    def scalars(self, lr: Any, step: Any, f: Functions) -> tuple[Any, ...]:
        rate = lr / (1.0 - f.power(self.beta1, step + 1))
        limit = 2 / (1 - self.beta2) - 1
        if limit <= 5:
            return lr, rate, 0.0, 1.0
        power = f.power(self.beta2, step + 1)
        length = limit - (step + 1) * power * 2.0 / (1.0 - power)
        is_defined = f.above(length, 5.0)
        share = (length - 4.0) * (length - 2.0) / length * (limit / (limit - 4) / (limit - 2))
        # Where the factor is not defined, `share` may be negative; the square root is then 0.
        return lr, rate, f.sqrt(share * (1.0 - power) * is_defined), 1.0 - is_defined

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        lr, rate, adaptive, plain = scalars
        p, g = coupled(self, p, g, lr)
        m = state["m"] * self.beta1 + g * (1 - self.beta1)
        v = state["v"] * self.beta2 + g * g * (1 - self.beta2)
        step = m * rate
        # `plain` is 1 where `adaptive` is 0, so that an eps of 0 does not give 0 / 0 there.
        step = step * adaptive / (f.sqrt(v) + (plain + self.eps)) + step * plain
        return p - step, {"m": m, "v": v}


@register
class AdadeltaUpdate(Update):
    """A step of Adadelta: v = rho * v + (1 - rho) * g * g, where g = gradient + weight_decay * p;
    d = sqrt(deltas + eps) / sqrt(v + eps) * g; deltas = rho * deltas + (1 - rho) * d * d;
    p -= lr * d."""

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    samples = (
        *samples(("v", "deltas")),
        *samples(("v", "deltas"), rho=0.5, weight_decay=0.1, eps=0.1),
    )
    error_samples = error_samples(2)
    states = ("v", "deltas")

    def formula(
        self, f: Functions, p: Any, g: Any, state: Mapping[str, Any], *scalars: Any
    ) -> tuple[Any, dict[str, Any]]:
        g = decayed(g, p, self.weight_decay)
        v = state["v"] * self.rho + g * g * (1 - self.rho)
        d = f.sqrt(state["deltas"] + self.eps) / f.sqrt(v + self.eps) * g
        deltas = state["deltas"] * self.rho + d * d * (1 - self.rho)
        return p - d * scalars[0], {"v": v, "deltas": deltas}


def adamax_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Return the new parameter, the new states and step + 1 after one step of Adamax. The `inputs`
    are parameter, gradient, m, the largest gradient, lr and step. `options` are the fields of
    AdamaxUpdate."""
    return apply(AdamaxUpdate(**options), inputs)


def nadam_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Return the new parameter, the new states and step + 1 after one step of NAdam. The `inputs`
    are parameter, gradient, m, v, mu_product of shape (), lr and step. `options` are the fields of
    NadamUpdate."""
    return apply(NadamUpdate(**options), inputs)


def radam_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Return the new parameter, the new states and step + 1 after one step of RAdam. The `inputs`
    are parameter, gradient, m, v, lr and step. `options` are the fields of RadamUpdate."""
    return apply(RadamUpdate(**options), inputs)


def adadelta_update(*inputs: Tensor, **options: Any) -> TensorTuple:
    """Return the new parameter, the new states and step + 1 after one step of Adadelta. The
    `inputs` are parameter, gradient, v, the moving average of squared steps, lr and step. `options`
    are the fields of AdadeltaUpdate."""
    return apply(AdadeltaUpdate(**options), inputs)
