"""7.4: remove a bank conflict by padding.

In `exchanged`, `threadIdx.x` goes along the rows, and a load of A_shared takes 4 turns. Pad the
rows of one copy so that it takes 1: `sch.storage_align(copy, 0, axis=-2, factor=8, offset=1)` puts
an unused word after each row of 8 words. Leave the other copy as it is.
- `copy` is the statement that writes the array, and 0 means its first result. It has only one.
- `axis=-2` is the last axis but one, the rows.
- `factor=8, offset=1` make the distance from row to row a multiple of 8, plus 1: 9 words.
"""

from kernel_lab import show
from kernel_lab.trace import gpu

SIZE = {"M": 32, "N": 32, "K": 16}


def square(sch, row, column):
    c = sch.get_sblock("C")
    i, j, k = sch.get_loops(c)
    i_block, i_thread = sch.split(i, [None, 16])
    j_block, j_thread = sch.split(j, [None, 16])
    sch.reorder(i_block, j_block, i_thread, j_thread)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, row)
    sch.bind(j_thread, column)
    return c, k


def fetch(sch, copy, y, x):
    strip = sch.fuse(*sch.get_loops(copy)[-2:])
    _, ty, tx, _ = sch.split(strip, [None, y, x, 1])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")


def padded(sch, case):
    c, k = square(sch, row="threadIdx.x", column="threadIdx.y")
    k_outer, k_inner = sch.split(k, [None, 8])
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
        fetch(sch, copy, 16, 16)
        ...


def check():
    mine = show(padded, device="cuda", size=SIZE)
    yield mine
    for report in gpu.site_reports(mine.trace):
        if report.scope == "shared" and not report.is_store:
            yield report.degree == 1, f"turns of a load of {report.buffer}: {report.degree}"
    (strip,) = [each.size for each in mine.trace.buffers if each.name == "B_shared"]
    yield strip == 8 * 16, f"elements of B_shared: {strip}", "pad one copy only"
    loads = [site.text for site in mine.trace.sites if site.text.startswith("A_shared[threadIdx_x")]
    text = f"loads of A_shared with threadIdx.x along its rows: {len(loads)}"
    yield bool(loads), text, "keep the order of the threads"
