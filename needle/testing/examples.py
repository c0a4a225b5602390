"""Values for the samples of ops, and conversion between NumPy and Tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, TensorTuple
from ..backend_ndarray import Device, NDArray
from ..backend_ndarray.dtypes import astype, compute_dtype, is_floating
from ..op.samples import Sample
from ..ops import make_tuple

Array = np.ndarray[Any, Any]

# Drawing inputs


def draw(arg: Any, dtype: str, rng: np.random.Generator) -> Any:
    if isinstance(arg, list):
        return tuple(draw(item, dtype, rng) for item in arg)
    name = arg.dtype or dtype
    values = rng.uniform(arg.low, arg.high, arg.shape)
    if name == "bool":
        return np.asarray(values >= (arg.low + arg.high) / 2)
    if is_floating(name):
        return np.asarray(values).astype(name)
    whole = np.floor(values)
    return np.asarray(np.abs(whole) if np.dtype(name).kind == "u" else whole).astype(name)


def special(sample: Sample) -> bool:
    return all(
        all(a.special for a in arg) if isinstance(arg, list) else arg.special
        for arg in sample.inputs
    )


def with_specials(value: Any, pattern: int) -> Any:
    """Return a copy of floats with NaN, infinities and zeros of both signs at positions that depend
    on `pattern`."""
    if isinstance(value, tuple):
        return tuple(with_specials(v, pattern) for v in value)
    out = value.copy()
    if is_floating(out.dtype.name) and out.size:
        numbers = [np.nan, np.inf, -np.inf, -0.0, 0.0]
        flat = out.reshape(-1)
        for i, number in enumerate(numbers[pattern:] + numbers[:pattern]):
            flat[(i * 7 + pattern) % out.size] = number
    return out


def with_extremes(value: Any, arg: Any, shift: int) -> Any:
    """Return an integer array that repeats the least and largest value of its dtype, 0, -1 and 1.

    `shift` rotates the five numbers, so that two operands can meet in every pairing. Arrays of
    other dtypes stay as they are, and so do arrays whose `arg` is not special.
    """
    if isinstance(value, tuple):
        return tuple(with_extremes(v, a, shift) for v, a in zip(value, arg, strict=True))
    if not arg.special or value.dtype.kind not in "iu":
        return value
    limits = np.iinfo(value.dtype)
    numbers = np.roll(np.array([limits.min, limits.max, 0, -1, 1]).astype(value.dtype), -shift)
    return np.resize(numbers, value.shape)


def strided(value: Any) -> Any:
    """Return the same values in a layout with gaps and negative steps."""
    if isinstance(value, tuple):
        return tuple(strided(v) for v in value)
    wide = np.zeros([2 * n for n in value.shape], value.dtype)
    key: Any = (..., *[slice(None, None, -2)] * value.ndim)
    view = wide[key]
    view[...] = value
    return view


# Between NumPy and Tensors


def tensor(value: Any, device: Device, requires_grad: bool) -> Any:
    if isinstance(value, tuple):
        return make_tuple(*[tensor(v, device, requires_grad) for v in value])
    data = NDArray(np.ascontiguousarray(value).reshape(value.shape), device=device)
    if value.base is not None and value.ndim and any(s < 0 for s in value.strides):
        # Give the native array the same layout, not only the same values.
        wide = NDArray(np.zeros([2 * n for n in value.shape], value.dtype), device=device)
        view = wide[tuple(slice(None, None, -2) for _ in value.shape)]
        view[...] = data
        data = view
    return Tensor(data, requires_grad=requires_grad)


def leaves(
    arrays: list[Any], values: list[Array], device: Device
) -> tuple[list[Any], list[Tensor]]:
    """Return Tensors of `values` nested like `arrays`, and the flat list of these Tensors."""
    rest: Iterator[Tensor] = iter(flat := [Tensor(v, device=device, dtype=v.dtype) for v in values])
    nested = [
        make_tuple(*[next(rest) for _ in a]) if isinstance(a, tuple) else next(rest) for a in arrays
    ]
    return nested, flat


def const(value: Any, device: Device) -> Tensor:
    return Tensor(value, device=device, requires_grad=False)


def numpy(value: Any) -> Any:
    if isinstance(value, TensorTuple):
        return tuple(part.numpy() for part in value.realize_cached_data())
    return value.numpy()


def spec(value: Any, device: Device | None) -> Any:
    if isinstance(value, tuple):
        return tuple(spec(v, device) for v in value)
    return Spec(value.shape, value.dtype.name, device)


def flat(arrays: Sequence[Any]) -> Iterator[Array]:
    for a in arrays:
        if isinstance(a, tuple):
            yield from a
        else:
            yield a


def copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(copied(v) for v in value)
    return np.array(value, order="C")


def widened(value: Any) -> Any:
    """Return arrays in the dtype that needle uses to compute with them."""
    if isinstance(value, tuple):
        return tuple(widened(v) for v in value)
    return astype(value, compute_dtype(value.dtype.name))


def narrowed(value: Any, spec: Any) -> Any:
    """Cast arrays from the compute dtype of `spec` to its dtype; return other arrays unchanged."""
    if not isinstance(spec, Spec):
        return tuple(narrowed(v, s) for v, s in zip(value, spec, strict=True))
    value = np.asarray(value)
    return astype(value, spec.dtype) if value.dtype == compute_dtype(spec.dtype) else value


def has_float(value: Any) -> bool:
    return any(is_floating(a.dtype.name) for a in flat([value]))


def largest(value: Any, kind: str = "f") -> float:
    """Return the largest finite magnitude in the arrays whose dtype has NumPy's `kind`."""
    sizes = [
        float(np.max(np.abs(a.astype("float64")), where=np.isfinite(a), initial=0.0))
        for a in map(widened, flat([value]))
        if a.dtype.kind == kind
    ]
    return max(sizes, default=0.0)
