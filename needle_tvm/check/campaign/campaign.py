"""A campaign of random programs: which are run, what is kept of them, and what they came to.

Results are lines of JSON, one a program, in a file that another run goes on with. A result belongs
to the sources of needle it was found with (`versions.source_digest`): those of others are kept and
not counted.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from needle_tvm._tvm import versions
from needle_tvm.check.campaign import failures
from needle_tvm.check.campaign.failures import FAILURES
from needle_tvm.check.campaign.judge import GRADIENT, KINDS, OPS, TORCH
from needle_tvm.check.campaign.verdicts import FOREIGN, REFUSED, RIGHT
from needle_tvm.tune.measure.workers import OK, Limits, Outcome, Workers

MOST_REFUSED = 0.02  # of the programs of a kind

LIMITS = Limits(seconds=300.0, memory=6 << 30)
_AT_ONCE = 50  # programs of one kind before those of the next

_SERVICES = {
    OPS: "needle_tvm.check.campaign.service:serve",
    GRADIENT: "needle_tvm.check.campaign.service:serve",
    TORCH: "needle_tvm.check.campaign.torch.service:serve",
}


@dataclass(frozen=True)
class Plan:
    """Which programs are run, and on how many processes.

    `shard` is (i, n), from 1 to n: each seed is in one of n shards. `seconds` is for all, after
    which no program is begun; `shrink_seconds` for each failure, 0 for none. `stop`: at the first
    failure. `services` are the processes' functions by kind.
    """

    kinds: Sequence[str]
    seeds: range
    shard: tuple[int, int] = (1, 1)
    processes: int = 1
    seconds: float | None = None
    shrink_seconds: float = 60.0
    stop: bool = False
    limits: Limits = LIMITS
    services: dict[str, str] = field(default_factory=lambda: dict(_SERVICES))

    def programs(self) -> list[tuple[str, int]]:
        """(kind, seed) of all in this shard, the kinds in turn."""
        number, shards = self.shard
        seeds = [seed for seed in self.seeds if seed % shards == number % shards]
        return [
            (kind, seed)
            for at in range(0, len(seeds), _AT_ONCE)
            for kind in self.kinds
            for seed in seeds[at : at + _AT_ONCE]
        ]


class Results:
    """The lines of a file, of which those of these sources count. `path` None keeps no file.

    Another run may have been killed as it wrote: what is no line of ours is passed over.
    """

    def __init__(self, path: Path | None) -> None:
        self.path, self.digest = path, versions.source_digest()
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            lines = file.readlines()
            if lines and not lines[-1].endswith(b"\n"):
                file.write(b"\n")
        for line in lines:
            self._take(line)

    def __contains__(self, program: object) -> bool:
        return program in self._found

    def of(self, programs: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
        """The results there are of these programs."""
        return [self._found[each] for each in programs if each in self._found]

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result, in the file too, which has it when this returns."""
        result = {**result, "digest": self.digest}
        self._found[result["kind"], result["seed"]] = result
        if self.path is not None:
            line = json.dumps(result).encode() + b"\n"
            with self.path.open("ab", buffering=0) as file:  # one write: shards may share a file
                file.write(line)

    def _take(self, line: bytes) -> None:
        try:
            result = json.loads(line)
            if result["digest"] == self.digest:
                self._found[result["kind"], int(result["seed"])] = result
        except (ValueError, KeyError, TypeError):
            return


def run(plan: Plan, results: Results, say: Callable[[int, int, dict[str, Any]], None]) -> None:
    """Run the programs of a plan that have no result yet.

    `say` is called with (done, of how many, result) after each. Failures are made small and written
    as scripts beside the results.
    """
    programs = plan.programs()
    left = [each for each in programs if each not in results]
    done = len(programs) - len(left)
    end = None if plan.seconds is None else time.monotonic() + plan.seconds
    with _Pools(plan) as pools:
        for result in _outcomes(left, pools, end):
            done += 1
            failed = result["verdict"] in FAILURES
            if failed and results.path is not None:
                folder = results.path.with_suffix(".failures")
                limit = plan.limits.seconds
                path = failures.write(folder, result, pools.alone, plan.shrink_seconds, limit)
                result["script"] = path.name
            result.pop("program", None)  # the seed is enough
            results.add(result)
            say(done, len(programs), result)
            if failed and plan.stop:
                return


def _outcomes(
    programs: Sequence[tuple[str, int]], pools: _Pools, end: float | None
) -> Iterator[dict[str, Any]]:
    for kind, group in itertools.groupby(programs, key=lambda each: each[0]):
        seeds = [seed for _, seed in group]
        requests = [{"kind": kind, "seed": seed} for seed in seeds]
        for number, outcome in pools.all(kind).map(requests):
            yield {"kind": kind, "seed": seeds[number], **answer(outcome)}
            if end is not None and time.monotonic() >= end:
                return


def answer(outcome: Outcome) -> dict[str, Any]:
    """What a process said of a program; of one that did not answer, how that came about."""
    if outcome.kind == OK:
        return {**outcome.value, "seconds": round(outcome.seconds, 2)}
    # An error that the judge does not catch is a fault of the judge's.
    verdict = outcome.kind if outcome.kind in FAILURES else FOREIGN
    seconds = round(outcome.seconds, 2)
    return {"verdict": verdict, "where": "process", "what": outcome.detail, "seconds": seconds}


class _Pools:
    """Processes by service, started when first asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: dict[tuple[str, int], Workers] = {}

    def __enter__(self) -> _Pools:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._made.values():
            pool.close()

    def all(self, kind: str) -> Workers:
        """The processes for a campaign's programs."""
        return self._pool(kind, self._plan.processes)

    def alone(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to one request, while the others may be at work."""
        return answer(self._pool(request["kind"], 0).call(request))

    def _pool(self, kind: str, processes: int) -> Workers:
        service = self._plan.services[kind]
        if (service, processes) not in self._made:
            self._made[service, processes] = Workers(
                "campaign", service, processes=max(1, processes), limits=self._plan.limits
            )
        return self._made[service, processes]


# What is said in the end


@dataclass(frozen=True)
class Summary:
    """What the programs of one kind came to."""

    kind: str
    counts: Counter[str]
    seconds: float

    @property
    def programs(self) -> int:
        return sum(self.counts.values())

    @property
    def refused(self) -> float:
        """The share that was refused."""
        return self.counts[REFUSED] / max(1, self.programs)

    @property
    def is_sound(self) -> bool:
        """Whether nothing failed, and little was refused."""
        return self.refused <= MOST_REFUSED and not any(self.counts[name] for name in FAILURES)


def summaries(results: Iterable[dict[str, Any]]) -> list[Summary]:
    """One for each kind there is."""
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for result in results:
        by_kind[result["kind"]].append(result)
    return [
        Summary(kind, Counter(r["verdict"] for r in found), sum(r["seconds"] for r in found))
        for kind, found in by_kind.items()
        if found
    ]


def reasons(results: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Why programs were refused, and how many each; numbers and names are left out."""
    refused = (result["what"] for result in results if result["verdict"] == REFUSED)
    return Counter(map(failures.normalised, refused)).most_common()


VERDICTS = (RIGHT, REFUSED, *FAILURES)
