"""`make gpu-test` and `make gpu-bench`: needle and its compiled models on a machine with a GPU.

Nothing needs to be built or installed beforehand: both build needle's native modules for the GPU
they find, into this folder, and if TVM cannot be imported and `.gpu/setup.sh` is there, which
unpacks it without a network, they source that first.

`test` runs the tests marked `gpu`, models and ops compiled for the GPU, the tests of arrays and ops
on the device, and some of those under compute-sanitizer. `bench` measures models, training, a
matmul, the search and the lab beside PyTorch, in sections, and writes DATE-gpu-NAME.json, .md and
.png, again after each section. Sections without time are listed, and `--resume FILE.json` goes on
there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bench.gpu import host, run, sections, suite

_SECONDS = 570.0  # a host that takes a command for ten minutes sees its end


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _rounds(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bench.gpu", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tests = commands.add_parser("test", help="run the tests; further arguments go to pytest")
    timed = commands.add_parser("bench", help="measure beside PyTorch")
    for each, names in ((tests, suite.TITLES), (timed, (*sections.GROUPS, *sections.SECTIONS))):
        each.add_argument("--seconds", type=_seconds, default=_SECONDS, help="(%(default)s)")
        told = f"of {', '.join(names)} (all)"
        each.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=told)
    timed.add_argument("--rounds", type=_rounds, default=7, help="timed blocks each (%(default)s)")
    out = os.environ.get("OUT") or "docs/results"
    timed.add_argument("--out", type=Path, default=out, help="folder to write to (%(default)s)")
    timed.add_argument("--resume", type=Path, metavar="FILE", help="a result to go on with")
    timed.add_argument("--rehearse", action="store_true", help="on the processor, in small")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = make_parser().parse_known_args(given)
    if rest and options.command != "test":
        make_parser().error(f"unrecognized arguments: {' '.join(rest)}")
    started = float(os.environ.get(host.STARTED, time.time()))
    rehearsal = options.command == "bench" and options.rehearse
    try:
        gpu = host.REHEARSAL if rehearsal else host.find_gpu()
        if not rehearsal:
            host.need_tools(options.command)
        host.set_up(given, started)
        print(f"gpu-{options.command}: {gpu.name}, {gpu.architecture}, driver {gpu.driver}")
        if not rehearsal:
            host.build(gpu.architecture)
        deadline = started + options.seconds
        if options.command == "test":
            return suite.run(options.only, rest, deadline)
        options.given = " ".join(given[1:])
        return run.run(options, gpu, deadline)
    except host.Refusal as refusal:
        sys.stderr.write(f"gpu-{options.command}: {refusal}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
