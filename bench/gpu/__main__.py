"""needle and its compiled models on a GPU, prepared on a machine without one.

`bundle` compiles everything here and packs it, with the packages that the host lacks, into .gpu/.
On the host, `bench` measures the contests of `plan.py` and `test` runs the tests that need a GPU.
Both unpack the bundle and need Python with NumPy, PyTorch, rich and pytest, but no compiler. `page`
writes the page and its picture from the archive of `bench`. `rehearse` does all of it here, on an
emulated GPU. docs/gpu.md has more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu import host, plan
from needle_runtime.process import command_line as cli
from tests import gpu_suite

_SECONDS = 570.0  # less than ten minutes, for hosts that limit a command to ten


def make_parser() -> argparse.ArgumentParser:
    parser = cli.Parser(prog="bench.gpu", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    bundled = commands.add_parser("bundle", help="compile and pack, on a machine without a GPU")
    bundled.add_argument("--arch", default="sm_90", help="the GPU's architecture (%(default)s)")
    bundled.add_argument("--python", default="3.12", help="the host's Python (%(default)s)")
    bundled.add_argument("--compiler", action="store_true", help="also bundle TVM's compiler")
    bundled.add_argument("--rehearsal", action="store_true", help="small, for the emulated GPU")
    bundled.add_argument("--out", type=Path, default=host.BUNDLE.parent, help="(%(default)s)")
    bundled.add_argument("--only", nargs="+", metavar="NAME", help="contests or steps (all)")
    tests = commands.add_parser("test", help="run the tests; further arguments go to pytest")
    tests.add_argument("--only", nargs="+", choices=gpu_suite.TITLES, metavar="NAME")
    timed = commands.add_parser("bench", help="compare with PyTorch")
    timed.add_argument("--only", nargs="+", metavar="NAME", help="contests or steps (all)")
    for each in (tests, timed):
        each.add_argument("--seconds", type=cli.seconds, default=_SECONDS, help="(%(default)s)")
    timed.add_argument(
        "--rounds", type=cli.positive, default=7, help="timed blocks each (%(default)s)"
    )
    out = os.environ.get("OUT") or "out/gpu"
    timed.add_argument("--out", type=Path, default=out, help="folder of the archive (%(default)s)")
    timed.add_argument(
        *("--resume",),
        type=Path,
        nargs="?",
        const=host.LAST,
        metavar="FILE",
        help="continue an archive (this machine's last)",
    )
    page = commands.add_parser("page", help="write the page of an archive")
    page.add_argument("archive", type=Path)
    page.add_argument("--out", type=Path, default=Path("docs/results"), help="(%(default)s)")
    rehearsed = commands.add_parser("rehearse", help="bundle, bench and page on an emulated GPU")
    rehearsed.add_argument("--python", default="3.12", help="(%(default)s)")
    rehearsed.add_argument("--only", nargs="+", metavar="NAME", help="contests or steps (all)")
    rehearsed.add_argument("--out", type=Path, default=Path("out/gpu"), help="(%(default)s)")
    commands.add_parser("plan", help="list the contests and their limits")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, rest = make_parser().parse_known_args(given)
    if rest and options.command != "test":
        make_parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.given = " ".join(given[1:])
    try:
        if getattr(options, "only", None) and options.command != "test":
            plan.chosen(options.only, plan.contests())
        return _COMMANDS[options.command](options, rest, given)
    except (host.Refusal, ValueError) as refusal:
        sys.stderr.write(f"gpu-{options.command}: {refusal}\n")
        return 1


def _on_host(options: argparse.Namespace, rest: list[str], given: list[str]) -> int:
    started = float(os.environ.get(host.STARTED, time.time()))
    here = host.find_gpu()
    manifest = host.read_manifest()
    host.check_runs(here, manifest)
    host.set_up(given, started)
    print(f"gpu-{options.command}: {here.name}, {here.arch}, driver {here.driver}", flush=True)
    deadline = started + options.seconds
    if options.command == "test":
        return gpu_suite.run(options.only, rest, deadline)
    from bench.gpu import run

    return run.run(options, here, manifest, deadline)


def _bundle(options: argparse.Namespace, rest: list[str], given: list[str]) -> int:
    from bench.gpu import bundle

    return bundle.run(options)


def _page(options: argparse.Namespace, rest: list[str], given: list[str]) -> int:
    from bench.gpu import page, run

    return page.write(run.read(options.archive), options.out)


def _rehearse(options: argparse.Namespace, rest: list[str], given: list[str]) -> int:
    from bench.gpu import rehearse

    return rehearse.run(options)


def _plan(options: argparse.Namespace, rest: list[str], given: list[str]) -> int:
    found = plan.contests().values()
    for step in sorted({contest.step for contest in found}):
        of_step = [contest for contest in found if contest.step == step]
        print(f"step {step}: at most {sum(contest.seconds for contest in of_step):.0f} s")
        for contest in of_step:
            print(f"  {contest.name}: at most {contest.seconds:.0f} s")
    return 0


_COMMANDS = {
    "bench": _on_host,
    "bundle": _bundle,
    "page": _page,
    "plan": _plan,
    "rehearse": _rehearse,
    "test": _on_host,
}

if __name__ == "__main__":
    sys.exit(main())
