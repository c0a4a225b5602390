"""Devices and the arrays on them. They are in one file because they create each other: a device's
factories return arrays, and an array that is created without a device goes to the default
device."""

from __future__ import annotations

import importlib
import re
from operator import index as as_int
from typing import Any

import numpy as np

from . import cuda_device
from .arguments import count
from .dtypes import dtype_name
from .masked import as_numpy
from .strided import Strided, storable

_MODULES = {
    "cpu": "needle.backend_ndarray._cpu",
    "cpu_numpy": "needle.backend_ndarray.numpy_backend",
    "cuda": "needle.backend_ndarray._cuda",
}


class Device:
    """A device that stores arrays. There is one object for each device, so compare with `is` or
    `==`.

    `name` is "cpu", "cpu_numpy" or "cuda", and `index` distinguishes GPUs. The factories return
    NDArrays; `shape` is one int or several, and `dtype` is the name of a dtype. `kernels` is the
    module of device functions, with the same interface as `numpy_backend`. It is loaded on first
    use; if the device cannot be used, the load raises RuntimeError with the reason.
    """

    __slots__ = ("__weakref__", "index", "kernels", "name")

    kernels: Any

    def __init__(self, name: str, index: int = 0) -> None:
        self.name = name
        self.index = index

    def __getattr__(self, attribute: str) -> Any:
        # This runs once: `kernels` is an empty slot until the module is loaded.
        if attribute != "kernels":
            raise AttributeError(f"Device has no attribute {attribute!r}")
        self.kernels = self._load()
        return self.kernels

    def _load(self) -> Any:
        try:
            module = importlib.import_module(_MODULES[self.name])
        except ModuleNotFoundError as error:
            if error.name != _MODULES[self.name]:
                raise
            if self.name == "cuda":
                raise RuntimeError("cuda: this build of needle has no CUDA module") from None
            raise RuntimeError(
                f"{self.name}: needle's native module is not built (run make, or "
                "pip install -e ./runtime -e .)"
            ) from None
        return cuda_device.kernels(module, self.index) if self.name == "cuda" else module

    @property
    def type(self) -> str:
        """The `name` of the device, under PyTorch's name for it."""
        return self.name

    def enabled(self) -> bool:
        """Return whether the device can be used on this machine."""
        try:
            return self.kernels is not None
        except (RuntimeError, ImportError):
            return False

    # Memory use, with PyTorch's names

    def memory_allocated(self) -> int:
        """Return the number of bytes of all live arrays on this device."""
        return self.kernels.memory_allocated()

    def max_memory_allocated(self) -> int:
        """Return the peak of `memory_allocated` since the start or the last
        `reset_peak_memory_stats`."""
        return self.kernels.max_memory_allocated()

    def reset_peak_memory_stats(self) -> None:
        """Reset `max_memory_allocated` to the current `memory_allocated`."""
        self.kernels.reset_peak_memory()

    def memory_cached(self) -> int:
        """Return the number of unused bytes that are cached for future arrays."""
        return self.kernels.memory_cached()

    def empty_cache(self) -> None:
        """Release the memory cached for future arrays to the system."""
        self.kernels.empty_cache()

    def memory_stats(self) -> dict[str, int | None]:
        """Return numbers of bytes by name: `allocated` (by live arrays), `max_allocated` (the peak
        of `allocated`) and `cached` (kept for future arrays). A CUDA device also has `reserved`
        (allocated from the device), `max_reserved`, `limit` (None: no limit) and `mallocs`, the
        number of allocations from the device."""
        if self.name == "cuda":
            return dict(self.kernels.memory_stats())
        return {
            "allocated": self.memory_allocated(),
            "max_allocated": self.max_memory_allocated(),
            "cached": self.memory_cached(),
        }

    def set_memory_limit(self, limit: int | None) -> None:
        """Limit the memory that arrays may allocate on the device to `limit` bytes (None: no
        limit). Allocations beyond the limit raise MemoryError.

        Raises RuntimeError for a CPU, whose memory belongs to the process.
        """
        self._cuda_only("memory limit").set_memory_limit(limit)

    # Asynchronous work, which only CUDA devices have

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        self.kernels.synchronize()

    def stream(self) -> cuda_device.Stream:
        """Return a new stream for use in a `with` statement. Raises RuntimeError for a CPU, which
        has no streams."""
        return cuda_device.Stream(self._cuda_only("streams"), self.index)

    def _cuda_only(self, what: str) -> Any:
        if self.name != "cuda":
            raise RuntimeError(f"{self} has no {what}")
        return self.kernels

    def __repr__(self) -> str:
        return f"{self.name}()" if self.index == 0 else f"{self.name}({self.index})"

    def __reduce__(self) -> Any:
        return _device, (self.name, self.index)

    # Factories, named as in the CMU course 10-414. The random ones use NumPy's global generator.

    def empty(self, shape: Any, dtype: str = "float32") -> NDArray:
        """Return an uninitialised array of `shape` and `dtype`."""
        return wrap(self, self.kernels.empty(_extents(shape), dtype_name(dtype)))

    def full(self, shape: Any, fill_value: float, dtype: str = "float32") -> NDArray:
        """Return an array of `shape` and `dtype` with every element `fill_value`."""
        out = self.empty(shape, dtype)
        out.fill(fill_value)
        return out

    def zeros(self, *shape: Any, dtype: str = "float32") -> NDArray:
        """Return zeros of `shape` and `dtype`. `zeros(2, 3)` and `zeros((2, 3))` are the same."""
        return self.full(_shape(shape), 0, dtype)

    def ones(self, *shape: Any, dtype: str = "float32") -> NDArray:
        """Return ones of `shape` and `dtype`. `ones(2, 3)` and `ones((2, 3))` are the same."""
        return self.full(_shape(shape), 1, dtype)

    def rand(self, *shape: Any, dtype: str = "float32") -> NDArray:
        """Return uniform random numbers in [0, 1) of `shape` and `dtype`."""
        return array(np.random.random_sample(_shape(shape)), dtype, self)

    def randn(self, *shape: Any, dtype: str = "float32") -> NDArray:
        """Return standard normal random numbers of `shape` and `dtype`."""
        return array(np.random.standard_normal(_shape(shape)), dtype, self)

    def randb(self, *shape: Any, p: float = 0.5, dtype: str = "bool") -> NDArray:
        """Return an array of `shape` and `dtype` that is True (1) with probability `p`."""
        return array(np.random.random_sample(_shape(shape)) < p, dtype, self)

    def one_hot(self, n: int, i: Any, dtype: str = "float32") -> NDArray:
        """Select rows of the `n` x `n` identity matrix of `dtype` by the integer array `i`. The
        shape of the result is i.shape + (n,). Raises IndexError for an index outside 0..n - 1."""
        values = i.numpy() if hasattr(i, "numpy") else i
        with np.errstate(invalid="ignore"):  # NaN and infinities are refused below
            index = as_numpy(values, "one_hot").astype(np.int64)
        if index.size and not (0 <= index.min() and index.max() < n):
            wrong = index[(index < 0) | (index >= n)][0]
            raise IndexError(f"one_hot: index {wrong}; indices must lie in 0..{n - 1}")
        hot = index[..., None] == np.arange(n)
        return array(hot, dtype, self)


def _extents(shape: Any) -> tuple[int, ...]:
    return tuple(map(as_int, shape)) if isinstance(shape, (tuple, list)) else (as_int(shape),)


def _shape(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape


# A device or its name: cpu, cpu_numpy, cuda or cuda:1.
DeviceLike = Device | str

_NUMBER = re.compile(r"\d{1,4}")
_DEVICES: dict[tuple[str, int], Device] = {}


def _device(name: str, index: int) -> Device:
    return _DEVICES.setdefault((name, index), Device(name, index))


def cpu() -> Device:
    """Return the native CPU device."""
    return _CPU


def cpu_numpy() -> Device:
    """Return the reference device, whose kernels are written with NumPy."""
    return _CPU_NUMPY


def cuda(index: int = 0) -> Device:
    """Return CUDA GPU number `index`. If there is no such GPU, the device's `enabled()` returns
    False and using the device raises RuntimeError. Raises TypeError or ValueError for an invalid
    index."""
    return _device("cuda", count("cuda", "index", index, 0))


def _is_available() -> bool:
    """Return whether the first CUDA GPU can be used on this machine."""
    return cuda().enabled()


setattr(cuda, "is_available", _is_available)  # noqa: B010  (for type checkers)


def default_device() -> Device:
    """Return the device that arrays are on by default: the native CPU."""
    return _CPU


def as_device(device: DeviceLike | None, default: Device | None = None) -> Device:
    """Return `device`; if it is None, `default`; if both are None, the default device. Raises
    TypeError for a value that is neither a Device nor a device's name, and ValueError for a CPU
    number other than 0."""
    if device is None:
        return default or _CPU
    if isinstance(device, Device):
        return device
    found = device_named(device) if isinstance(device, str) else None
    if found is None:
        kind = type(device).__name__
        raise TypeError(f"device {device!r} is a {kind}, not a Device or a name like 'cuda:1'")
    return found


def device_named(name: str) -> Device | None:
    """Return the device called `name`, such as cpu, cpu_numpy, cuda or cuda:1, or None if there is
    no such name. Raises ValueError for a CPU number other than 0."""
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cpu_numpy", "cuda") or (colon and not _NUMBER.fullmatch(number)):
        return None
    index = int(number or 0)
    if kind == "cuda":
        return cuda(index)
    if index:
        raise ValueError(f"there is one CPU device, {kind}:0, not {name!r}")
    return _device(kind, 0)


def all_devices() -> list[Device]:
    """Return all devices that needle knows, whether they can be used or not (see `enabled`)."""
    return [_CPU, cuda(), _CPU_NUMPY]


_CPU = _device("cpu", 0)
_CPU_NUMPY = _device("cpu_numpy", 0)


class _ArrayExchange:
    """The descriptor of `NDArray.__dlpack_c_exchange_api__`, DLPack's table of C functions.

    It raises AttributeError without the native CPU module, so that other libraries use
    `__dlpack__`.
    """

    _table: Any = None

    def __get__(self, instance: Any, owner: Any) -> Any:
        if self._table is None:
            try:
                self._table = _CPU.kernels.array_exchange(NDArray, _CPU)
            except (RuntimeError, ImportError) as error:
                raise AttributeError(str(error)) from error
        return self._table


class NDArray(Strided):
    """A strided n-dimensional array on one device. Strides and offset count elements.

    Elementwise methods broadcast and promote dtypes like NumPy; Python scalars are weak. Methods
    raise ValueError for invalid shapes or axes and for mixed devices, TypeError for invalid dtypes,
    and IndexError for invalid indices.
    """

    __slots__ = ("__weakref__", "device", "view")
    __array_ufunc__ = None  # so that np.ndarray + NDArray calls NDArray.__radd__
    __dlpack_c_exchange_api__ = _ArrayExchange()

    device: Device
    view: Any

    def __init__(self, other: Any, device: DeviceLike | None = None, dtype: Any = None) -> None:
        made = array(other, dtype=dtype, device=device)
        self.device, self.view = made.device, made.view

    def __reduce__(self) -> Any:
        return array, (self.numpy(), self.dtype, self.device)

    def to(self, device: DeviceLike) -> NDArray:
        """Return the array itself if it is already on `device`, else a copy on `device`."""
        device = as_device(device)
        if device is self.device:
            return self
        if device.name == self.device.name == "cuda":
            return wrap(device, device.kernels.transfer(self.view, device.index))
        return wrap(device, device.kernels.from_numpy(self.numpy()))


_new = NDArray.__new__


def wrap(device: Device, view: Any) -> NDArray:
    """Wrap a kernel's result `view` on `device` in an array, without checks."""
    out = _new(NDArray)
    out.device = device
    out.view = view
    return out


def array(values: Any, dtype: Any = None, device: DeviceLike | None = None) -> NDArray:
    """Return a new array from `values`: anything that NumPy accepts, in any layout, or another
    NDArray.

    Without `dtype`, NumPy arrays keep their dtype and Python floats become float32. The array is on
    `device`; by default, the copy of an NDArray is on the same device and other values go to the
    default device. Raises TypeError for dtypes that needle does not store, and for masked arrays.
    """
    device = as_device(device, values.device if isinstance(values, NDArray) else None)
    if isinstance(values, NDArray):
        moved = values.to(device)
        return moved.astype(dtype or moved.dtype, copy=moved.view is values.view)
    return wrap(device, device.kernels.from_numpy(storable(values, dtype)))
