"""`python -m bench.long_chains 1000 2000 4000`: seconds of a processor that compiling so many
elementwise operations in a row takes."""

from __future__ import annotations

import argparse
import sys
import time

import needle as ndl
import needle_tvm
from needle import ops


def chain(x: ndl.Tensor, count: int) -> ndl.Tensor:
    """Every third operation is a tanh, which keeps the values small."""
    for number in range(count):
        if number % 3 == 0:
            x = ops.tanh(x)
        else:
            x = x + 0.5 if number % 3 == 1 else x * x
    return x


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", type=int, nargs="+")
    x = ndl.randn(4, 4)
    needle_tvm.compile(lambda x: chain(x, 3), x, recompile=True, progress=False)  # imports
    for count in parser.parse_args().counts:
        start = time.process_time()
        needle_tvm.compile(
            lambda x, count=count: chain(x, count), x, recompile=True, progress=False
        )
        sys.stdout.write(f"{count} operations: {time.process_time() - start:.1f} s\n")


if __name__ == "__main__":
    main()
