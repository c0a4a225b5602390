"""4.1: the most rows of a register tile that is two vectors wide, with 16 and with 32 registers."""

from kernel_lab import show
from kernel_lab.workload import Processor

rows_of_16 = ...
rows_of_32 = ...


def registers_of(rows):
    """Return the registers of a tile of `rows` x 16: the sums, vectors of B, and one for A."""

    def tile(sch, case):
        sch.cache_write(sch.get_sblock("C"), 0, "local")

    size, avx2 = {"M": rows, "N": 16, "K": 1}, Processor(cores=1, registers=16, lanes=8)
    elements = {
        each.name: each.size for each in show(tile, size=size, processor=avx2).trace.buffers
    }
    return elements["C_local"] // 8 + elements["B"] // 8 + 1


def check():
    for registers, rows in ((16, rows_of_16), (32, rows_of_32)):
        text = f"rows_of_{registers} is {rows}"
        yield isinstance(rows, int) and rows > 0, text, "must be a whole number above 0"
        used = registers_of(rows)
        text = f"{rows} rows need {used} of {registers} registers"
        yield used <= registers, text, "they do not fit"
        used = registers_of(rows + 1)
        text = f"{rows + 1} rows would need {used}"
        yield used > registers, text, f"they fit into {registers} as well"
