"""4.3: write the schedule of a register tile of 6 x 16 that does not spill with AVX2.

It accesses at most 768 lines of A, 768 of B and 48 of C, in a product of 24 x 32 x 16.
"""

from kernel_lab import show
from kernel_lab.ir_views import cpu_code
from kernel_lab.workload import Processor
from needle_tvm._tvm.names import make_target


def six_rows(sch, case):
    c = sch.get_sblock("C")
    write = sch.cache_write(c, 0, "local")  # noqa: F841
    ...


def check():
    avx2 = Processor(cores=1, registers=16, lanes=8)
    mine = show(six_rows, size={"M": 24, "N": 32, "K": 16}, beside="tile", processor=avx2)
    yield mine
    for name, most in {"A": 768, "B": 768, "C": 48}.items():
        yield mine.lines[name] <= most, f"{mine.lines[name]} lines of {name}", f"more than {most}"
    haswell = make_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
    counts = cpu_code(mine.module, haswell).counts
    spills = counts.stack_loads + counts.stack_stores
    text = f"the innermost loop has {counts.fma} multiply-adds"
    yield counts.fma >= 12, text, "fewer than 6 x 2"
    yield not spills, f"the innermost loop has {spills} loads and stores of the stack"
