"""Whether eager needle and compiled code slow each other down: a process that runs one, the other
and both in turn, compared with processes that run one of them alone.

In turn, each is called twice. What the first call finds in its caches is the other's, as after any
other work of that size; the second finds its own again, and what is left to slow it down is the
other's threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import apps.report
from apps.contestants import check_agreement
from bench import cases, contests
from needle_tvm.process import command_line as cli
from needle_tvm.process import timing
from needle_tvm.process.child import Child, load_function
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import thread_environment
from needle_tvm.process.timing import Result
from needle_tvm.text import duration

KINDS = ("eager", "compiled")
ALONE = "alone"
IN_TURN = ("in turn, first call", "in turn, second call")
# The blocks of a round: the kinds that the process has, and those that the block calls in turn.
BLOCKS = (
    (KINDS[:1], KINDS[:1]),
    (KINDS[1:], KINDS[1:]),
    (KINDS, KINDS[:1]),
    (KINDS, KINDS[1:]),
    (KINDS, KINDS),
)

_SECONDS = 600.0  # for a child to answer


def how(options: argparse.Namespace) -> str:
    """How the times are taken, in words."""
    return (
        f"{options.rounds} alternating blocks of {options.block_seconds:g} s of each kind; a "
        "process for each kind and one for both (median, quartiles)"
    )


def run_case(case: cases.Case, options: argparse.Namespace) -> dict[str, Any]:
    """The seconds of a call of each kind in each setting, as JSON values: `seconds` (one for each
    round) and `ratio`, the time over that alone, round by round."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("needle-beside-"))
        bar = stack.enter_context(cli.progress())
        subject = case.subject(folder)
        entries = [subject.eager(options.threads), subject.called(cases.TUNED, options.threads)]
        check_agreement(timing.collect_outputs(entries))
        setups = {
            kind: {"factory": entry.factory, "kwargs": dict(entry.kwargs)}
            for kind, entry in zip(KINDS, entries, strict=True)
        }
        children = {
            kinds: stack.enter_context(
                Child(
                    " and ".join(kinds),
                    f"{__name__}:serve",
                    {kind: setups[kind] for kind in kinds},
                    timeout=_SECONDS,
                    environment=thread_environment(options.threads),
                )
            )
            for kinds in dict.fromkeys(kinds for kinds, _ in BLOCKS)
        }
        for child in children.values():
            child.receive("start")
        results: dict[tuple[str, str], Result] = {}

        def show(number: int) -> None:
            bar(number, options.rounds, f"{case.name}: round {number + 1} of {options.rounds}")

        for process, kinds in contests.alternating(BLOCKS, options.rounds, show):
            answer = children[process].ask(kinds=kinds, seconds=options.block_seconds)
            for kind, seconds in answer["seconds"].items():
                for where, each in zip(settings(process, kinds), seconds, strict=True):
                    found = results.setdefault((kind, where), Result(f"{kind} {where}", []))
                    found.seconds.append(each)
    return {
        "case": case.name,
        "kinds": [
            {
                "kind": kind,
                "setting": where,
                "seconds": found.seconds,
                "ratio": asdict(timing.ratio(results[kind, ALONE], found)),
            }
            for (kind, where), found in sorted(results.items())
        ],
    }


def settings(process: Sequence[str], kinds: Sequence[str]) -> tuple[str, ...]:
    """In words, where the calls of a block of `kinds` ran: in a process that has so many kinds."""
    if len(process) == 1:
        return (ALONE,)
    return IN_TURN if len(kinds) > 1 else ("in the process of both",)


def table(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Headings and a row for each kind and setting of each case."""
    rows = [["case", "kind", "setting", "median", "its time / alone"]]
    for case in results:
        for each in case["kinds"]:
            median = duration(timing.Spread.of(each["seconds"]).median)
            ratio = apps.report.ratio(each["ratio"])
            rows.append([case["case"], each["kind"], each["setting"], median, ratio])
    return rows


# The child's side.


def serve(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A service: for each message the mean `seconds` of a call of each of its `kinds`, for about so
    many seconds of each; of several, called in turn, those of a first and a second call."""
    calls = {
        kind: load_function(each["factory"])(**each["kwargs"])[0] for kind, each in setup.items()
    }
    for call in calls.values():
        call()
    yield {}
    for message in messages:
        kinds = message["kinds"]
        spent = {kind: [0.0] * (2 if len(kinds) > 1 else 1) for kind in kinds}
        count = 0
        while sum(map(sum, spent.values())) < message["seconds"] * len(kinds):
            for kind in kinds:
                for number in range(len(spent[kind])):
                    start = time.perf_counter()
                    calls[kind]()
                    spent[kind][number] += time.perf_counter() - start
            count += 1
        means = {kind: [each / count for each in seconds] for kind, seconds in spent.items()}
        yield {"seconds": means}
