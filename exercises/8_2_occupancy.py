"""8.2: how many blocks an SM holds.

These are the limits of an SM of an A100:
- 64 warps and 32 blocks;
- four parts with 16,384 registers each. A warp is in one part, and its registers are rounded up to
  a multiple of 256;
- 164 KiB of shared memory. Each block takes 1 KiB more than it asks for.

Return the blocks that fit. `threads` is a multiple of 32, `shared` a multiple of 128.
"""

from kernel_lab.occupancy import occupancy

CASES = (
    (256, 64, 4096),
    (256, 65, 4096),
    (128, 49, 4096),
    (64, 40, 1024),
    (256, 32, 1024),
    (32, 32, 0),
    (1024, 64, 0),
    (128, 32, 32768),
)


def blocks(threads, registers, shared):
    return ...


def check():
    for threads, registers, shared in CASES:
        mine = blocks(threads, registers, shared)
        right = occupancy("sm_80", threads, registers, shared).blocks
        text = f"your blocks for {threads} threads, {registers} registers, {shared} bytes: {mine}"
        yield mine == right, text
