"""8.4: load the next strip while the block multiplies.

The copies shall run one iteration ahead of the product. Annotate the loop `k_outer`:
- `sch.annotate(k_outer, "software_pipeline_stage", [a, b, c])` gives a stage to each of its three
  statements: the copy of A, the copy of B, the product. While one of stage 1 works on a strip, one
  of stage 0 works on the next.
- `sch.annotate(k_outer, "software_pipeline_order", [a, b, c])` gives their order in the loop's
  body: 0 is first. A copy that runs before the product needs a second strip, as the product still
  reads the first one. A copy that runs after the product writes over the strip, and nothing
  overlaps.

Only the two annotations are missing: `decompose_reduction` is below them already. Predict the
bytes of shared memory of a block.
"""

from kernel_lab import registry, show

SIZE = {"M": 64, "N": 64, "K": 32}

shared_bytes = ...


def tiled(sch, step, vector, each=4, threads=16):
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")
    i, j, k = sch.get_loops(c)
    i_block, i_thread, i_own = sch.split(i, [None, threads, each])
    j_block, j_thread, j_own = sch.split(j, [None, threads, each])
    k_outer, k_inner = sch.split(k, [None, step])
    sch.reorder(i_block, j_block, i_thread, j_thread, k_outer, k_inner, i_own, j_own)
    sch.bind(i_block, "blockIdx.y")
    sch.bind(j_block, "blockIdx.x")
    sch.bind(i_thread, "threadIdx.y")
    sch.bind(j_thread, "threadIdx.x")
    sch.reverse_compute_at(write, j_thread, preserve_unit_loops=True)
    for operand in (0, 1):
        copy = sch.cache_read(c, operand, "shared")
        sch.compute_at(copy, k_outer, preserve_unit_loops=True)
        fetch(sch, copy, threads, threads, vector)
    if vector > 1:
        sch.vectorize(sch.get_loops(write)[-1])
    for loop in (k_inner, i_own, j_own):
        sch.unroll(loop)
    return c, k_outer


def fetch(sch, copy, y, x, vector):
    strip = sch.fuse(*sch.get_loops(copy)[-2:])
    _, ty, tx, lane = sch.split(strip, [None, y, x, vector])
    sch.bind(ty, "threadIdx.y")
    sch.bind(tx, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lane)


def double_buffer(sch, case):
    c, k_outer = tiled(sch, step=16, vector=4)
    ...
    sch.decompose_reduction(c, k_outer)


def in_shared_memory(shown):
    buffers = shown.trace.buffers
    return sum(each.size * each.itemsize for each in buffers if each.scope == "shared")


def check():
    mine = show(double_buffer, device="cuda", size=SIZE)
    yield mine
    found = in_shared_memory(mine)
    rung = registry.ladder("gemm", "cuda")["double_buffer"]
    wanted = in_shared_memory(show(rung.schedule, device="cuda", size=SIZE))
    text = f"bytes of shared memory of the schedule: {found:,}"
    yield found == wanted, text, f"the lab's schedule has {'more' if wanted > found else 'fewer'}"
    reason = "count the strips of A and of B that are needed at a time"
    yield shared_bytes == found, f"shared_bytes is {shared_bytes}", reason
