"""Linear layers, activations and containers."""

from __future__ import annotations

from math import prod
from typing import Any

from .. import init, ops
from ..backend_ndarray import Device
from ..backend_ndarray.arguments import counts, fraction
from ..tensor import Tensor
from .module import Module, Parameter


class Identity(Module):
    """y = x."""

    def forward(self, x: Any) -> Any:
        return x


class Linear(Module):
    """y = x @ weight + bias over the last axis of x: (..., in_features) -> (..., out_features).

    weight (in_features, out_features) and bias (1, out_features) are drawn Kaiming-uniform.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        counts("Linear", in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(init.kaiming_uniform(in_features, out_features, **where))
        self.bias = None
        if bias:
            values = init.kaiming_uniform(out_features, 1, **where)
            self.bias = Parameter(values.reshape(1, out_features).detach())

    def forward(self, x: Tensor) -> Tensor:
        y = ops.matmul(x, self.weight)
        return y if self.bias is None else ops.add(y, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class Flatten(Module):
    """(B, ...) -> (B, product of the rest)."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        return x.reshape(shape[0], prod(shape[1:]))


class ReLU(Module):
    """max(x, 0), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(x)


class Tanh(Module):
    """tanh(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.sigmoid(x)


class GELU(Module):
    """x * (1 + erf(x / sqrt(2))) / 2, elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.gelu(x)


class SiLU(Module):
    """x * sigmoid(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class Sequential(Module):
    """Modules applied one after the other."""

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for i, module in enumerate(modules):
            _check_module("Sequential", f"modules[{i}]", module)
        self.modules = modules

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x


def _check_module(owner: str, what: str, module: Any) -> None:
    if not callable(module):
        raise TypeError(f"{owner}: {what} is a {type(module).__name__}, not a Module")


class Residual(Module):
    """y = fn(x) + x."""

    def __init__(self, fn: Module) -> None:
        super().__init__()
        _check_module("Residual", "fn", fn)
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class Dropout(Module):
    """In train mode, zero each element with probability `p` and scale the rest by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = fraction("Dropout", "p", p)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keep = init.randb(*x.shape, p=1 - self.p, device=x.device, dtype=x.dtype)
        return x * (keep / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class SoftmaxLoss(Module):
    """Mean cross entropy of logits (N, C) against class numbers (N,), which are integers or whole
    floats."""

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        rows, classes = logits.shape
        picked = logits * ops.one_hot(y, classes, logits.dtype)
        return (ops.logsumexp(logits, axes=1) - picked.sum(1)).sum() / rows
