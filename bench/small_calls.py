"""Eager calls on a few elements beside PyTorch's: the time between Python and the kernel.

One process and one thread; the two libraries' blocks of calls alternate. A time is the median of
the blocks' means, in microseconds a call, and a ratio is PyTorch's time over ours, round by round,
with its quartiles.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle_tvm.process import command_line as cli

# name: (needle's call, PyTorch's), each of (library, vector, other vector, matrix); None: the same.
Call = Callable[[Any, Any, Any, Any], Any]
CASES: dict[str, tuple[Call, Call | None]] = {
    "a + b": (lambda m, a, b, M: a + b, None),
    "a * 2": (lambda m, a, b, M: a * 2, None),
    "relu": (lambda m, a, b, M: m.relu(a), None),
    "exp": (lambda m, a, b, M: m.exp(a), None),
    "sum": (lambda m, a, b, M: a.sum(), None),
    "sum axis": (lambda m, a, b, M: M.sum(0), None),
    "mean": (lambda m, a, b, M: a.mean(), None),
    "max": (lambda m, a, b, M: a.max(), None),
    "var": (lambda m, a, b, M: a.var(), None),
    "argmax": (lambda m, a, b, M: a.argmax(), None),
    "item": (lambda m, a, b, M: a[0].item(), None),
    "M @ M": (lambda m, a, b, M: M @ M, None),
    "linear": (lambda m, a, b, M: m.nn.functional.linear(M, M, M[0]), None),
    "reshape": (lambda m, a, b, M: a.reshape(2, 5), None),
    "permute": (lambda m, a, b, M: M.permute(1, 0), None),
    "getitem": (lambda m, a, b, M: a[3], None),
    "slice": (lambda m, a, b, M: a[1:5], None),
    "slices": (lambda m, a, b, M: M[1:3, ::2], None),
    "a < b": (lambda m, a, b, M: a < b, None),
    "where": (lambda m, a, b, M: m.where(a > b, a, b), None),
    "softmax": (
        lambda m, a, b, M: m.softmax(a, -1),
        lambda m, a, b, M: m.softmax(a, -1),
    ),
    "clip": (lambda m, a, b, M: m.clip(a, 0.2, 0.8), None),
    "cumsum": (lambda m, a, b, M: m.cumsum(a, 0), None),
    "concat": (lambda m, a, b, M: m.concat([a, b], 0), None),
    "stack": (lambda m, a, b, M: m.stack([a, b], 0), None),
    "trace": (lambda m, a, b, M: m.trace(M), None),
    "outer": (lambda m, a, b, M: m.outer(a, b), None),
    "kron": (lambda m, a, b, M: m.kron(M, M), None),
    "dot": (lambda m, a, b, M: m.dot(a, b), None),
    "roll": (lambda m, a, b, M: m.roll(a, 3, 0), None),
    "flip": (lambda m, a, b, M: m.flip(a, (0,)), None),
    "sort": (lambda m, a, b, M: m.sort(a, -1), None),
    "gelu": (lambda m, a, b, M: m.nn.functional.gelu(a), None),
    "pow 2": (lambda m, a, b, M: a**2, None),
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench.small_calls", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="of a call's name (all)")
    parser.add_argument("--rounds", type=int, default=21, help="blocks of each library (21)")
    parser.add_argument("--calls", type=int, default=1000, help="calls of a block (1000)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    return cli.guarded("bench.small_calls", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Time the calls one after the other and print a table."""
    import torch

    import needle as ndl

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, dtype="float32") for shape in ((10,), (10,), (4, 4))]
    ours = [ndl.Tensor(array, requires_grad=False) for array in arrays]
    theirs = [torch.from_numpy(array) for array in arrays]
    print("| call | needle | PyTorch | PyTorch / needle |\n|---|---|---|---|")
    for name, (mine, other) in CASES.items():
        if options.parts and not any(part in name for part in options.parts):
            continue
        other = other or mine
        with ndl.no_grad(), torch.inference_mode():
            pairs = [
                (block(mine, ndl, ours, options.calls), block(other, torch, theirs, options.calls))
                for _ in range(options.rounds + 1)
            ][1:]
        needle_time, torch_time = np.median(pairs, axis=0)
        low, middle, high = np.quantile([b / a for a, b in pairs], (0.25, 0.5, 0.75))
        ratio = f"{middle:.2f} ({low:.2f}-{high:.2f})"
        print(f"| {name} | {needle_time:.2f} | {torch_time:.2f} | {ratio} |", flush=True)
    return cli.OK


def block(function: Call, library: Any, tensors: Sequence[Any], calls: int) -> float:
    """The mean time of a call, in microseconds."""
    begin = time.perf_counter()
    for _ in range(calls):
        function(library, *tensors)
    return (time.perf_counter() - begin) / calls * 1e6


if __name__ == "__main__":
    sys.exit(main())
