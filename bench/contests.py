"""What the benchmarks share: their options, the head of a report, one contest."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import apps.contestants
import apps.peers
import needle as ndl
from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.threads import available_cores
from needle_tvm.target import host
from needle_tvm.words import error_line

_STEP_SECONDS = 1800.0  # torch.compile's max-autotune takes minutes to start


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


def new_report(
    options: argparse.Namespace, peers_of: str, names: Collection[str] = ()
) -> dict[str, Any]:
    """What stands above the cases: where, when, how, and which of the peers `names` are missing."""
    return {
        "machine": host.describe(options.threads),
        "date": host.now(),
        "needle": ndl.__version__,
        "rounds": options.rounds,
        "block_seconds": options.block_seconds,
        "peers_missing": apps.peers.missing(peers_of, names),
        "cases": [],
    }


def run(
    name: str,
    entries: Sequence[timing.Contestant],
    options: argparse.Namespace,
    exact: Sequence[np.ndarray] | None = None,
) -> dict[str, Any]:
    """One contest, as JSON values: times in seconds, ratios as peer's time / ours.

    Ours are the entries whose names begin with "needle". With `exact`, the outputs in float64, each
    contestant's largest error is noted, relative to the largest magnitude of the output. A peer
    that fails is left out, and `failed` says why by its name; one that computes something else is
    an error.
    """
    failed: dict[str, str] = {}
    while True:
        try:
            results = _contest(name, [e for e in entries if e.name not in failed], options)
            break
        except timing.TimingError as error:
            if is_ours(error.child) or error.child not in {entry.name for entry in entries}:
                raise
            failed[error.child] = error_line(error)
    ours = [result for result in results if is_ours(result.name)]
    contestants = [result.to_dict() for result in results]
    if exact is not None:
        for entry, result in zip(contestants, results, strict=True):
            entry["error"] = worst_error(exact, result.outputs)
    return {
        "case": name,
        "contestants": contestants,
        "ratios": {
            mine.name: {
                peer.name: asdict(timing.ratio(mine, peer)) for peer in results if peer is not mine
            }
            for mine in ours
        },
        **({"failed": failed} if failed else {}),
    }


def _contest(
    name: str, entries: Sequence[timing.Contestant], options: argparse.Namespace
) -> list[timing.Result]:
    with cli.progress() as bar:
        return timing.contest(
            entries,
            rounds=options.rounds,
            block_seconds=options.block_seconds,
            check=apps.contestants.check_agreement,
            progress=lambda done, total, _: bar(done, total, name),
            timeout=_STEP_SECONDS,
        )


def is_ours(name: str) -> bool:
    """Whether a contestant of this name is needle's."""
    return name.startswith("needle")


def fastest_peer(found: Mapping[str, Any]) -> dict[str, Any]:
    """`fastest`: the name of the peer with the lowest ratio to the last of ours, which the drift of
    a busy machine changes less than times; empty where there is no peer."""
    ratios = list(found["ratios"].values())[-1]
    peers = [name for name in ratios if not is_ours(name)]
    return {"fastest": min(peers, key=lambda name: ratios[name]["median"])} if peers else {}


def worst_error(exact: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float | None:
    """JSON has no infinity: an error without bound is None."""
    worst = max(
        relative_difference(want, have.astype(want.dtype))
        for want, have in zip(exact, outputs, strict=True)
    )
    return worst if math.isfinite(worst) else None
