"""Methods of NDArray, a strided view of device memory. Movement methods only change shape, strides
and offset where possible. All others call the device's kernels, which numpy_backend.py
documents."""

from __future__ import annotations

from collections.abc import Iterator
from operator import index as as_int
from typing import TYPE_CHECKING, Any

import numpy as np

from . import indexing
from .cuda_device import consumer_stream
from .dtypes import astype, dtype_name
from .elementwise import Elementwise
from .masked import as_numpy

if TYPE_CHECKING:
    from typing_extensions import Self

_SCALARS = (float, int, bool)
_ALL_AXES = tuple(tuple(range(ndim)) for ndim in range(17))  # arrays have at most 16 axes


def storable(values: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return `values` as a NumPy array of `dtype` (None: see `array`). Raises TypeError for
    elements that needle cannot store, and for masked arrays."""
    host = values if isinstance(values, np.generic) else as_numpy(values, "array")
    if dtype is None:
        weak = host is not values and host.dtype == np.float64 and not hasattr(values, "dtype")
        dtype = "float32" if weak else dtype_name(host.dtype)
    if host.dtype.kind not in "biuf" and host.dtype.name != "bfloat16":
        raise TypeError(f"array: cannot store {host.dtype} elements")
    with np.errstate(all="ignore"):
        return astype(np.asarray(host), dtype_name(dtype))


class Strided(Elementwise):
    """The array methods whose results are on the array's device (see NDArray)."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # == is elementwise

    # Properties

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in elements, not bytes."""
        return self.view.strides

    @property
    def offset(self) -> int:
        """The number of elements from the start of the buffer to the first element."""
        return self.view.offset

    @property
    def dtype(self) -> str:
        return self.view.dtype

    @property
    def ndim(self) -> int:
        return self.view.ndim

    @property
    def size(self) -> int:
        return self.view.size

    @property
    def is_compact(self) -> bool:
        """Whether the elements are row-major and without gaps."""
        return self.view.is_compact

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("a 0-d array has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"NDArray({self.numpy()!r}, device={self.device})"

    # Conversion

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a NumPy copy."""
        return self.device.kernels.to_numpy(self.view)

    def item(self) -> bool | int | float:
        """Return the only element as a Python scalar. Raises ValueError unless there is exactly one
        element."""
        if self.view.size != 1:
            raise ValueError(f"item: shape {self.shape} does not hold exactly one element")
        return self.device.kernels.to_numpy(self.view).item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("an NDArray becomes a NumPy array only by copying; use np.from_dlpack")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.device.index) if self.device.name == "cuda" else (1, 0)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule over the same memory (or over a copy, if requested). Raises
        BufferError if `dl_device` is not the array's device.

        Work on `stream`, the consumer's stream, may use the memory at once. On a CUDA device
        `stream` is None (the legacy default stream), 1, 2 or a handle, or -1 if the consumer orders
        its work itself.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"{self.device} memory cannot be exported to device {dl_device}")
        kernels = self.device.kernels
        view = kernels.cast(self.view, self.dtype) if copy else self.view
        versioned = max_version is not None and max_version[0] >= 1
        if self.device.name != "cuda":
            return kernels.to_dlpack(view, versioned)
        return kernels.to_dlpack(view, versioned, consumer_stream(stream))

    def astype(self, dtype: Any, copy: bool = True) -> Self:
        """Return a compact copy with another `dtype`. If not `copy`, return the array itself if it
        has that dtype."""
        name = dtype_name(dtype)
        if not copy and name == self.dtype:
            return self
        return self._wrap(self.device.kernels.cast(self.view, name))

    def copy(self) -> Self:
        """Return a compact copy."""
        return self.astype(self.dtype)

    # Movement

    def as_strided(self, shape: Any, strides: Any, offset: int | None = None) -> Self:
        """Return another view of the same buffer with this `shape`, `strides` and `offset` (None:
        this view's). Raises ValueError if the view would leave the buffer."""
        at = self.offset if offset is None else as_int(offset)
        return self._restride(tuple(map(as_int, shape)), tuple(map(as_int, strides)), at)

    def _restride(self, shape: Any, strides: Any, offset: int) -> Self:
        return self._wrap(self.device.kernels.as_strided(self.view, shape, strides, offset))

    def compact(self) -> Self:
        """Return the array itself if it is compact, else a row-major copy."""
        return self if self.is_compact else self._wrap(self.device.kernels.compact(self.view))

    def reshape(self, *shape: Any) -> Self:
        """Return the same elements in another `shape` (one extent may be -1), as a view if
        possible."""
        view = self.device.kernels.reshape(self.view, shape)
        if view is not None:
            return self._wrap(view)
        new = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        new = indexing.resolve_shape(new, self.size)
        view = self._reshape_view(new)
        return view if view is not None else self.copy().reshape(new)

    def _reshape_view(self, shape: tuple[int, ...]) -> Self | None:
        """Return a view in `shape` (of equal size), or None if no strides can express it."""
        view = self.view
        if view.is_compact or not view.size:
            strides: Any = indexing.compact_strides(shape)
        else:
            strides = indexing.reshaped_strides(view.shape, view.strides, shape)
        return None if strides is None else self._restride(shape, strides, view.offset)

    @property
    def flat(self) -> Self:
        """The elements in one dimension."""
        return self.reshape(-1) if self.view.size else self.reshape(0)

    def permute(self, *axes: Any) -> Self:
        """Return a view with the axes in another order; `axes` names every axis once."""
        view = self.device.kernels.permute(self.view, axes)
        if view is not None:
            return self._wrap(view)
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = indexing.normalize_axes(tuple(order), self.ndim, "permute")
        if len(order) != self.ndim:
            raise ValueError(f"permute: axes {order} do not name all {self.ndim} dimensions")
        shape, strides = self.shape, self.strides
        return self._restride(
            tuple(shape[i] for i in order), tuple(strides[i] for i in order), self.offset
        )

    def broadcast_to(self, shape: Any) -> Self:
        """Return a view in `shape`. Strides of 0 repeat the axes of extent 1 and the missing
        leading axes. Raises ValueError if the shapes do not broadcast."""
        new = tuple(map(as_int, shape))
        old, lead = self.shape, len(new) - self.ndim
        if lead < 0 or any(n not in (1, m) for n, m in zip(old, new[lead:], strict=True)):
            raise ValueError(f"broadcast_to: shape {old} does not broadcast to {new}")
        strides = [
            s if n == m else 0 for n, s, m in zip(old, self.strides, new[lead:], strict=True)
        ]
        return self._restride(new, (*[0] * lead, *strides), self.offset)

    def diagonal(self, offset: int, axis1: int, axis2: int) -> Self | None:
        """Return a view whose last axis holds the elements (i, i + `offset`) of the axes `axis1`
        and `axis2`. Return None for arguments that are not ints or do not fit."""
        view = self.device.kernels.diagonal(self.view, offset, axis1, axis2)
        return None if view is None else self._wrap(view)

    def roll(self, shifts: Any, axes: Any) -> Self | None:
        """Return a copy with the elements shifted by `shifts` along `axes` (None: along the flat
        array). Elements that pass the end wrap around to the front. Return None for arguments that
        are not ints or do not fit."""
        if axes is None:
            flat = self.reshape(-1).roll(shifts, 0)
            return None if flat is None else flat.reshape(self.view.shape)
        view = self.device.kernels.roll(self.view, shifts, axes)
        return None if view is None else self._wrap(view)

    def flip(self, axes: Any = None) -> Self:
        """Return a view with the elements reversed along `axes` (an int, a tuple, or None for
        all)."""
        named = indexing.normalize_axes(axes, self.ndim, "flip")
        return self[tuple(slice(None, None, -1 if i in named else 1) for i in range(self.ndim))]

    def pad(self, padding: Any, value: float = 0) -> Self:
        """Return a copy padded with `value`. For each axis, `padding` has a pair (low, high): the
        numbers of elements to add before and after. Raises ValueError if `padding` does not have
        this form."""
        widths = [(as_int(low), as_int(high)) for low, high in padding]
        if len(widths) != self.ndim or any(w < 0 for pair in widths for w in pair):
            raise ValueError(
                f"pad: {padding} must give (low, high) >= 0 for each of {self.ndim} dimensions"
            )
        pairs = list(zip(self.shape, widths, strict=True))
        out: Any = self.device.full([n + lo + hi for n, (lo, hi) in pairs], value, self.dtype)
        out[tuple(slice(lo, lo + n) for n, (lo, _) in pairs)] = self
        return out

    # Indexing

    def __getitem__(self, key: Any) -> Self:
        """Index like NumPy: basic keys give a view; integer arrays and boolean masks give a
        copy."""
        view = self.device.kernels.index(self.view, key)
        if view is not None:
            return self._wrap(view)
        view = self.view
        if indexing.is_basic(key):
            return self._restride(
                *indexing.basic_layout(key, view.shape, view.strides, view.offset)
            )
        arranged, plan = self._advanced(key)
        picked, index = arranged.reshape(plan.merged_shape), self._index(plan.positions)
        return self._wrap(self.device.kernels.gather(picked.view, index, plan.axis))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign in place, with broadcasting and a cast. If indices repeat, the last one wins."""
        view, kernels = self.view, self.device.kernels
        if not indexing.is_basic(key):
            self._scatter(key, value, kernels.scatter)
            return
        layout = indexing.basic_layout(key, view.shape, view.strides, view.offset)
        target = kernels.as_strided(view, *layout)
        if isinstance(value, _SCALARS):
            kernels.fill(target, value)
        else:
            kernels.copy(self._value(value), target)

    def add_at(self, key: Any, value: Any) -> None:
        """Add `value` to self[`key`] in place. Repeated indices accumulate."""
        if indexing.is_basic(key):
            self[key] = self[key] + value
        else:
            self._scatter(key, value, self.device.kernels.scatter_add)

    def _advanced(self, key: Any) -> tuple[Self, indexing.Advanced]:
        """Return a view in which the indexed axes are adjacent, and the merged index along them."""
        entries = key if type(key) is tuple else (key,)
        host = tuple(e.numpy() if isinstance(e, Strided) else e for e in entries)
        view = self.view
        plan = indexing.advanced(host, view.shape, view.strides, view.offset)
        return self._restride(*plan.layout), plan

    def _scatter(self, key: Any, value: Any, kernel: Any) -> None:
        source = self._value(value)
        arranged, plan = self._advanced(key)
        merged = arranged._reshape_view(plan.merged_shape)
        target = merged if merged is not None else arranged.copy().reshape(plan.merged_shape)
        kernel(target.view, self._index(plan.positions), source, plan.axis)
        if merged is None:  # no single stride spans the indexed axes, so a copy was updated
            back = target.reshape(arranged.shape)
            self.device.kernels.copy(back.view, arranged.view)

    def _stored(self, values: Any) -> Any:
        return self.device.kernels.from_numpy(storable(values))

    def _index(self, index: np.ndarray[Any, Any]) -> Any:
        return self.device.kernels.from_numpy(index)

    def _value(self, value: Any) -> Any:
        operand = self.operand(value)
        if operand is NotImplemented or isinstance(operand, _SCALARS):
            return self._stored(value)
        return operand

    def operand(self, other: Any) -> Any:
        """Return the kernel operand for `other`: a view on this device or a Python scalar.

        NumPy scalars are weak like Python scalars, so np.prod(shape), for example, never widens a
        dtype. Return NotImplemented for a value that is not an array. Raises ValueError for an
        array on another device.
        """
        if isinstance(other, Strided):
            if other.device is not self.device:
                raise ValueError(f"arrays are on different devices: {self.device}, {other.device}")
            return other.view
        if isinstance(other, np.generic):
            other = other.item()
        if isinstance(other, _SCALARS):
            return other
        if isinstance(other, np.ndarray):
            return self._stored(other)
        return NotImplemented

    def fill(self, value: float) -> None:
        """Set every element of this view to `value` in place."""
        self.device.kernels.fill(self.view, value)

    # Reductions: axis is an int, a tuple or None (all axes); negative axes count from the end

    def _reduce(self, name: str, axis: Any, keepdims: bool) -> Self:
        view = self.view
        ndim = view.ndim
        if axis is None:
            axes = _ALL_AXES[ndim]
        elif type(axis) is int and -ndim <= axis < ndim:
            axes = (axis % ndim,)
        else:
            axes = indexing.normalize_axes(axis, ndim, name)
        return self._wrap(getattr(self.device.kernels, name)(view, axes, bool(keepdims)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the sum over `axis`. Integers and bools are summed in int64, floats in a wider
        accumulator. `keepdims` keeps the axes with extent 1."""
        return self._reduce("sum", axis, keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the product over `axis`, with the dtypes and `keepdims` as in `sum`."""
        return self._reduce("prod", axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the maximum over `axis`, which is NaN if an element is NaN. `keepdims` is as in
        `sum`. Raises ValueError if there are no elements."""
        return self._reduce("max", axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the minimum over `axis`, which is NaN if an element is NaN. `keepdims` is as in
        `sum`. Raises ValueError if there are no elements."""
        return self._reduce("min", axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the mean over `axis`, in float64 for integers. The mean of no elements is NaN.
        `keepdims` is as in `sum`."""
        if axis is not None:
            axis = indexing.normalize_axes(axis, self.view.ndim, "mean")
        return self._wrap(self.device.kernels.mean(self.view, axis, bool(keepdims)))

    def argmax(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the int64 index of the first maximum (a NaN counts as a maximum) along one `axis`,
        or in the flat array. `keepdims` is as in `sum`."""
        return self._arg("argmax", axis, keepdims)

    def argmin(self, axis: Any = None, keepdims: bool = False) -> Self:
        """Return the int64 index of the first minimum (a NaN counts as a minimum) along one `axis`,
        or in the flat array. `keepdims` is as in `sum`."""
        return self._arg("argmin", axis, keepdims)

    def _arg(self, name: str, axis: Any, keepdims: bool) -> Self:
        if axis is None:
            kernels = self.device.kernels
            found = self._wrap(getattr(kernels, name)(kernels.reshape(self.view, -1), 0, False))
            return found.reshape((1,) * self.ndim) if keepdims else found
        (one,) = indexing.normalize_axes(as_int(axis), self.ndim, name)
        kernel = getattr(self.device.kernels, name)
        return self._wrap(kernel(self.view, one, bool(keepdims)))

    def __matmul__(self, other: Any) -> Self:
        """Multiply matrices by NumPy's rules: leading axes broadcast, 1-d operands are vectors."""
        operand = self.operand(other)
        if operand is NotImplemented or isinstance(operand, _SCALARS):
            return NotImplemented
        return self._wrap(self.device.kernels.matmul(self.view, operand))

    def kron(self, other: Self) -> Self:
        """Return the Kronecker product with `other`, an array on this device. Raises ValueError for
        more than 8 axes."""
        return self._wrap(self.device.kernels.kron(self.view, other.view))

    def softmax(self, axis: int, log: bool = False) -> Self:
        """Return exp(x) / sum(exp(x)) along `axis` without overflow, or its logarithm if `log`.
        For integers, the computation is in float64. Raises ValueError for an axis out of range."""
        return self._wrap(self.device.kernels.softmax(self.view, axis, log))
