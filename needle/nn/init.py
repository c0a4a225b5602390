"""PyTorch's initialisers, which fill a Tensor or Parameter in place and return it.

They record no gradient, and draw from needle's generator. Fans, rows, columns and filters refer to
the tensor's shape in PyTorch. A layer's Parameter knows this shape; any other Tensor is assumed to
be (out, in, ...). The weight of `nn.Linear(3, 4)` is (3, 4) in needle and (4, 3) in PyTorch, so its
fan-in is 3 and its fan-out 4. The bias of a Linear, (1, out) in needle, has no fans. The functions
of `needle.init` create new tensors instead.

All raise TypeError for an argument that is not a Tensor or not floating, and ValueError for a shape
without fans.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import init, ops
from ..autograd.tensor import Tensor, make_const, overwrite
from ..backend_ndarray.arguments import count, finite, not_negative, share
from ..backend_ndarray.dtypes import is_floating
from ..common.keywords import name_functions
from .layout import stored

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]
_LINEAR = ("linear", "sigmoid", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)))
_GAINS = {**dict.fromkeys(_LINEAR, 1.0), "tanh": 5 / 3, "relu": math.sqrt(2.0), "selu": 3 / 4}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the gain for weights before this `nonlinearity`, the name of a function in
    nn.functional; `param` is the slope of a "leaky_relu" (None: 0.01). Raises ValueError for an
    unknown name."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else finite("calculate_gain", "param", param)
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join([*_GAINS, "leaky_relu"])
        raise ValueError(f"calculate_gain: nonlinearity {nonlinearity!r} is not one of {known}")
    return _GAINS[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill `tensor` with numbers drawn uniformly from [a, b)."""
    _check("uniform_", tensor)
    low, high = finite("uniform_", "a", a), finite("uniform_", "b", b)
    return _drawn_uniform(tensor, low, high)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill `tensor` with numbers from the normal distribution with this `mean` and `std`."""
    _check("normal_", tensor)
    return _drawn_normal(tensor, mean, not_negative("normal_", "std", std))


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0
) -> Tensor:
    """Fill `tensor` with numbers from the normal distribution with this `mean` and `std`, truncated
    to [a, b]. Raises ValueError if `a` is above b."""
    _check("trunc_normal_", tensor)
    for what, value in (("mean", mean), ("a", a), ("b", b)):
        finite("trunc_normal_", what, value)
    if not_negative("trunc_normal_", "std", std) == 0 or a > b:
        raise ValueError(f"trunc_normal_: std {std} is not above 0, or a {a} is above b {b}")

    def below(x: float) -> float:
        """Return the fraction of the normal distribution below x, scaled to -1..1."""
        return math.erf((x - mean) / (std * math.sqrt(2)))

    drawn = init.rand(*tensor.shape, low=below(a), high=below(b), dtype="float64")
    values = ops.erfinv(drawn) * (std * math.sqrt(2)) + mean
    return _filled(tensor, ops.clip(values, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill `tensor` with `val`."""
    _check("constant_", tensor, floating=False)
    return _filled(tensor, make_const(np.broadcast_to(np.asarray(val), tensor.shape)))


def ones_(tensor: Tensor) -> Tensor:
    """Fill `tensor` with 1."""
    _check("ones_", tensor, floating=False)
    return constant_(tensor, 1)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill `tensor` with 0."""
    _check("zeros_", tensor, floating=False)
    return constant_(tensor, 0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill the matrix `tensor` with the identity. Raises ValueError for any other number of
    axes."""
    _check("eye_", tensor, floating=False)
    shape = _torch_shape(tensor)
    if len(shape) != 2:
        raise ValueError(f"eye_: shape {shape} is not a matrix")
    return _arranged(tensor, np.eye(*shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill `tensor`, the weight of a convolution with `groups`, so that the convolution passes as
    many input channels as possible through unchanged. Raises ValueError unless the weight has 3 to
    5 axes and groups divides the number of filters."""
    _check("dirac_", tensor)
    shape = _torch_shape(tensor)
    if len(shape) not in (3, 4, 5):
        raise ValueError(f"dirac_: shape {shape} is not the shape of a convolution's weight")
    if shape[0] % count("dirac_", "groups", groups):
        raise ValueError(f"dirac_: groups {groups} does not divide {shape[0]} filters")
    values, filters = np.zeros(shape), shape[0] // groups
    centre = tuple(n // 2 for n in shape[2:])
    for group in range(groups):
        for i in range(min(filters, shape[1])):
            place = (group * filters + i, i, *centre)
            values[place] = 1
    return _arranged(tensor, values)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill `tensor` with numbers drawn uniformly between -b and b = gain * sqrt(6 / (fan_in +
    fan_out)) (Glorot and Bengio 2010).

    >>> layer = nn.Linear(3, 3)
    >>> bool((nn.init.xavier_uniform_(layer.weight).abs() <= 1.0).all())
    True
    """
    fans = _fans("xavier_uniform_", tensor)
    bound = finite("xavier_uniform_", "gain", gain) * math.sqrt(6 / sum(fans))
    return _drawn_uniform(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill `tensor` with normally distributed numbers with std = gain * sqrt(2 / (fan_in +
    fan_out)) (Glorot and Bengio 2010)."""
    fans = _fans("xavier_normal_", tensor)
    std = not_negative("xavier_normal_", "gain", gain) * math.sqrt(2 / sum(fans))
    return _drawn_normal(tensor, 0.0, std)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill `tensor` with numbers drawn uniformly between -b and b = gain * sqrt(3 / fan) (He et al.
    2015). `mode` names the fan ("fan_in" or "fan_out"); the gain is that of `calculate_gain` for
    the `nonlinearity` with the slope `a`. Raises ValueError for any other mode."""
    bound = math.sqrt(3) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return _drawn_uniform(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Fill `tensor` with normally distributed numbers with std = gain / sqrt(fan). `a`, mode and
    nonlinearity are as in kaiming_uniform_ (He et al. 2015)."""
    std = _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity)
    return _drawn_normal(tensor, 0.0, std)


def orthogonal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill `tensor` with `gain` times a matrix with orthonormal rows or, if it has more rows than
    columns, orthonormal columns (Saxe et al. 2014). Rows are along the first axis; all other axes
    are merged into columns. Raises ValueError for fewer than two axes."""
    _check("orthogonal_", tensor)
    gain, shape = finite("orthogonal_", "gain", gain), _torch_shape(tensor)
    if len(shape) < 2:
        raise ValueError(f"orthogonal_: shape {shape} has fewer than two axes")
    if not tensor.size:
        return tensor
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = init.randn(max(rows, columns), min(rows, columns), dtype="float64").numpy()
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))  # makes all orthogonal matrices equally likely
    return _arranged(tensor, gain * (q if rows >= columns else q.T).reshape(shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01) -> Tensor:
    """Fill the matrix `tensor` with normally distributed numbers with this `std`, and set the
    fraction `sparsity` of each column to 0 (Martens 2010). Raises ValueError for any other number
    of axes."""
    _check("sparse_", tensor)
    shape = _torch_shape(tensor)
    if len(shape) != 2:
        raise ValueError(f"sparse_: shape {shape} is not a matrix")
    share("sparse_", "sparsity", sparsity)
    values = init.randn(*shape, std=not_negative("sparse_", "std", std), dtype="float64").numpy()
    for column in range(shape[1]):
        values[init.randperm(shape[0]).numpy()[: math.ceil(sparsity * shape[0])], column] = 0
    return _arranged(tensor, values)


def _check(owner: str, tensor: Any, floating: bool = True) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{owner}: tensor is a {type(tensor).__name__}, not a Tensor or Parameter")
    if floating and not is_floating(tensor.dtype):
        raise TypeError(f"{owner}: tensor is {tensor.dtype}, not floating point")


def _torch_shape(tensor: Tensor) -> tuple[int, ...]:
    return stored("", tensor).shape(tensor.shape)


def _fans(owner: str, tensor: Any) -> tuple[int, int]:
    """Return (in, out): the number of inputs per output, and the number of outputs per input."""
    _check(owner, tensor)
    shape = _torch_shape(tensor)
    if len(shape) < 2 or not tensor.size:
        here = "" if shape == tensor.shape else f" (PyTorch's shape of {tensor.shape} here)"
        raise ValueError(
            f"{owner}: shape {shape}{here} has no fans; it needs two axes or more, and elements"
        )
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def _kaiming_std(owner: str, tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    fans = dict(zip(("fan_in", "fan_out"), _fans(owner, tensor), strict=True))
    if mode not in fans:
        raise ValueError(f"{owner}: mode {mode!r} is not 'fan_in' or 'fan_out'")
    return calculate_gain(nonlinearity, finite(owner, "a", a)) / math.sqrt(fans[mode])


def _drawn_uniform(tensor: Tensor, low: float, high: float) -> Tensor:
    return _filled(tensor, init.rand(*tensor.shape, low=low, high=high, dtype="float64"))


def _drawn_normal(tensor: Tensor, mean: float, std: float) -> Tensor:
    return _filled(tensor, init.randn(*tensor.shape, mean=mean, std=std, dtype="float64"))


def _arranged(tensor: Tensor, values: np.ndarray[Any, Any]) -> Tensor:
    """Write `values`, which have PyTorch's shape, to `tensor` and return it."""
    axes = stored("", tensor).axes
    values = values if axes is None else values.transpose(np.argsort(axes))
    return _filled(tensor, make_const(values))


def _filled(tensor: Tensor, values: Tensor) -> Tensor:
    """Write `values` to the memory of `tensor` and return it."""
    overwrite(tensor, values.to(tensor.device))
    return tensor


globals().update(name_functions((name, globals()[name]) for name in __all__))
