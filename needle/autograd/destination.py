"""Parse the arguments of `to`: a device, a dtype, or both, positional or as keywords."""

from __future__ import annotations

from typing import Any

from ..backend_ndarray import DTYPES, Device, dtype_name
from ..backend_ndarray.ndarray import device_named


def destination(
    owner: str, args: tuple[Any, ...], device: Any = None, dtype: Any = None
) -> tuple[Device | None, str | None]:
    """Return (device, dtype) from arguments such as needle.cuda(), "cuda:1", "float16" or
    np.float16; a device or dtype that is not given is None.

    Raises TypeError for a value that is neither a device nor a dtype, and for two devices or two
    dtypes. Raises ValueError for a CPU number other than 0.
    """
    targets: dict[str, Any] = {}
    values = [(None, value) for value in args if value is not None]
    for kind, value in (*values, ("device", device), ("dtype", dtype)):
        if value is None:
            continue
        parsed: Any = _device(owner, value) if kind != "dtype" else None
        if parsed is None:
            if kind == "device":
                raise TypeError(f"{owner}: device {value!r} is not a device; {_DEVICES}")
            parsed = _dtype(owner, value)
        category = "device" if isinstance(parsed, Device) else "dtype"
        if category in targets:
            raise TypeError(
                f"{owner}: {targets[category]} and {parsed} are two {category}s; give one"
            )
        targets[category] = parsed
    return targets.get("device"), targets.get("dtype")


_DEVICES = "devices are cpu, cpu_numpy, cuda and cuda:1 ..."


def _device(owner: str, value: Any) -> Device | None:
    if isinstance(value, Device) or not isinstance(value, str):
        return value if isinstance(value, Device) else None
    try:
        return device_named(value)
    except ValueError as reason:
        raise ValueError(f"{owner}: {reason}") from None


def _dtype(owner: str, value: Any) -> str:
    try:
        return dtype_name(value)
    except TypeError:
        raise TypeError(
            f"{owner}: {value!r} is neither a device nor a dtype; {_DEVICES}, and dtypes "
            f"{', '.join(DTYPES)}"
        ) from None
