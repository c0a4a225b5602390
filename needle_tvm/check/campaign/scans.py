"""Draw scans, sorts and interpolation for random programs."""

from __future__ import annotations

from needle.backend_ndarray.dtypes import is_floating
from needle.op import Op
from needle_tvm.check.campaign.drawer import Drawer, Made
from needle_tvm.check.campaign.sizes import Extent


def scan(d: Drawer, cls: type[Op]) -> bool:
    value = _along(d)
    if cls.name == "logcumsumexp":
        value = d.floating(1)
    if cls.name == "cumprod":
        value = d.within(d.floating(1), -1.2, 1.2) or value
    axis, reverse = d.axis(value.shape), d.rng.random() < 0.3
    return d.apply(cls, f"axis={axis}, reverse={reverse}", value)


def linear(d: Drawer, cls: type[Op]) -> bool:
    value = d.floating(1)
    factors = d.leaf(list(value.shape), value.dtype, -1, 1)
    axis, reverse = d.axis(value.shape), d.rng.random() < 0.3
    return d.apply(cls, f"axis={axis}, reverse={reverse}", factors, value)


def ordered(d: Drawer, cls: type[Op]) -> bool:
    """Add an ordering op; drop the positions, which rounding decides for nearly equal values."""
    value = _along(d)
    axis = d.axis(value.shape)
    options = f"axis={axis}"
    if cls.name == "sort":
        options += f", descending={d.rng.random() < 0.5}"
    if cls.name == "topk":
        count = d.rng.randint(1, min(value.shape[axis], 9)) if value.shape[axis] else 0
        options = f"k={count}, {options}, largest={d.rng.random() < 0.5}"
    return d.add(f"ops.{cls.__name__}({options})({{0}})[0]", value) is not None


def searchsorted(d: Drawer, cls: type[Op]) -> bool:
    """Search in unrounded inputs, because rounding could change a value's position."""
    dtype = d.float_dtype()
    shape = d.shape()
    lines = shape[:-1] if shape and d.rng.random() < 0.5 else []
    line, values = d.leaf([*lines, d.rng.choice([1, 5, 17])], dtype), d.leaf(shape, dtype)
    text = f"ops.Searchsorted(right={d.rng.random() < 0.5})(ops.sort({{0}})[0], {{1}})"
    return d.add(text, line, values) is not None


def resample(d: Drawer, cls: type[Op]) -> bool:
    """Interpolate a value with one to three axes along all of them."""
    value = d.pick(lambda v: 0 < len(v.shape) < 4 and min(v.shape) > 0 and is_floating(v.dtype))
    if value is None:
        value = d.leaf([d.rng.randint(1, 9), 3], d.float_dtype())
    axes = len(value.shape)
    mode = d.rng.choice([("linear",), ("bilinear", "bicubic"), ("trilinear",)][axes - 1])
    options = f"scale_factor={d.rng.choice([2, 3, 1.5, 1])}"
    if not any(isinstance(n, Extent) for n in value.shape):
        sizes = [d.rng.choice([1, 2, 5, 8]) for _ in value.shape]
        options = d.rng.choice([options, f"size={sizes}"])
        options += f", align_corners={d.rng.random() < 0.5}"
    text = f"nn.functional.interpolate(ops.unsqueeze({{0}}, (0, 1)), mode={mode!r}, {options})"
    return d.add(text, value) is not None


def weighted_elements(d: Drawer, cls: type[Op]) -> bool:
    value = d.floating(3)
    has_dims = any(isinstance(n, Extent) for n in value.shape)
    if has_dims or len(value.shape) != 3 or min(value.shape) < 1:
        value = d.leaf(
            [d.rng.choice([1, 2]), d.rng.choice([1, 3]), d.rng.choice([1, 5, 20])], d.float_dtype()
        )
    index = [value.shape[0], d.rng.choice([1, 2, 4]), d.rng.choice([1, 3, 9])]
    place = d.leaf(index, d.rng.choice(["int32", "int64"]), -1, max(1, value.shape[2]))
    return d.apply(cls, "", value, place, d.leaf(index, value.dtype))


def grouped_matmul(d: Drawer, cls: type[Op]) -> bool:
    rng, dtype, rows = d.rng, d.float_dtype(), d.extent([1, 2, 7])
    groups, depth, width = (rng.choice([1, 2, 3, 8]) for _ in range(3))
    group = d.leaf([rows], rng.choice(["int32", "int64"]), 0, groups + 1)
    matrices = d.leaf([groups, depth, width], dtype)
    return d.apply(cls, "", d.leaf([rows, depth], dtype), matrices, group)


def _along(d: Drawer) -> Made:
    return d.pick(lambda v: bool(v.shape)) or d.leaf([d.rng.randint(1, 9), 3])
