"""What the benchmarks share: their options, the head of a report, one contest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import needle as ndl
from benchmarks import apps
from needle_tvm import command_line as cli
from needle_tvm import host, timing
from needle_tvm.threads import available_cores


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser of the options every benchmark has."""
    parser = cli.Parser(prog=f"python -m {program}", description=description, allow_abbrev=False)
    add, length = parser.add_argument, "length of each (%(default)s)"
    add("--rounds", type=cli.positive, default=15, metavar="N", help="blocks of each (%(default)s)")
    add("--block-seconds", type=cli.seconds, default=0.2, metavar="S", help=length)
    cores = available_cores()
    add("--threads", type=cli.positive, default=cores, metavar="N", help="(%(default)s)")
    add("--out", type=Path, default=Path("out/bench"), metavar="DIR", help="(%(default)s)")
    return parser


def new_report(options: argparse.Namespace, peers_of: str) -> dict[str, Any]:
    """What stands above the cases: where, when, how, and which peers of a model are missing."""
    return {
        "machine": host.describe(options.threads),
        "date": host.now(),
        "needle": ndl.__version__,
        "rounds": options.rounds,
        "block_seconds": options.block_seconds,
        "peers_missing": apps.peers.missing(peers_of),
        "cases": [],
    }


def run(
    name: str, entries: Sequence[timing.Contestant], options: argparse.Namespace
) -> dict[str, Any]:
    """One contest, as JSON values: times in seconds, ratios as peer's time / ours.

    Ours are the entries whose names begin with "needle".
    """
    with cli.progress() as bar:
        results = timing.contest(
            entries,
            rounds=options.rounds,
            block_seconds=options.block_seconds,
            check=apps.contestants.check_agreement,
            progress=lambda done, total, _: bar(done, total, name),
        )
    ours = [result for result in results if result.name.startswith("needle")]
    return {
        "case": name,
        "contestants": [result.to_dict() for result in results],
        "ratios": {
            mine.name: {
                peer.name: asdict(timing.ratio(mine, peer)) for peer in results if peer is not mine
            }
            for mine in ours
        },
    }
