"""Runs one contest, on a CPU or a GPU. Also has the options and the report of all benchmarks.

A contestant is called as its users call it, unless its name ends with CODE. A contestant of ours
whose name is X followed by RUNTIME calls the same code as X in another way.

The `options` of a benchmark are `rounds`, `block_seconds` and `threads`. Further options say how a
contest is run: `device` ("cpu" or "cuda"), `strict`, `timeout` (seconds that a step of a contestant
may take) and `alone` (names of contestants that start alone).
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import apps.peers
import needle as ndl
from apps.contestants import CODE, EAGER, RUNTIME, SETS, Disagreement, check_agreement
from needle_runtime.artifact.tolerance import UNIT_ROUNDOFF, worst
from needle_runtime.process import command_line as cli
from needle_runtime.process import timing
from needle_runtime.process.child import Child
from needle_runtime.process.threads import available_cores, thread_environment
from needle_runtime.target import host
from needle_runtime.text import error_line
from needle_tvm import terminal

Block = TypeVar("Block")
AGAIN = 4  # factor on the rounds of a case that the first run does not decide

NOTES = (
    f"contestants are called as users call them, on {SETS} sets of inputs in turn; X{CODE}: X's "
    f"code alone, inputs converted or bound beforehand; X{RUNTIME}: needle_runtime on arrays",
    f"a case had {AGAIN} times the rounds if the quartiles of the first run's ratio, the fastest "
    "peer's time over ours, lay on both sides of 1",
)

_STEP_SECONDS = 1800.0  # torch.compile's max-autotune takes minutes to start

_ROUNDINGS = 32  # roundings that may add up in a result: ten layers have a few each
_ON_GPU = 1e-4  # allowed error: a GPU adds some thousand float32 terms in any order


def make_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark on a CPU."""
    parser = cli.Parser(prog=f"python -m {program}", description=description, allow_abbrev=False)
    parser.set_defaults(device="cpu", strict=True, timeout=_STEP_SECONDS, alone=())
    add, length = parser.add_argument, "length of each (%(default)s)"
    add("--rounds", type=cli.positive, default=15, metavar="N", help="blocks of each (%(default)s)")
    add("--block-seconds", type=cli.seconds, default=0.2, metavar="S", help=length)
    cores = available_cores()
    add("--threads", type=cli.positive, default=cores, metavar="N", help="(%(default)s)")
    add("--out", type=Path, default=Path("out/bench"), metavar="DIR", help="(%(default)s)")
    return parser


def new_report(options: argparse.Namespace, names: Collection[str] = ()) -> dict[str, Any]:
    """Return a report without cases: machine, time, conditions and missing peers."""
    return {
        "machine": host.describe(options.threads),
        "date": host.now(),
        "needle": ndl.__version__,
        "rounds": options.rounds,
        "block_seconds": options.block_seconds,
        "peers_missing": apps.peers.missing(names),
        "cases": [],
    }


def run(
    name: str,
    entries: Sequence[timing.Contestant],
    options: argparse.Namespace,
    exact: Sequence[np.ndarray] | None = None,
    precision: str = "float32",
    tolerance: float = 0.0,
) -> dict[str, Any]:
    """Run one contest; return JSON values: times in seconds, ratios as a peer's time over ours.

    Entries whose names begin with "needle" are ours. All results are compared before any timing:
    with the float64 outputs `exact`, if given, otherwise with the first entry's results. With
    `exact`, `error` is the largest error of each contestant relative to the largest magnitude of
    the output. Operands of matmuls and convolutions are rounded to `precision`. Results may differ
    by `tolerance` times the largest magnitude, or by more if the precision or the device requires
    it. `calls` compares each contestant with the entry of its code alone, if there is one: it has
    the seconds that a call takes in addition, round by round.

    `failed` maps the name of each contestant that was left out to the reason. A peer that fails is
    left out; if the contest is not `strict`, so is any contestant that fails or gives a different
    result. A strict contest raises TimingError or Disagreement in these cases. Every contest raises
    TimingError if no contestant is left.
    """
    failed: dict[str, str] = {}
    allowed = max(tolerance, _ROUNDINGS * UNIT_ROUNDOFF.get(precision, 0.0))
    allowed = allowed if options.device == "cpu" else max(allowed, _ON_GPU)

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
        with terminal.progress() as bar:
            results = timing.contest(
                entries,
                rounds=options.rounds,
                block_seconds=options.block_seconds,
                idle_seconds=timing.IDLE_SECONDS[options.device],
                check=check,
                leave_out=leave_out,
                alone=options.alone,
                progress=lambda done, total, _: bar(done, total, name),
                timeout=options.timeout,
            )
    except timing.TimingError as error:
        if error.child not in failed:
            raise
        reasons = "; ".join(f"{who}: {why}" for who, why in failed.items())
        raise timing.TimingError(f"no contestant is left: {reasons}", error.details) from error
    results = [result for result in results if result.name not in failed]
    return case_of(name, results, options.rounds, exact, failed)


def case_of(
    name: str,
    results: Sequence[timing.Result],
    rounds: int,
    exact: Sequence[np.ndarray] | None = None,
    failed: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the JSON values of a contest with these results, as `run` describes them."""
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
    codes = {result.name: result for result in results if result.name.endswith(CODE)}
    calls = {
        result.name: asdict(timing.difference(result, codes[code_of(result.name)]))
        for result in results
        if result.name not in codes and code_of(result.name) in codes
    }
    found = {"case": name, "rounds": rounds, "contestants": contestants}
    found |= {"ratios": ratios, "calls": calls, "failed": dict(failed or {})}
    return found | fastest_peer(found)


def start(entry: timing.Contestant, service: str, timeout: float) -> Child:
    """Start the process of a contestant; its service gets the `factory` and `kwargs`."""
    environment = {**thread_environment(entry.threads or 1), **entry.env}
    setup = {"factory": entry.factory, "kwargs": dict(entry.kwargs)}
    return Child(entry.name, service, setup, timeout=timeout, environment=environment)


def ask(
    service: str,
    setup: Mapping[str, Any],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    name: str | None = None,
) -> dict[str, Any]:
    """Return a service's answer to a setup. The service has its own process. Raises ChildError if
    this process crashes or takes too long."""
    name = name or service.rpartition(":")[2]
    with Child(name, service, setup, timeout=timeout, environment=environment) as child:
        return child.receive(name)


def alternating(
    blocks: Sequence[Block], rounds: int, show: Callable[[int], None]
) -> Iterator[Block]:
    """Yield each block once per round, starting each round with a different block, and idle after
    each block. `show` is called with the number of each round."""
    for number in range(rounds):
        show(number)
        turn = number % len(blocks)
        for block in (*blocks[turn:], *blocks[:turn]):
            yield block
            time.sleep(timing.IDLE_SECONDS["cpu"])


def run_decided(
    name: str,
    entries: Sequence[timing.Contestant],
    options: argparse.Namespace,
    exact: Sequence[np.ndarray] | None = None,
) -> dict[str, Any]:
    """Return the results of `run`. If these do not show which contestant is faster, run once more
    with AGAIN times the rounds and return only the second results."""
    found = run(name, entries, options, exact)
    if not is_decided(found):
        longer = argparse.Namespace(**{**vars(options), "rounds": AGAIN * options.rounds})
        found = run(name, entries, longer, exact)
    return found


def is_decided(case: Mapping[str, Any]) -> bool:
    """Return whether all ratios are decided: for each of our compiled contestants that is called
    the way users call it, the quartiles of the fastest peer's ratio lie on one side of 1."""
    ratios = [
        ratios[case["fastest"]]
        for name, ratios in case["ratios"].items()
        if case.get("fastest") in ratios and is_called(name) and name != EAGER
    ]
    return not any(ratio["lower"] < 1 < ratio["upper"] for ratio in ratios)


def code_of(name: str) -> str:
    """Return the name of the code that a contestant calls."""
    return name.removesuffix(RUNTIME) + CODE


def is_called(name: str) -> bool:
    """Return whether users call the contestant this way: not its code alone, nor the runtime."""
    return not name.endswith((CODE, RUNTIME))


def is_ours(name: str) -> bool:
    """Return whether a contestant of this name is needle's."""
    return name.startswith("needle")


def base(case: Mapping[str, Any]) -> str | None:
    """Return the name of the case's contestant that peers are compared with: the last one of ours
    that is called the way users call it, or None."""
    return next((name for name in reversed(case["ratios"]) if is_called(name)), None)


def fastest_peer(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return {"fastest": name} for the peer with the lowest ratio to `base`, among peers called the
    way users call them; without a peer, return an empty dict."""
    name = fastest(case["ratios"].get(base(case), {}), code=False)
    return {"fastest": name} if name else {}


def fastest(ratios: Mapping[str, Any], code: bool) -> str | None:
    """Return the peer with the lowest ratio among peers called the way users call them or, with
    `code`, among peers' code alone; None without a peer. Ratios are used because a busy machine
    changes them less than times."""
    peers = [name for name in ratios if not is_ours(name) and name.endswith(CODE) == code]
    return min(peers, key=lambda name: ratios[name]["median"], default=None)


def worst_error(exact: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float | None:
    """Return the largest relative error; None if it is unbounded, since JSON has no infinity."""
    error = worst(exact, outputs)
    return error if math.isfinite(error) else None
