"""Further activations: gated linear units, shrinkage, random slopes, and samples of a softmax."""

from __future__ import annotations

from ... import init, ops
from ...autograd.shapes import normalize_axis
from ...autograd.tensor import Tensor
from ...backend_ndarray.arguments import finite, not_negative
from ...errors import ShapeError
from ...ops._arguments import check_tensors
from .basic import softmax


def glu(x: Tensor, dim: int = -1) -> Tensor:
    """Return a * sigmoid(b), where a and b are the first and the second half of x along the axis
    `dim` (Dauphin et al. 2017). Raises ShapeError unless the axis has an even extent."""
    check_tensors("glu", x=x)
    if not x.ndim or x.shape[normalize_axis("glu", dim, x.ndim)] % 2:
        raise ShapeError(f"glu: axis {dim} of shape {x.shape} must have an even extent")
    first, second = ops.chunk(x, 2, dim)
    return first * ops.sigmoid(second)


def softmin(x: Tensor, dim: int = -1) -> Tensor:
    """Return softmax(-x) along the axis `dim`."""
    return softmax(-x, dim)


def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x where |x| is above `lambd`, else 0."""
    lambd = finite("hardshrink", "lambd", lambd)
    return ops.where(ops.abs(x) <= lambd, 0, x)


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """Return x moved towards 0 by `lambd`, and 0 where |x| is not above lambd. Raises ValueError
    for a negative lambd."""
    lambd = not_negative("softshrink", "lambd", lambd)
    return ops.where(ops.abs(x) <= lambd, 0, x - ops.sign(x) * lambd)


def rrelu(x: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """Return x where it is not negative, else x times a slope. If `training`, the slope of each
    element is drawn uniformly from [lower, upper); otherwise it is the mean of lower and upper (Xu
    et al. 2015). Raises ValueError if `lower` is above `upper`."""
    lower, upper = finite("rrelu", "lower", lower), finite("rrelu", "upper", upper)
    if lower > upper:
        raise ValueError(f"rrelu: lower {lower} is above upper {upper}")
    if not training:
        return ops.where(x >= 0, x, x * ((lower + upper) / 2))
    slope = init.rand_like(x, low=lower, high=upper)
    return ops.where(x >= 0, x, x * slope)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """Return a sample of the Gumbel-softmax distribution with temperature `tau` along the axis
    `dim` of `logits` (Jang et al. 2017). With `hard`, the sample is one-hot but has the gradient of
    the soft sample. Raises ValueError unless tau is above 0."""
    if not finite("gumbel_softmax", "tau", tau) > 0:
        raise ValueError(f"gumbel_softmax: tau {tau} is not above 0")
    drawn = init.rand_like(logits, dtype="float64")
    noise = ops.cast(-ops.log(-ops.log(drawn)), logits.dtype)
    soft = softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    chosen = ops.one_hot(ops.argmax(soft, dim), soft.shape[dim], soft.dtype)
    return ops.moveaxis(chosen, -1, dim) - soft.detach() + soft
