"""Tensors filled with one value or with random numbers.

All functions take `shape` as separate ints (or one tuple), `device` (None: the default device), and
`requires_grad`, by default False. They raise TypeError or ValueError for an invalid shape or
number.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend_ndarray as nd
from .. import ops, rng
from ..autograd.shapes import as_shape
from ..autograd.tensor import Tensor, Value
from ..backend_ndarray import DeviceLike, dtype_name
from ..backend_ndarray.arguments import count, finite, not_negative, share
from ..backend_ndarray.dtypes import is_floating
from ..backend_ndarray.ndarray import as_device
from ..common.state import state
from ..common.user_code import user_line
from ..errors import TraceError
from ..sizes.dims import Expression
from ..sizes.extents import is_symbolic
from ..sizes.size_numbers import SizeNumber


def constant(
    *shape: Any,
    c: float = 1.0,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor in which every element is `c`.

    >>> ndl.init.constant(2, c=0.5).numpy().tolist()
    [0.5, 0.5]
    """
    extents = as_shape("constant", shape)
    if state.trace is not None and is_symbolic(extents):
        return ops.broadcast_to(constant(c=c, device=device, dtype=dtype), extents)
    return Tensor(nd.full(extents, c, dtype, device), requires_grad=requires_grad)


def ones(
    *shape: Any,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor in which every element is 1.

    >>> ndl.ones(2, 3).shape, ndl.ones((2, 3), dtype="int64").dtype
    ((2, 3), 'int64')
    """
    return constant(*shape, c=1, device=device, dtype=dtype, requires_grad=requires_grad)


def zeros(
    *shape: Any,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor in which every element is 0.

    >>> ndl.zeros(2, 2).numpy().tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return constant(*shape, c=0, device=device, dtype=dtype, requires_grad=requires_grad)


def ones_like(array: Tensor, **options: Any) -> Tensor:
    """Return ones with the shape, dtype and device of `array`; `options` replace its dtype and
    device. Raises TypeError unless `array` is a Tensor."""
    _check_tensor("ones_like", array)
    return ones(array.shape, **_like(array, options))


def zeros_like(array: Tensor, **options: Any) -> Tensor:
    """Return zeros with the shape, dtype and device of `array`; `options` replace its dtype and
    device. Raises TypeError unless `array` is a Tensor.

    >>> ndl.zeros_like(ndl.ones(2), dtype="int64").numpy().tolist()
    [0, 0]
    """
    _check_tensor("zeros_like", array)
    return zeros(array.shape, **_like(array, options))


def full(
    shape: Any,
    fill_value: float,
    device: DeviceLike | None = None,
    dtype: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor in which every element is `fill_value`. Without a `dtype`, a bool gives bool,
    an int int64 and a float float32.

    >>> ndl.full((2,), 7).dtype, ndl.full((2,), 7.0).dtype
    ('int64', 'float32')
    """
    chosen = dtype
    if dtype is None:
        kinds = ((bool, "bool"), (int, "int64"))
        dtype = next((name for kind, name in kinds if isinstance(fill_value, kind)), "float32")
    if isinstance(fill_value, (Expression, SizeNumber)):
        name = "int64" if isinstance(fill_value, Expression) and chosen is None else dtype
        return zeros(shape, device=device, dtype=name) + fill_value
    return constant(shape, c=fill_value, device=device, dtype=dtype, requires_grad=requires_grad)


def full_like(array: Tensor, fill_value: float, **options: Any) -> Tensor:
    """Return a tensor in which every element is `fill_value`, with the shape, dtype and device of
    `array`; `options` replace its dtype and device. Raises TypeError unless `array` is a Tensor."""
    _check_tensor("full_like", array)
    return full(array.shape, fill_value, **_like(array, options))


def empty(
    *shape: Any,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor with arbitrary elements: the previous contents of its memory. In a trace,
    they are zeros."""
    extents = as_shape("empty", shape)
    if state.trace is not None:
        return zeros(extents, device=device, dtype=dtype)
    return Tensor(nd.empty(extents, dtype, device), requires_grad=requires_grad)


def empty_like(array: Tensor, **options: Any) -> Tensor:
    """Return `empty` with the shape, dtype and device of `array`; `options` replace its dtype and
    device. Raises TypeError unless `array` is a Tensor."""
    _check_tensor("empty_like", array)
    return empty(array.shape, **_like(array, options))


def rand(
    *shape: Any,
    low: float = 0.0,
    high: float = 1.0,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return numbers drawn uniformly from [low, high). Raises TypeError for a dtype that is not
    floating.

    >>> ndl.manual_seed(0)
    >>> bool((ndl.rand(100, low=2.0, high=3.0) >= 2.0).all())
    True
    """
    _check_floating("rand", dtype)
    low, high = finite("rand", "low", low), finite("rand", "high", high)
    drawn = _drawn(as_shape("rand", shape), device, dtype)
    values = drawn if (low, high) == (0.0, 1.0) else drawn * (high - low) + low
    return _leaf(values, device, dtype, requires_grad)


def randn(
    *shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return normally distributed numbers with the mean `mean` and the standard deviation `std`,
    which must not be negative. Raises TypeError for a dtype that is not floating. The numbers are
    computed from uniform numbers (Box and Muller 1958).

    >>> ndl.randn(2, 3, std=0.1).shape
    (2, 3)
    """
    _check_floating("randn", dtype)
    mean, std = finite("randn", "mean", mean), not_negative("randn", "std", std)
    extents = as_shape("randn", shape)
    drawn = _drawn((2, *extents), device, dtype, axis=1)
    length = ops.sqrt(ops.log(1.0 - drawn[0]) * -2.0)  # 1 - u is never 0
    values = length * ops.cos(drawn[1] * (2.0 * math.pi))
    values = values if (mean, std) == (0.0, 1.0) else values * std + mean
    return _leaf(values, device, dtype, requires_grad)


def randb(
    *shape: Any,
    p: float = 0.5,
    device: DeviceLike | None = None,
    dtype: str = "bool",
    requires_grad: bool = False,
) -> Tensor:
    """Return elements that are True (1) with probability `p`, otherwise False (0)."""
    p = share("randb", "p", p)
    drawn = _drawn(as_shape("randb", shape), device, "float32")
    return _leaf(drawn < p, device, dtype, requires_grad)


def _drawn(shape: tuple[int, ...], device: DeviceLike | None, dtype: str, axis: int = 0) -> Tensor:
    """Return uniform numbers in [0, 1): float64 for the dtype float64, else float32. They are drawn
    on the host, so every device gets the same numbers. A traced function draws new numbers at each
    call. `axis` is the axis of a batch's rows, if the shape has one (see `rng.whole_batch`)."""
    trace = state.trace
    whole, part = rng.whole_batch(shape, axis) if trace is None else (shape, ())
    op = ops.RandomUniform(whole, dtype == "float64")
    if trace is not None:
        if as_device(device) is not nd.cpu() or not trace.records_writes:
            trace.refuse_random("uniform")
        if is_symbolic(shape):
            raise TraceError(
                f"tracing: {trace.here} draws random numbers of the shape {shape}, which is open: "
                f"compiled code draws a fixed count of numbers, so give no dims{user_line()}"
            )
        if rng.whole_batch(shape, axis)[0] != shape:
            raise TraceError(
                f"tracing: {trace.here} draws random numbers for some rows of a batch, whose other "
                "rows are on other ranks; compiled code cannot know which: run it eagerly"
                f"{user_line()}"
            )
        now = trace.array(rng.counter, "generator", lambda: rng.counter.array)
        drawn: Tensor = op(now)
        step = np.array([0, op.blocks], "int64")
        trace.write(now, now + Tensor(step, requires_grad=False))
        return drawn
    if rng.draws_on_the_host():
        values = rng.uniform(shape, 0.0, 1.0, axis).astype("float64" if op.wide else "float32")
        return Tensor(values, device=nd.cpu(), requires_grad=False)
    first = np.array(rng.next_blocks(op.blocks), "int64")
    numbers = op.compute(nd.array(first, device=nd.cpu()))
    return Tensor(numbers[part] if part else numbers, requires_grad=False)


def _leaf(values: Tensor, device: DeviceLike | None, dtype: Any, requires_grad: bool) -> Tensor:
    """Convert `values` on the host to `dtype` and move the result to `device`."""
    values = ops.cast(values, dtype_name(dtype)).to(as_device(device))
    if requires_grad and is_floating(values.dtype):
        return Tensor(values, requires_grad=True)
    return values


def one_hot(
    n: int,
    i: Any,
    device: DeviceLike | None = None,
    dtype: str = "float32",
    requires_grad: bool = False,
) -> Tensor:
    """Return the rows of the n x n identity matrix that the class numbers `i` select. The shape is
    i.shape + (n,).

    Raises IndexError for a number outside 0..n - 1.
    """
    n = count("one_hot", "n", n, 0)
    if not isinstance(i, Tensor):
        i = Tensor(i, device=device, requires_grad=False)
    out = ops.one_hot(i.detach(), n, dtype)
    if device is not None and device is not out.device:
        out = out.to(device)
    return Tensor(out, requires_grad=True) if requires_grad else out


def _check_floating(name: str, dtype: Any) -> None:
    if not is_floating(dtype_name(dtype)):
        raise TypeError(f"{name}: dtype is {dtype!r}, not floating point; randint draws integers")


def _check_tensor(name: str, array: Any) -> None:
    if not isinstance(array, Value):
        raise TypeError(f"{name}: array is a {type(array).__name__}, not a Tensor")


def _like(array: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    return {"device": array.device, "dtype": array.dtype, **options}
