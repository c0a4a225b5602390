"""3.1: the naive product of 32 x 32 x 8, and an LRU cache of as many lines as you like.

How many lines must the cache have so that the product no longer misses at each load of B? How many
misses, of A, B and C together, are left then?
"""

from kernel_lab import show
from kernel_lab.workload import Processor

lines_needed = ...
misses_left = ...


def check():
    one_core = Processor(cores=1, registers=16, lanes=8)
    counted = show(lambda sch, case: None, size={"M": 32, "N": 32, "K": 8}, processor=one_core)
    fewer, enough = (counted.misses(64 * lines) for lines in (lines_needed - 1, lines_needed))
    text = f"{enough:,} misses with {lines_needed} lines"
    yield enough < 8192, text, "each of the 8,192 loads of B still misses"
    text = f"{fewer:,} misses with {lines_needed - 1} lines"
    yield fewer >= 8192, text, "a line less is enough as well"
    yield misses_left == enough, f"misses_left is {misses_left}", "add those of A, B and C"
