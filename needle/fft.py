"""Discrete Fourier transforms, with gradients of any order.

needle has no complex dtype. A complex tensor of shape (...) is a float tensor of shape (..., 2),
whose last axis holds the real and the imaginary part, as in tinygrad and early versions of PyTorch.
`from_complex` and `to_complex` convert from and to NumPy's complex arrays; `from_real` makes a
complex tensor from a real one. An `axis` does not count the axis of these parts: -1 is the axis
before it.

NumPy (pocketfft) computes the transforms on the host, so they run only in eager code. In a trace
they raise an error.
"""

from __future__ import annotations

import dataclasses
import math
from operator import index as as_int
from typing import Any

import numpy as np

from .autograd.shapes import Shape, normalize_axis
from .autograd.tensor import Tensor, make_const
from .backend_ndarray import DeviceLike, array, full
from .backend_ndarray.dtypes import FLOAT_OF_INTEGER, is_floating
from .common.keywords import name_functions
from .errors import ShapeError
from .ops import broadcast_to, pad, reshape, stack
from .ops import slice as get_slice
from .ops._arguments import check_tensors
from .ops._numpy_op import Array, NumpyOp, as_floats, in_dtype

__all__ = ["fft", "from_complex", "from_real", "ifft", "irfft", "rfft", "to_complex"]

_NORMS = ("backward", "ortho", "forward")


@dataclasses.dataclass(frozen=True, eq=False)
class FftOp(NumpyOp):
    """y[k] = sum over t of x[t] * exp(-2 pi i k t / n) along `axis`."""

    axis: int

    name = "fft.fft"
    arity = 1

    def values(self, x: Array) -> Array:
        return _parts(np.fft.fft(_complex(x), axis=self.axis))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return IfftOp(self.axis)(out_grad)


@dataclasses.dataclass(frozen=True, eq=False)
class IfftOp(NumpyOp):
    """FftOp with a positive exponent. The result is not divided by n, so the two ops are transposes
    of each other."""

    axis: int

    name = "fft.ifft"
    arity = 1

    def values(self, x: Array) -> Array:
        return _parts(np.fft.ifft(_complex(x), axis=self.axis, norm="forward"))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        return FftOp(self.axis)(out_grad)


@dataclasses.dataclass(frozen=True, eq=False)
class RfftOp(NumpyOp):
    """The first n // 2 + 1 elements of the transform of n real numbers along `axis`."""

    axis: int

    name = "fft.rfft"
    arity = 1

    def values(self, x: Array) -> Array:
        return _parts(np.fft.rfft(x, axis=self.axis))

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        n = node.inputs[0].shape[self.axis]
        return IrfftOp(self.axis, n)(out_grad / _occurrences(out_grad, self.axis, n))


@dataclasses.dataclass(frozen=True, eq=False)
class IrfftOp(NumpyOp):
    """n times the n real numbers whose transform along `axis` begins with x."""

    axis: int
    n: int

    name = "fft.irfft"
    arity = 1

    def values(self, x: Array) -> Array:
        return np.fft.irfft(_complex(x), self.n, axis=self.axis, norm="forward")

    def gradient(self, out_grad: Tensor, node: Tensor) -> Tensor:
        half = RfftOp(self.axis)(out_grad)
        return half * _occurrences(half, self.axis, self.n)


def fft(a: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return y[k] = sum over t of a[t] * exp(-2 pi i k t / n) along `axis`, for complex a (..., 2).
    y has as many axes as `a` (see `needle.fft`). `a` is cut or padded with zeros to `n` elements
    (None: its extent). With `norm` "backward" the result is not divided; "forward" divides it by n,
    and "ortho" by the square root of n.

    Integers give float64; half precision is computed in float32. Raises ShapeError if the extent of
    the last axis is not 2 or n is below 1, ValueError for any other norm, and TraceError while
    tracing.

    >>> x = ndl.fft.from_real(ndl.Tensor([1.0, 2.0, 3.0, 4.0]))
    >>> ndl.fft.fft(x).numpy().tolist()
    [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0], [-2.0, -2.0]]
    """
    return _transformed("fft.fft", a, n, axis, norm, inverse=False)


def ifft(a: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse of `fft`: y[t] = sum over k of a[k] * exp(2 pi i k t / n) / n along
    `axis`, for complex a (..., 2). With `norm` "backward" the result is divided by n, with "ortho"
    by the square root of n; with "forward" it is not divided. Otherwise, this function is like
    `fft`.

    >>> x = ndl.fft.from_real(ndl.Tensor([1.0, 0.0]))
    >>> ndl.fft.ifft(x).numpy().tolist()
    [[0.5, 0.0], [0.5, 0.0]]
    """
    return _transformed("fft.ifft", a, n, axis, norm, inverse=True)


def rfft(a: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the first n // 2 + 1 elements along `axis` of the `fft` of real numbers `a` (..., n,
    ...). The result is complex. The elements left out are conjugates of the returned ones.
    Otherwise, this function is like `fft`.

    >>> ndl.fft.rfft(ndl.Tensor([1.0, 2.0, 3.0, 4.0])).numpy().tolist()
    [[10.0, 0.0], [-2.0, 2.0], [-2.0, 0.0]]
    """
    name = "fft.rfft"
    (x,), dtype = as_floats(name, a)
    at = normalize_axis(name, as_int(axis), x.ndim)
    size = _size(name, x.shape[at] if n is None else n)
    out = RfftOp(at)(_resized(x, at, size))
    return in_dtype(_scaled(name, out, size, norm, inverse=False), dtype)


def irfft(a: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Return the inverse of `rfft`: the `n` real numbers (None: 2 * (m - 1)) whose transform begins
    with the m complex elements of `a` (..., 2) along `axis`. Only the first n // 2 + 1 elements are
    read. The imaginary part of the first element counts as 0, and so does the last element's if n
    is even. Otherwise, this function is like `ifft`.

    >>> ndl.fft.irfft(ndl.fft.rfft(ndl.Tensor([1.0, 2.0, 3.0, 4.0]))).numpy().tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    name = "fft.irfft"
    (x,), dtype = as_floats(name, a)
    at = _complex_axis(name, x, axis)
    size = _size(name, 2 * (x.shape[at] - 1) if n is None else n)
    out = IrfftOp(at, size)(_resized(x, at, size // 2 + 1))
    return in_dtype(_scaled(name, out, size, norm, inverse=True), dtype)


def from_real(a: Tensor) -> Tensor:
    """Return the complex tensor (..., 2) whose real part is `a` (...) and whose imaginary part is
    0."""
    check_tensors("fft.from_real", a=a)
    x = a if is_floating(a.dtype) else in_dtype(a, FLOAT_OF_INTEGER)
    nothing = broadcast_to(make_const(full((), 0, x.dtype, x.device)), x.shape)
    return stack([x, nothing], -1)


def from_complex(
    values: Any, device: DeviceLike | None = None, requires_grad: bool = False
) -> Tensor:
    """Convert a NumPy array `values` (...) of complex or real numbers to a complex tensor (..., 2).
    It is float32 for complex64, float32 and float16, else float64. device and requires_grad are as
    in Tensor.

    >>> ndl.fft.from_complex(np.array([1 + 2j])).numpy().tolist()
    [[1.0, 2.0]]
    """
    given = np.asarray(values)
    wide = np.complex64 if given.dtype in (np.complex64, np.float32, np.float16) else np.complex128
    parts = array(_parts(given.astype(wide)), device=device)
    return Tensor(parts, requires_grad=requires_grad)


def to_complex(a: Tensor) -> Array:
    """Return a complex tensor `a` (..., 2) as a NumPy array (...) of complex numbers: complex64 for
    float32 and half precision, else complex128."""
    (x,), _ = as_floats("fft.to_complex", a)
    _complex_axis("fft.to_complex", x, None)
    return _complex(x.numpy())


def _transformed(
    name: str, a: Tensor, n: int | None, axis: int, norm: str, inverse: bool
) -> Tensor:
    (x,), dtype = as_floats(name, a)
    at = _complex_axis(name, x, axis)
    size = _size(name, x.shape[at] if n is None else n)
    op = IfftOp(at) if inverse else FftOp(at)
    out = op(_resized(x, at, size))
    return in_dtype(_scaled(name, out, size, norm, inverse), dtype)


def _complex_axis(name: str, a: Tensor, axis: int | None) -> int:
    """Return `axis`, counted from the front. Raises ShapeError unless the extent of a's last axis
    is 2."""
    if not a.ndim or a.shape[-1] != 2:
        raise ShapeError(
            f"{name}: shape {a.shape} does not hold complex numbers: the last axis must have "
            "extent 2, for the real and the imaginary part; for real numbers use rfft, or convert "
            "them with fft.from_real"
        )
    return 0 if axis is None else normalize_axis(name, as_int(axis), a.ndim - 1)


def _size(name: str, n: Any) -> int:
    size = as_int(n)
    if size < 1:
        raise ShapeError(f"{name}: n is {size}; a transform needs at least 1 element")
    return size


def _resized(a: Tensor, axis: int, n: int) -> Tensor:
    """Return `a` cut or padded with zeros to n elements along `axis`."""
    before = a.shape[axis]
    if n < before:
        return get_slice(a, (*[slice(None)] * axis, slice(n)))
    if n > before:
        return pad(a, [(0, n - before if i == axis else 0) for i in range(a.ndim)])
    return a


def _scaled(name: str, out: Tensor, n: int, norm: str, inverse: bool) -> Tensor:
    if norm not in _NORMS:
        raise ValueError(f"{name}: norm {norm!r} is not one of {', '.join(_NORMS)}")
    if norm == "ortho":
        return out / math.sqrt(n)
    return out / n if (norm == "forward") is not inverse else out


def _occurrences(half: Tensor, axis: int, n: int) -> Tensor:
    """Return how often each element of `half`, the first half of a transform of n real numbers,
    counts in the whole transform. The first and, if n is even, the last element count once. The
    others count twice, because the whole transform also contains their conjugates."""
    times = np.full(n // 2 + 1, 2, half.dtype)
    times[0] = 1
    if n % 2 == 0:
        times[-1] = 1
    shape: Shape = tuple(n // 2 + 1 if i == axis else 1 for i in range(half.ndim))
    return reshape(make_const(times, half.device), shape)


def _complex(x: Array) -> Array:
    """Convert parts (..., 2) to complex numbers (...)."""
    kind = np.complex64 if x.dtype == np.float32 else np.complex128
    return np.ascontiguousarray(x).view(kind)[..., 0]


def _parts(z: Array) -> Array:
    """Convert complex numbers (...) to parts (..., 2)."""
    return np.stack([z.real, z.imag], -1)


globals().update(name_functions((name, globals()[name]) for name in __all__))
