"""Limits on kernels for every GPU from sm_75 on, as `claims` of GPU rungs.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
"""

from __future__ import annotations

from kernel_lab.build import SHARED_BYTES

_GRID = 65_535  # blocks along y and along z; along x there may be 2**31 - 1


def grid_claim(y: int = 1, z: int = 1) -> str | None:
    """Return why a grid of `y` and `z` blocks along these axes cannot be launched; None if it
    can."""
    for axis, blocks in (("y", y), ("z", z)):
        if blocks > _GRID:
            return f"{blocks:,} blocks along the grid's {axis} axis: at most {_GRID:,} are allowed"
    return None


def shared_claim(elements: int) -> str | None:
    """Return why `elements` float32 do not fit into a block's shared memory; None if they do."""
    if 4 * elements > SHARED_BYTES:
        return f"{4 * elements:,} bytes of shared memory, but a block has {SHARED_BYTES:,}"
    return None
