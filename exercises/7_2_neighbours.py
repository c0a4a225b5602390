"""7.2: several elements for each thread of a sum of two vectors.

The schedule gives each thread 32 neighbouring elements, so a request moves 32 sectors. Write one
whose blocks have 256 threads with 32 elements each, and whose requests move 4 sectors.
"""

from kernel_lab import show

SIZE = {"N": 16384}


def uncoalesced(sch, case):
    (i,) = sch.get_loops(sch.get_sblock("c"))
    block, thread, step = sch.split(i, [None, 256, 32])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def neighbours(sch, case):
    (i,) = sch.get_loops(sch.get_sblock("c"))
    ...


def check():
    mine = show(neighbours, workload="vector_add", device="cuda", size=SIZE)
    yield mine
    (kernel,) = mine.trace.regions
    shape = kernel.blocks, kernel.threads
    yield shape == (2, 256), f"blocks and threads of a block: {shape}", "must be (2, 256)"
    for name, sectors in mine.gpu.requests.loads.items():
        yield sectors == 4, f"sectors of a request for {name}: {sectors:g}"
