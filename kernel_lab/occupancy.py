"""The number of a kernel's blocks that a multiprocessor (SM) of a GPU holds, and its limits.

The limits are from the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; the rules for registers and shared memory are from the toolkit's own occupancy
calculator, cuda_occupancy.h. Each of an SM's four quarters has a quarter of the registers and gives
them to its warps in pieces of 256. From compute capability 8.0 on, a block's shared memory includes
1 KiB for the system.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lab.errors import LabUsageError
from kernel_lab.rung import generation
from kernel_lab.trace.events import WARP

REGISTERS = 65536  # registers of an SM, on every GPU below
QUARTERS = 4
_REGISTER_PIECE = 256
_KIB = 1024


@dataclass(frozen=True)
class Sm:
    """The limits of an SM: warps, blocks, and bytes of shared memory. Each block takes `reserved`
    further bytes, and its memory is rounded up to whole pieces of `piece` bytes."""

    warps: int
    blocks: int
    shared: int
    reserved: int = _KIB
    piece: int = 128


SMS = {
    75: Sm(warps=32, blocks=16, shared=64 * _KIB, reserved=0, piece=256),
    80: Sm(warps=64, blocks=32, shared=164 * _KIB),
    86: Sm(warps=48, blocks=16, shared=100 * _KIB),
    87: Sm(warps=48, blocks=16, shared=164 * _KIB),
    89: Sm(warps=48, blocks=24, shared=100 * _KIB),
    90: Sm(warps=64, blocks=32, shared=228 * _KIB),
    100: Sm(warps=64, blocks=32, shared=228 * _KIB),
    103: Sm(warps=64, blocks=32, shared=228 * _KIB),
    120: Sm(warps=48, blocks=24, shared=100 * _KIB),
}


@dataclass(frozen=True)
class Occupancy:
    """The number of blocks of a kernel on an SM at a time, their warps, the most warps that an SM
    holds, and the limits that allow no further block: "warps", "blocks", "registers", "shared
    memory"."""

    blocks: int
    warps: int
    most: int
    limits: tuple[str, ...]

    @property
    def share(self) -> float:
        """The warps as a fraction of the most."""
        return self.warps / self.most


def occupancy(arch: str, threads: int, registers: int, shared: int) -> Occupancy:
    """Return the occupancy of a kernel on a GPU of architecture `arch`, such as "sm_90".

    `threads` is the number of threads of a block, `registers` the number of registers of a thread,
    and `shared` the bytes of shared memory of a block. Raises LabUsageError for an architecture
    that is not in the table.
    """
    sm = SMS.get(generation(arch))
    if sm is None:
        known = ", ".join(f"sm_{number}" for number in SMS)
        raise LabUsageError(f"occupancy: no limits are known for {arch}, only for {known}")
    warps = -(-threads // WARP)
    allowed = {"warps": sm.warps // warps, "blocks": sm.blocks}
    if registers:
        each = _rounded(registers * WARP, _REGISTER_PIECE)
        allowed["registers"] = QUARTERS * (REGISTERS // QUARTERS // each) // warps
    if shared + sm.reserved:
        allowed["shared memory"] = sm.shared // _rounded(shared + sm.reserved, sm.piece)
    blocks = min(allowed.values())
    limits = tuple(name for name, most in allowed.items() if most == blocks)
    return Occupancy(blocks, blocks * warps, sm.warps, limits)


def _rounded(number: int, piece: int) -> int:
    return -(-number // piece) * piece
