"""Activations as modules; needle.nn.functional has them as functions.

Activations that have the argument `inplace` in PyTorch accept it. It has no effect, because results
are new tensors.
"""

from __future__ import annotations

from typing import Any

from .. import init
from ..autograd.tensor import Tensor
from ..backend_ndarray import DeviceLike
from ..backend_ndarray.arguments import count, finite, not_negative
from ..errors import ShapeError
from . import functional as F
from .module import Module
from .parameter import Parameter


class ReLU(Module):
    """max(x, 0), elementwise.

    >>> nn.ReLU()(ndl.Tensor([-1.0, 2.0])).numpy().tolist()
    [0.0, 2.0]
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class ReLU6(ReLU):
    """x clipped to [0, 6], elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu6(x)


class Tanh(Module):
    """The hyperbolic tangent tanh(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanh(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.sigmoid(x)


class GELU(Module):
    """x * (1 + erf(x / sqrt(2))) / 2, elementwise; if `approximate` is "tanh", its approximation by
    tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate {approximate!r} is not 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(ReLU):
    """x * sigmoid(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Mish(ReLU):
    """x * tanh(softplus(x)), elementwise (Misra 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.mish(x)


class SELU(ReLU):
    """1.0507 * elu(x, 1.6733), with more digits of both constants (Klambauer et al. 2017)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.selu(x)


class Hardswish(ReLU):
    """x * hardsigmoid(x), elementwise (Howard et al. 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.hardswish(x)


class Hardsigmoid(ReLU):
    """x / 6 + 1 / 2 clipped to [0, 1], elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.hardsigmoid(x)


class Softsign(Module):
    """x / (1 + |x|), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softsign(x)


class Tanhshrink(Module):
    """x - tanh(x), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.tanhshrink(x)


class LogSigmoid(Module):
    """log(sigmoid(x)), elementwise."""

    def forward(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


class LeakyReLU(Module):
    """x where it is above 0, else negative_slope * x."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope = finite("LeakyReLU", "negative_slope", negative_slope)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class PReLU(Module):
    """x where it is above 0, else weight * x. The learned weight (num_parameters,) has one element
    for all channels, or one for each channel (the second axis of x). Its initial value is `init`
    (He et al. 2015)."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: DeviceLike | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__()
        self.num_parameters = count("PReLU", "num_parameters", num_parameters)
        self.weight = Parameter(
            _constant(num_parameters, c=finite("PReLU", "init", init), device=device, dtype=dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


_constant = init.constant  # PReLU's argument init hides the module init


class ELU(Module):
    """x where it is above 0, else alpha * (exp(x) - 1) (Clevert et al. 2015)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha = finite(type(self).__name__, "alpha", alpha)

    def forward(self, x: Tensor) -> Tensor:
        return F.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class CELU(ELU):
    """x where it is above 0, else alpha * (exp(x / alpha) - 1) (Barron 2017)."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(alpha)
        if alpha == 0:
            raise ValueError("CELU: alpha is 0, but it is a divisor")

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, self.alpha)


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above `threshold`."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta = finite("Softplus", "beta", beta)
        if beta == 0:
            raise ValueError("Softplus: beta is 0, but it is a divisor")
        self.threshold = finite("Softplus", "threshold", threshold)

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"


class Hardtanh(Module):
    """x clipped to [min_val, max_val], elementwise."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val = finite("Hardtanh", "min_val", min_val)
        self.max_val = finite("Hardtanh", "max_val", max_val)
        if not min_val < max_val:
            raise ValueError(f"Hardtanh: min_val {min_val} is not below max_val {max_val}")

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class Hardshrink(Module):
    """x where |x| is above `lambd`, else 0."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = finite("Hardshrink", "lambd", lambd)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardshrink(x, self.lambd)

    def extra_repr(self) -> str:
        return f"lambd={self.lambd}"


class Softshrink(Hardshrink):
    """x moved towards 0 by `lambd`, and 0 where |x| is not above `lambd`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__(not_negative("Softshrink", "lambd", lambd))

    def forward(self, x: Tensor) -> Tensor:
        return F.softshrink(x, self.lambd)


class RReLU(Module):
    """x where it is not negative, else x times a slope. Train mode draws a slope for each element
    uniformly from [lower, upper); eval mode uses the mean of lower and upper (Xu et al. 2015)."""

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper = finite("RReLU", "lower", lower), finite("RReLU", "upper", upper)
        if lower > upper:
            raise ValueError(f"RReLU: lower {lower} is above upper {upper}")

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(x, self.lower, self.upper, self.training)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}"


class Threshold(Module):
    """x where it is above `threshold`, else `value`."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold = finite("Threshold", "threshold", threshold)
        self.value = finite("Threshold", "value", value)

    def forward(self, x: Tensor) -> Tensor:
        return F.threshold(x, self.threshold, self.value)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}"


class Softmax(Module):
    """exp(x) / sum(exp(x)) along the axis `dim`, without overflow.

    >>> nn.Softmax(dim=-1)(ndl.zeros(1, 2)).numpy().tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = _axis(type(self).__name__, dim)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class LogSoftmax(Softmax):
    """log(softmax(x)) along the axis `dim`, without overflow."""

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x, self.dim)


class Softmin(Softmax):
    """softmax(-x) along the axis `dim`."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmin(x, self.dim)


class Softmax2d(Module):
    """Softmax over the channels of x (N, channels, H, W) or (channels, H, W). Raises ShapeError for
    any other number of axes."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: x has shape {x.shape}, not (N, channels, H, W)")
        return F.softmax(x, -3)


class GLU(Softmax):
    """a * sigmoid(b), where a and b are the first and the second half of x along the axis `dim`
    (Dauphin et al. 2017). Raises ShapeError unless the axis has an even extent.

    >>> nn.GLU()(ndl.zeros(3, 8)).shape
    (3, 4)
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(x, self.dim)


def _axis(owner: str, dim: Any) -> int:
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"{owner}: dim {dim!r} is a {type(dim).__name__}, not an integer")
    return dim
