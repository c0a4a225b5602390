"""`make gpu-test` and `make gpu-bench`: needle and what it compiles on a machine with a GPU.

Nothing needs to be built or installed beforehand: both build needle's native modules for the GPU
they find, into this folder, and where TVM is not importable and `.gpu/setup.sh` is there, which
unpacks it without a network, that is sourced first.

`test` runs the tests marked `gpu`, models and ops compiled for the GPU, the tests of arrays and ops
on the device, and some of those under compute-sanitizer. `bench` measures models, training,
a product, the search and the lab beside PyTorch, in sections, and writes DATE-gpu-NAME.md, .json
and .png, again after each section. What does not fit into the time is listed as not measured, and
`--resume FILE.json` goes on there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from bench.gpu import bench, host, sections, steps

_TEST_SECONDS = 570


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
    tests = commands.add_parser("test", help="run all tests; further arguments go to pytest")
    tests.add_argument("--seconds", type=_seconds, default=_TEST_SECONDS, help="(%(default)s)")
    timed = commands.add_parser("bench", help="measure beside PyTorch")
    timed.add_argument("--seconds", type=_seconds, default=bench.SECONDS, help="(%(default)s)")
    timed.add_argument("--rounds", type=_rounds, default=7, help="timed blocks each (%(default)s)")
    names = (*sections.GROUPS, *sections.SECTIONS)
    timed.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)} (all)"
    )
    out = os.environ.get("OUT") or "docs/results"
    timed.add_argument("--out", default=out, help="folder to write to (%(default)s)")
    timed.add_argument("--resume", metavar="FILE", help="a result whose sections are kept")
    timed.add_argument("--rehearse", action="store_true", help="on the processor, in small")
    page = commands.add_parser("page", help="write the page of a result again")
    page.add_argument("file", type=Path)
    one = commands.add_parser("section", help="one section of bench, in this process")
    one.add_argument("name", choices=list(sections.SECTIONS))
    one.add_argument("--rounds", type=_rounds, default=7)
    one.add_argument("--deadline", type=_seconds, default=time.time() + bench.SECONDS)
    one.add_argument("--json", required=True)
    one.add_argument("--rehearse", action="store_true")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = make_parser().parse_known_args(given)
    if rest and options.command != "test":
        make_parser().error(f"unrecognized arguments: {' '.join(rest)}")
    if options.command == "section":
        return bench.run_one(options)
    started = float(os.environ.get(host.STARTED, time.time()))
    try:
        if options.command == "page":
            return bench.page(options.file)
        rehearsal = options.command == "bench" and options.rehearse
        gpu = host.REHEARSAL if rehearsal else host.find_gpu()
        if not rehearsal:
            host.need_tools(options.command)
        host.set_up(given, started)
        print(f"gpu-{options.command}: {gpu.name}, {gpu.architecture}, driver {gpu.driver}")
        if options.command == "test":
            return steps.test(rest, gpu.architecture, started + options.seconds)
        options.given = " ".join(given[1:])
        return bench.run(options, gpu, started)
    except host.Refusal as refusal:
        sys.stderr.write(f"gpu-{options.command}: {refusal}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
