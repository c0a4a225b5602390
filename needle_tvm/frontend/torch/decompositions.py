"""Decompositions of PyTorch operators that TVM's front end lacks or translates wrongly."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

from needle.backend_ndarray.dtypes import HALVES
from needle.ops.tuples import WIDEST
from needle_tvm.frontend.torch.nodes import pairs


def _trilinear(
    a: Any, b: Any, c: Any, new_a: Any, new_b: Any, new_c: Any, summed: Any, unroll: int = 1
) -> Any:
    """As products of matrices: PyTorch's own decomposition holds all products before it sums."""
    import torch

    axes = range(a.dim() + len(new_a))
    names = [
        "".join(chr(ord("a") + axis) for axis in axes if axis not in left)
        for left in (new_a, new_b, new_c, summed)
    ]
    return torch.einsum(f"{names[0]},{names[1]},{names[2]}->{names[3]}", a, b, c)


def _scaled(operation: str) -> Callable[..., Any]:
    """x + alpha * y, or the like; no converter of the front end reads `alpha`."""

    def of(x: Any, y: Any, alpha: Any = 1) -> Any:
        return NotImplemented if alpha == 1 else getattr(x, operation)(y * alpha)

    return of


def _logaddexp(x: Any, y: Any) -> Any:
    apart = _where(x == y, x.new_zeros(()), -(x - y).abs())  # 0 for equal infinities
    return x.maximum(y) + apart.exp().log1p()


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compute halves in float32 and round once; integers give float32."""

    def of(x: Any, *others: Any, **options: Any) -> Any:
        if not x.is_floating_point():
            return function(x.float(), *others, **options)
        if str(x.dtype).partition(".")[2] not in HALVES:
            return function(x, *others, **options)
        wide = (each.float() if hasattr(each, "dtype") else each for each in (x, *others))
        return function(*wide, **options).to(x.dtype)

    return of


def _promoting(function: Callable[..., Any]) -> Callable[..., Any]:
    """Cast two tensors to the dtype of PyTorch's result first."""

    def of(x: Any, y: Any, *others: Any, **options: Any) -> Any:
        import torch

        common = torch.result_type(x, y)
        x, y = (each.to(common) if hasattr(each, "dtype") else each for each in (x, y))
        return function(x, y, *others, **options)

    return of


def _celu(x: Any, alpha: float = 1) -> Any:
    import torch

    return torch.ops.aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


def _elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    below = (x if input_scale == 1 else x * input_scale).expm1()
    below = below if alpha * scale == 1 else below * (alpha * scale)
    return _where(x > 0, x if scale == 1 else x * scale, below)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else x * beta
    below = scaled.exp().log1p()
    return _where(scaled > threshold, x, below if beta == 1 else below / beta)


def _avg_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_padding: bool = True,
    divisor: int | None = None,
) -> Any:
    """Average pooling with a given divisor, as the mean over windows of a padded input."""
    import torch

    if not x.is_floating_point():
        raise ValueError(f"average pooling of {x.dtype} is not taken")
    if divisor is None:
        return NotImplemented
    dims = 2 if isinstance(kernel, int) else len(kernel)
    pool = getattr(torch.nn.functional, f"avg_pool{dims}d")
    kernel, stride, padding = (pairs(each, dims) for each in (kernel, stride or kernel, padding))
    shape, around = pool(x, kernel, stride, padding, ceil).shape[-dims:], []
    for i in reversed(range(dims)):
        end = (shape[i] - 1) * stride[i] + kernel[i]
        around += [padding[i], max(end - padding[i] - x.shape[i - dims], 0)]
    padded = torch.nn.functional.pad(x, around)
    return pool(padded, kernel, stride) * (math.prod(kernel) / divisor)


def _addmv(added: Any, x: Any, vector: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = (x @ vector).mul(alpha) if alpha != 1 else x @ vector
    return product + (added if beta == 1 else added * beta) if beta else product


def _addbmm(added: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The sum of products of matrices as one product."""
    rows = x.movedim(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])
    return added.addmm(rows, y.reshape(-1, y.shape[2]), beta=beta, alpha=alpha)


def _inner(x: Any, y: Any) -> Any:
    if x.ndim == 0 or y.ndim == 0:
        return x * y
    rows = x.reshape(-1, x.shape[-1]) @ y.reshape(-1, y.shape[-1]).t()
    return rows.reshape((*x.shape[:-1], *y.shape[:-1]))


def _resized(name: str) -> Callable[..., Any]:
    """PyTorch's own decomposition, where TVM's operator would be used (`resizes.blended`) and is
    not equal: it always takes the scale from the sizes, computes positions in float32, and divides
    by 0 for one position between aligned corners."""

    def of(x: Any, size: Any, align: bool, scales: Any) -> Any:
        import torch

        extents = x.shape[2:]
        sizes = size or [int(n * scale) for n, scale in zip(extents, scales, strict=True)]
        if all(type(n) is int for n in (*extents, *sizes)) and x.is_floating_point():
            return NotImplemented
        exact = scales is None or all(
            (extent * scale).is_integer() for extent, scale in zip(extents, scales, strict=True)
        )
        alone = align and 1 in sizes
        if exact and not alone and x.dtype != torch.float64:
            return NotImplemented
        table = torch._decomp.decomposition_table
        return table[getattr(torch.ops.aten, name).vec](x, size, align, scales)

    return of


def _sign(x: Any) -> Any:
    if "bool" in str(x.dtype):
        return x.clone()
    return (x > 0).to(x) if "uint" in str(x.dtype) else NotImplemented


def _divided(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if isinstance(x, (int, float)):  # a constant, of two numbers
        return NotImplemented
    if rounding_mode == "floor":
        return x // y
    if rounding_mode is None or x.is_floating_point() or isinstance(y, float):
        return NotImplemented
    if not isinstance(y, int) and y.is_floating_point():
        return NotImplemented
    if "uint" in str(x.dtype):
        return x // y
    x = x.long() if "bool" in str(x.dtype) else x
    quotient = x.abs() // abs(y)
    return quotient * (1 - 2 * ((x < 0) ^ (y < 0)).to(quotient.dtype))


def _clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    if "bool" in str(x.dtype):
        return x.long().clamp(low, high)
    if "uint" in str(x.dtype) and isinstance(low, int) and low < 0:
        return x.clamp(0, high)
    return NotImplemented


def _clamp_between(x: Any, low: Any = None, high: Any = None) -> Any:
    """Clamp by tensors, which may have more axes than x."""
    import torch

    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


_ROOTED = ("torch.float32", "torch.float64", "torch.bfloat16")  # PyTorch takes x ** 0.5 by sqrt


def _power(x: Any, exponent: float) -> Any:
    """Powers of booleans as integers. Small whole powers are repeated multiplications, as in
    PyTorch: TVM warns of these on the terminal."""
    if "bool" in str(x.dtype):
        return x.long().pow(exponent)
    if exponent in (0.5, -0.5) and str(x.dtype) in _ROOTED:
        return x.sqrt() if exponent > 0 else x.rsqrt()  # NaN for -inf
    if exponent not in (3, 4) or not x.is_floating_point():
        return NotImplemented
    return _in_float32(lambda x: x * x * (x if exponent == 3 else x * x))(x)


def _joined(tensors: Any, dim: int = 0) -> Any:
    """Concatenate tensors of several dtypes in their common dtype, and many in groups, as
    `needle.ops.concat` does. PyTorch takes a tensor of shape (0,) beside tensors of any shape, and
    leaves it out."""
    import torch

    if len(tensors) > WIDEST:
        groups = [tensors[i : i + WIDEST] for i in range(0, len(tensors), WIDEST)]
        return torch.cat([torch.cat(group, dim) for group in groups], dim)
    dtypes = [tensor.dtype for tensor in tensors]
    some = [each for each in tensors if list(each.shape) != [0]] or tensors[:1]
    if len(set(dtypes)) == 1 and len(some) == len(tensors):
        return NotImplemented
    common = reduce(torch.promote_types, dtypes)
    some = [tensor.to(common) for tensor in some]
    return torch.cat(some, dim) if len(some) > 1 else some[0].clone()


def _never_of_integers(x: Any) -> Any:
    return NotImplemented if x.is_floating_point() else x != x


def _signbit(x: Any) -> Any:
    negative = x < 0
    return negative | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else negative


def _copysign(x: Any, y: Any) -> Any:
    return _where(_signbit(y), -x.abs(), x.abs())


def _where(condition: Any, x: Any, y: Any) -> Any:
    return y.where(~condition, x)


def _preferred(extreme: str) -> Callable[[Any, Any], Any]:
    """The larger, or the smaller, of two; if one is NaN, the other."""

    def of(x: Any, y: Any) -> Any:
        return _where(x != x, y, _where(y != y, x, getattr(x, extreme)(y)))

    return of


def _moments(spread: str) -> Callable[..., Any]:
    def of(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
        spread_of = getattr(x, spread)(dim, correction=correction, keepdim=keepdim)
        return spread_of, x.mean(dim, keepdim=keepdim)

    return of


def _of_a_number(name: str) -> Callable[..., Any]:
    """Apply an operator along an axis to a 0-d tensor, as to one element."""

    def of(x: Any, *others: Any, **options: Any) -> Any:
        import torch

        if x.ndim:
            return NotImplemented
        packet, overload = name.split(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        return operator(x.reshape(1), *others, **options).reshape(())

    return of


def _adaptive_max_pool(x: Any, size: Any) -> Any:
    """The largest element of each window and its index; `size` divides the input into windows."""
    import torch

    extents = x.shape[-len(size) :]
    windows = [
        [(i * extent // count, -(-(i + 1) * extent // count)) for i in range(count)]
        for extent, count in zip(extents, size, strict=True)
    ]
    places_of = torch.arange(math.prod(extents)).reshape(extents)
    values, places = [], []
    for bounds in product(*windows):
        window, inside = x, places_of
        for axis, (first, end) in enumerate(bounds, -len(size)):
            window, inside = (each.narrow(axis, first, end - first) for each in (window, inside))
        window = window.flatten(-len(size))
        values.append(window.amax(-1))
        places.append(inside.reshape(-1)[window.argmax(-1)])
    shape = (*x.shape[: -len(size)], *size)
    return tuple(torch.stack(each, -1).reshape(shape) for each in (values, places))


def _padded(x: Any, pad: Any, value: float = 0) -> Any:
    """Pad with a constant. Negative padding crops, possibly all of x; for bool, any value but 0 is
    True."""
    import torch

    if "bool" in str(x.dtype) and value not in (0, 1):
        return torch.nn.functional.pad(x, pad, value=1)
    if all(each >= 0 for each in pad):
        return NotImplemented
    for i, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        first, cut = max(-before, 0), max(-after, 0)
        x = x.narrow(-1 - i, first, x.shape[-1 - i] - first - cut)
    return torch.nn.functional.pad(x, [max(each, 0) for each in pad], value=value)


def _vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Only the norms of order 0 (number of nonzero elements), 2, 3 and 4."""
    import torch

    if x.ndim == 0:
        return torch.linalg.vector_norm(x.reshape(1), ord, dtype=dtype).reshape(())
    if ord not in (0, 2, 3, 4):
        return NotImplemented
    x = x if dtype is None else x.to(dtype)
    dim = [*range(x.ndim)] if dim is None else dim
    if ord > 2:  # as products, since TVM warns of such powers on the terminal
        return _in_float32(lambda x: x.abs().pow(ord).sum(dim, keepdim) ** (1 / ord))(x)
    if ord == 0:
        return (x != 0).sum(dim, keepdim).to(x.dtype)
    return _in_float32(lambda x: (x * x).sum(dim, keepdim).sqrt())(x)


def _cdist(x: Any, y: Any, p: float, mode: int | None) -> Any:
    """Distances of rows as norms of differences; `mode`, which may ask for a matmul, is ignored."""
    import torch

    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _pdist(x: Any, p: float = 2) -> Any:
    """Distances of each row and all later ones."""
    import torch

    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1).unbind()
    rows, later = (x.index_select(0, each) for each in (first, second))
    return torch.linalg.vector_norm(rows - later, p, -1)


def _dist(x: Any, y: Any, p: float = 2) -> Any:
    import torch

    return torch.linalg.vector_norm(x - y, p)


def _angle(x: Any) -> Any:
    """The angle of a real number: pi below 0."""
    if x.is_complex():
        return NotImplemented
    x = x if x.is_floating_point() else x.float()
    return _where(x != x, x, (x < 0).to(x.dtype) * math.pi)


# Decompositions by PyTorch's name of the operator.
DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "adaptive_max_pool2d.default": _adaptive_max_pool,
    "adaptive_max_pool3d.default": _adaptive_max_pool,
    "_trilinear.default": _trilinear,
    "signbit.default": _signbit,
    "copysign.Tensor": _promoting(_in_float32(_copysign)),
    **{
        f"{name}.{kind}": _promoting(_scaled(name))
        for name in ("add", "sub")
        for kind in ("Tensor", "Scalar")
    },
    "rsub.Tensor": lambda x, y, alpha=1: x * -alpha + y,
    "rsub.Scalar": lambda x, y, alpha=1: x * -alpha + y,
    "sign.default": _sign,
    "neg.default": lambda x: x * 255 if "uint8" in str(x.dtype) else NotImplemented,
    "clamp.default": _clamp,
    "clamp.Tensor": _clamp_between,
    "div.Tensor_mode": _divided,
    "div.Scalar_mode": _divided,
    "pow.Tensor_Scalar": _power,
    "upsample_bilinear2d.vec": _resized("upsample_bilinear2d"),
    "upsample_bicubic2d.vec": _resized("upsample_bicubic2d"),
    "isfinite.default": lambda x: x.abs() < math.inf if x.is_floating_point() else x == x,
    **{f"{name}.default": _never_of_integers for name in ("isnan", "isinf")},
    "logaddexp.default": _promoting(_in_float32(_logaddexp)),
    "elu.default": _in_float32(_elu),
    "softplus.default": _in_float32(_softplus),
    "avg_pool2d.default": _avg_pool,
    "avg_pool3d.default": _avg_pool,
    "leaky_relu.default": lambda x, slope=0.01: (
        _where(x > 0, x, x * 0) if slope == 0 else NotImplemented
    ),
    "addmv.default": _addmv,
    "addbmm.default": _addbmm,
    "inner.default": _inner,
    "cat.default": _joined,
    "constant_pad_nd.default": _padded,
    "linalg_vector_norm.default": _vector_norm,
    "_cdist_forward.default": _cdist,
    "_pdist_forward.default": _pdist,
    "dist.default": _dist,
    "full_like.default": lambda x, value, dtype=None, **_: x.new_full(x.shape, value, dtype=dtype),
    # LLVM has neither sinh nor cosh for vectors of float64.
    "sinh.default": _in_float32(lambda x: (x.expm1() - (-x).expm1()) * 0.5),
    "cosh.default": _in_float32(lambda x: (x.exp() + (-x).exp()) * 0.5),
    "ldexp.Tensor": lambda x, exponent: x * 2.0**exponent,
    "angle.default": _angle,
    "mish.default": _in_float32(lambda x: x * x.exp().log1p().tanh()),
    "celu.default": _celu,
    "exp2.default": lambda x: 2 ** (x if x.is_floating_point() else x.float()),
    "var_mean.correction": _moments("var"),
    "std_mean.correction": _moments("std"),
    "fmax.default": _preferred("maximum"),
    "fmin.default": _preferred("minimum"),
    **{
        name: _of_a_number(name)
        for name in (
            *("sum.dim_IntList", "mean.dim", "var.correction", "argmax.default", "argmin.default"),
            *("_softmax.default", "_log_softmax.default", "flip.default", "index_select.default"),
        )
    },
}
