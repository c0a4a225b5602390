"""Draw elementwise ops with jumps, bits or bounds for random programs.

Functions with jumps read inputs directly: rounding would move an element across a jump.
"""

from __future__ import annotations

from needle.op import Op
from needle_tvm.check.campaign.drawer import Drawer, Made

_KINDS = {
    "round": ("floor", "ceil", "round", "trunc"),
    "condition": ("isnan", "isfinite", "logical_not"),
    "logical": ("logical_and", "logical_or", "logical_xor"),
    "whole_division": ("floor_divide", "remainder", "fmod"),
    "bitwise": ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
}


def of_one(d: Drawer, cls: type[Op]) -> bool:
    return d.apply(cls, f"kind={_kind(d, cls)!r}", d.leaf(d.shape(), d.float_dtype(), -3, 3))


def of_two(d: Drawer, cls: type[Op]) -> bool:
    shape, dtype = d.shape(), d.float_dtype()
    left = d.leaf(shape, dtype, -9, 9)
    return d.apply(cls, f"kind={_kind(d, cls)!r}", left, d.leaf(shape, dtype, 1, 4))


def bits(d: Drawer, cls: type[Op]) -> bool:
    if cls.name == "bitwise_not":
        return d.apply(cls, "", _integers(d))
    if cls.name == "bitcast":
        # Use only the highest byte: products of whole bit patterns overflow.
        bits_of = d.leaf(d.shape(), "float32", -3, 3)
        return d.add(f"ops.{cls.__name__}()({{0}}) // {1 << 24}", bits_of) is not None
    left = _integers(d)
    return d.apply(cls, f"kind={_kind(d, cls)!r}", left, d.leaf(left.shape, left.dtype, 0, 9))


def clip(d: Drawer, cls: type[Op]) -> bool:
    low, high = d.rng.choice([(-0.5, 1), (None, 0.5), (-1, None), (1, -1)])
    return d.apply(cls, f"min={low}, max={high}", d.floating())


def _integers(d: Drawer) -> Made:
    return d.leaf(d.shape(), d.rng.choice(["int32", "int64"]), -9, 9)


def _kind(d: Drawer, cls: type[Op]) -> str:
    return d.rng.choice(_KINDS[cls.name])
