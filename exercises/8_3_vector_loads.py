"""8.3: loads of 16 bytes.

`tiled` has an argument `vector`: the neighbours that a thread loads or stores with one instruction.
Predict the sectors that one request for A moves with vectors of 4, and the number of requests for A
divided by that of `register_tile`. Then write the schedule, with strips of 16 steps of k.
"""

from kernel_lab import show
from kernel_lab.ir_views import tvmscript
from kernel_lab.trace import gpu

SIZE = {"M": 64, "N": 64, "K": 16}

sectors = ...
share_of_requests = ...


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


def register_tile(sch, case):
    c, k_outer = tiled(sch, step=8, vector=1)
    sch.decompose_reduction(c, k_outer)


def vector_loads(sch, case): ...


def requests(shown):
    reports = gpu.site_reports(shown.trace)
    return sum(r.requests for r in reports if r.buffer == "A" and not r.is_store)


def check():
    mine = show(vector_loads, device="cuda", size=SIZE)
    yield mine
    vectors = tvmscript(mine.module).count("T.vectorized(4)")
    yield vectors == 3, f"loops in vectors of 4: {vectors}", "must be 3: the copies of A, B and C"
    (strip,) = [each.size for each in mine.trace.buffers if each.name == "A_shared"]
    yield strip == 64 * 16, f"elements of a strip of A: {strip:,}", "must be 64 x 16"
    found = mine.gpu.requests.loads["A"]
    yield sectors == found, f"sectors is {sectors}", "how many bytes do 32 threads load?"
    share = requests(mine) / requests(show(register_tile, device="cuda", size=SIZE))
    text = f"share_of_requests is {share_of_requests}"
    yield share_of_requests == share, text, "how many elements does a request load?"
