"""One contest of a benchmark, on a CPU or a GPU, and the options and report head they all have.

`options` of a benchmark has `rounds`, `block_seconds` and `threads`; `device` ("cpu" or "cuda"),
`strict` and `timeout` (seconds that a step of a contestant may take) say how a contest is run.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import apps.peers
import needle as ndl
from apps.contestants import Disagreement, check_agreement
from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.threads import available_cores
from needle_tvm.target import host
from needle_tvm.words import error_line

_STEP_SECONDS = 1800.0  # torch.compile's max-autotune takes minutes to start

# The largest allowed error of a result, relative to its largest magnitude. This tells a wrong set-
# up from rounding: 32 roundings of an operand, since a model of ten layers has a few in each. A GPU
# adds up some thousand float32 terms in any order.
_ALLOWED = {"float32": 1e-5, "tf32": 32 * 2.0**-11, "bfloat16": 32 * 2.0**-8}
_ALLOWED_ON_GPU = {**_ALLOWED, "float32": 1e-4}


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark on a CPU."""
    parser = cli.Parser(prog=f"python -m {program}", description=description, allow_abbrev=False)
    parser.set_defaults(device="cpu", strict=True, timeout=_STEP_SECONDS)
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
    """A report without cases: where, when and how they are timed, and which peers are missing."""
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
    precision: str = "float32",
) -> dict[str, Any]:
    """One contest, as JSON values: times in seconds, ratios as the other's time over ours.

    Entries whose names begin with "needle" are ours. All results are compared before anything is
    timed: with `exact`, the outputs in float64, or with the first entry's. With `exact`, `error` is
    the largest error of each contestant relative to the largest magnitude of the output.
    Operands of matmuls and convolutions are rounded to `precision`.

    `failed` has the reason for each contestant that is left out by name: a peer that fails and, if
    the contest is not `strict`, any contestant that fails or computes something else. A strict
    contest raises TimingError or Disagreement for those, and any contest TimingError if none is
    left.
    """
    failed: dict[str, str] = {}
    allowed = (_ALLOWED if options.device == "cpu" else _ALLOWED_ON_GPU)[precision]

    def leave_out(error: timing.TimingError) -> bool:
        if options.strict and is_ours(error.child):
            return False
        failed[error.child] = error_line(error).removeprefix(f"{error.child}: ")
        return True

    def check(outputs: Mapping[str, timing.Outputs]) -> None:
        first, *_ = outputs
        named = ("the model in float64", exact) if exact is not None else (first, outputs[first])
        for each, arrays in outputs.items():
            try:
                check_agreement(dict([named, (each, arrays)]), {each: allowed})
            except Disagreement as error:
                if options.strict:
                    raise
                failed[each] = error_line(error)

    try:
        with cli.progress() as bar:
            results = timing.contest(
                entries,
                rounds=options.rounds,
                block_seconds=options.block_seconds,
                idle_seconds=timing.IDLE_SECONDS[options.device],
                check=check,
                leave_out=leave_out,
                in_turn=options.device != "cpu",  # torch.compile times candidates on the GPU
                progress=lambda done, total, _: bar(done, total, name),
                timeout=options.timeout,
            )
    except timing.TimingError as error:
        if error.child not in failed:
            raise
        reasons = "; ".join(f"{who}: {why}" for who, why in failed.items())
        raise timing.TimingError(f"no contestant is left: {reasons}", error.details) from error
    results = [result for result in results if result.name not in failed]
    contestants = [result.to_dict() for result in results]
    if exact is not None:
        for entry, result in zip(contestants, results, strict=True):
            entry["error"] = worst_error(exact, result.outputs)
    ratios = {
        mine.name: {
            peer.name: asdict(timing.ratio(mine, peer)) for peer in results if peer is not mine
        }
        for mine in results
        if is_ours(mine.name)
    }
    found = {"case": name, "contestants": contestants, "ratios": ratios, "failed": failed}
    return found | fastest_peer(found)


def is_ours(name: str) -> bool:
    """Whether a contestant of this name is needle's."""
    return name.startswith("needle")


def base(case: Mapping[str, Any]) -> str | None:
    """The last of ours in a case, which peers are compared with; None without one of ours."""
    return next(reversed(case["ratios"]), None)


def fastest_peer(case: Mapping[str, Any]) -> dict[str, Any]:
    """`fastest`: the peer with the lowest ratio to the last of ours; empty without a peer.

    A busy machine changes ratios less than times.
    """
    ratios = case["ratios"].get(base(case), {})
    peers = [name for name in ratios if not is_ours(name)]
    return {"fastest": min(peers, key=lambda name: ratios[name]["median"])} if peers else {}


def worst_error(exact: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float | None:
    """The largest relative error; None for one without bound, since JSON has no infinity."""
    worst = max(
        relative_difference(want, have.astype(want.dtype))
        for want, have in zip(exact, outputs, strict=True)
    )
    return worst if math.isfinite(worst) else None
