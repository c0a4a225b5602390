"""`python -m needle_tvm.check`: compile random programs at every stage and compare the results."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from needle_runtime.errors import InstallError
from needle_runtime.process import command_line as cli
from needle_runtime.text import printable
from needle_tvm import terminal

if TYPE_CHECKING:
    from needle_tvm.check.campaign.campaign import Summary

_KINDS = ("ops", "gradient", "dims", "torch", "onnx")
_NEEDS = {"torch": ("torch",), "onnx": ("onnx", "onnxruntime")}  # packages of a kind
_PROGRAMS = 10_000  # programs of each kind, if no seeds are given
_SAID_SECONDS = 2.0  # between two reports of progress


def make_parser() -> cli.Parser:
    parser = cli.Parser(prog="needle_tvm.check", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--kind",
        choices=_KINDS,
        action="append",
        help="kind of programs (default: all kinds whose packages are installed)",
    )
    add("--seeds", type=_seeds, metavar="A:B", help="seeds A to B - 1 (default: 10,000 new ones)")
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help="only part I of N parts")
    add("--processes", type=cli.positive, default=1, metavar="N", help="programs run at once (1)")
    add("--minutes", type=cli.minutes, metavar="M", help="start no program after M minutes")
    add(
        "--out",
        type=Path,
        default=Path("out/campaign/programs.jsonl"),
        metavar="FILE",
        help="file of results, one per line; a run continues where it ends (%(default)s)",
    )
    add(
        "--shrink",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time to shrink each failing program, 0 for no shrinking (%(default)g)",
    )
    add(
        "--every-stage",
        action="store_true",
        help="compile each program at every stage, optimised (default: at one drawn by its seed)",
    )
    add("--stop", action="store_true", help="stop at the first failure")
    return parser


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        start = cli.natural(first)
        end = cli.natural(last) if colon else start + 1
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B") from None
    if end <= start:
        raise argparse.ArgumentTypeError(f"{text}: no seeds")
    return range(start, end)


def _shard(text: str) -> tuple[int, int]:
    first, _, last = text.partition("/")
    try:
        number, shards = cli.positive(first), cli.positive(last)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N") from None
    if number > shards:
        raise argparse.ArgumentTypeError(f"{text}: there are {shards} parts")
    return number, shards


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = make_parser().parse_args(arguments)
    return cli.guarded("needle_tvm.check", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Run the campaign and print its results, even if it is interrupted."""
    kinds = list(dict.fromkeys(options.kind or _KINDS))
    console = terminal.console(stderr=True)
    for kind, packages in _NEEDS.items():
        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        if kind not in kinds or not missing:
            continue
        if options.kind:
            raise InstallError(f"programs of kind {kind}: pip install {' '.join(missing)}")
        kinds.remove(kind)
        console.print(f"no {' and '.join(missing)} here: no programs of kind {kind}")
    cli.check_writable(options.out)
    seeds = options.seeds
    if seeds is None:
        base = int(time.time()) // 10 * 10
        seeds = range(base, base + _PROGRAMS)
    console.print(f"seeds {seeds.start}:{seeds.stop} of {', '.join(kinds)}")

    from needle_tvm.check.campaign import campaign

    plan = campaign.Plan(
        kinds=kinds,
        seeds=seeds,
        shard=options.shard,
        processes=options.processes,
        seconds=options.minutes and 60 * options.minutes,
        shrink_seconds=options.shrink,
        stop=options.stop,
        every_stage=options.every_stage,
    )
    results = campaign.Results(options.out)
    try:
        with terminal.progress() as bar:
            campaign.run(plan, results, _teller(console, bar))
    finally:
        # Read from the file: an interrupt may have come before the last result was noted in memory.
        found = campaign.Results(options.out).of(plan.programs())
        summaries = campaign.summaries(found)
        _print(summaries, found, options.out)
    return cli.OK if all(summary.is_sound for summary in summaries) else cli.FAILED


def _teller(console: Any, bar: terminal.Progress) -> Callable[[int, int, dict[str, Any]], None]:
    """Return a function that prints every failure, and the overall progress from time to time."""
    said = 0.0

    def say(done: int, total: int, result: dict[str, Any]) -> None:
        nonlocal said
        if "script" in result:
            console.print(_failure(result), soft_wrap=True)
        if time.monotonic() - said >= _SAID_SECONDS or done == total:
            said = time.monotonic()
            bar(done, total, f"{done} of {total} programs")

    return say


def _failure(result: dict[str, Any]) -> str:
    what = printable(str(result["what"])[:300])
    return f"{result['kind']} {result['seed']}: {result['verdict']} at {result['where']}: {what}"


def _print(
    summaries: Sequence[Summary],
    found: Sequence[dict[str, Any]],
    out: Path,
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from needle_tvm.check.campaign.campaign import VERDICTS, reasons, undrawn

    console = terminal.console()
    table = Table(title="random programs", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("kind", "programs", *VERDICTS, "share refused", "seconds each"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for each in summaries:
        table.add_row(
            each.kind,
            str(each.programs),
            *(str(each.counts[verdict]) for verdict in VERDICTS),
            f"{100 * each.refused:.1f} %",
            f"{each.seconds / each.programs:.1f}",
        )
    console.print(table)
    for reason, count in reasons(found):
        console.print(f"refused {count}: {printable(reason)}", soft_wrap=True)
    for reason, count in undrawn(found):
        console.print(f"not drawn {count}: {printable(reason)}", soft_wrap=True)
    for result in found:
        if "script" in result:
            console.print(_failure(result), soft_wrap=True)
            console.print(f"  {out.with_suffix('.failures') / result['script']}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
