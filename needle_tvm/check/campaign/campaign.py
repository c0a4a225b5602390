"""Run a campaign of random programs, keep their results, and summarise them.

`python -m needle_tvm.check` runs it. Results are lines of JSON, one per program, in a file that
another run continues. A result belongs to the needle sources that produced it
(`versions.source_digest`): results of other sources are kept but not counted.
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
from needle_tvm.check.campaign.judge import DIMS, GRADIENT, KINDS, ONNX, OPS, TORCH
from needle_tvm.check.campaign.verdicts import FOREIGN, REFUSED, RIGHT, cheaper
from needle_tvm.tune.measure.workers import OK, Limits, Outcome, Workers

MOST_REFUSED = 0.02  # largest accepted fraction of a kind's programs

LIMITS = Limits(seconds=300.0, memory=6 << 30)
_AT_ONCE = 50  # programs of one kind before the next kind

_SERVICES = {
    OPS: "needle_tvm.check.campaign.service:serve",
    GRADIENT: "needle_tvm.check.campaign.service:serve",
    DIMS: "needle_tvm.check.campaign.service:serve",
    TORCH: "needle_tvm.check.campaign.torch.service:serve",
    ONNX: "needle_tvm.check.campaign.onnx.service:serve",
}


@dataclass(frozen=True)
class Plan:
    """The programs to run, and the processes and time to run them with.

    `shard` is (i, n), with i from 1 to n: each seed belongs to one of n shards. `seconds` is the
    limit of the whole run, after which no program is started; `shrink_seconds` is the limit for
    shrinking each failure, 0 for no shrinking. `stop` ends the run at the first failure. `services`
    are the processes' functions by kind. A program is compiled at one variant, and mostly without
    LLVM's optimisations (`verdicts.cheaper`); with `every_stage`, at all variants and optimised.
    """

    kinds: Sequence[str]
    seeds: range
    shard: tuple[int, int] = (1, 1)
    processes: int = 1
    seconds: float | None = None
    shrink_seconds: float = 60.0
    stop: bool = False
    every_stage: bool = False
    limits: Limits = LIMITS
    services: dict[str, str] = field(default_factory=lambda: dict(_SERVICES))

    def programs(self) -> list[tuple[str, int]]:
        """Return (kind, seed) of all programs in this shard, alternating between the kinds."""
        number, shards = self.shard
        seeds = [seed for seed in self.seeds if seed % shards == number % shards]
        return [
            (kind, seed)
            for at in range(0, len(seeds), _AT_ONCE)
            for kind in self.kinds
            for seed in seeds[at : at + _AT_ONCE]
        ]


class Results:
    """The results in a file; only results of the current sources count. `path` None means no file.

    A run may have been killed while writing, so lines that are not results are skipped.
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
        """Return the existing results of these programs."""
        return [self._found[each] for each in programs if each in self._found]

    def add(self, result: dict[str, Any]) -> None:
        """Store a result; it is in the file when this returns."""
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
    """Run the programs of a `plan` that have no result in `results` yet.

    `say` is called with (done, total, result) after each program. Failures are shrunk and written
    as scripts beside the results.
    """
    programs = plan.programs()
    left = [each for each in programs if each not in results]
    done = len(programs) - len(left)
    end = None if plan.seconds is None else time.monotonic() + plan.seconds
    with _Pools(plan) as pools:
        for result in _outcomes(left, pools, end, plan.every_stage):
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
    programs: Sequence[tuple[str, int]], pools: _Pools, end: float | None, every_stage: bool
) -> Iterator[dict[str, Any]]:
    for kind, group in itertools.groupby(programs, key=lambda each: each[0]):
        seeds = [seed for _, seed in group]
        requests: list[dict[str, Any]] = [{"kind": kind, "seed": seed} for seed in seeds]
        if not every_stage:
            requests = [{**each, **cheaper(each["seed"])} for each in requests]
        for number, outcome in pools.all(kind).map(requests):
            yield {"kind": kind, "seed": seeds[number], **answer(outcome)}
            if end is not None and time.monotonic() >= end:
                return


def answer(outcome: Outcome) -> dict[str, Any]:
    """Return a process's answer for a program, or a description of how it failed to answer."""
    if outcome.kind == OK:
        return {**outcome.value, "seconds": round(outcome.seconds, 2)}
    # The judge catches all errors of programs, so any other error is a fault of the judge.
    verdict = outcome.kind if outcome.kind in FAILURES else FOREIGN
    seconds = round(outcome.seconds, 2)
    return {"verdict": verdict, "where": "process", "what": outcome.detail, "seconds": seconds}


class _Pools:
    """Processes by service, started when first used."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._made: dict[tuple[str, int], Workers] = {}

    def __enter__(self) -> _Pools:
        return self

    def __exit__(self, *error: object) -> None:
        for pool in self._made.values():
            pool.close()

    def all(self, kind: str) -> Workers:
        """Return the processes for a campaign's programs."""
        return self._pool(kind, self._plan.processes)

    def alone(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request, even while the other processes are busy."""
        return answer(self._pool(request["kind"], 0).call(request))

    def _pool(self, kind: str, processes: int) -> Workers:
        service = self._plan.services[kind]
        if (service, processes) not in self._made:
            self._made[service, processes] = Workers(
                "campaign", service, processes=max(1, processes), limits=self._plan.limits
            )
        return self._made[service, processes]


# The final summary.


@dataclass(frozen=True)
class Summary:
    """The verdicts on the programs of one kind."""

    kind: str
    counts: Counter[str]
    seconds: float

    @property
    def programs(self) -> int:
        return sum(self.counts.values())

    @property
    def refused(self) -> float:
        """The fraction of programs that were refused."""
        return self.counts[REFUSED] / max(1, self.programs)

    @property
    def is_sound(self) -> bool:
        """Whether nothing failed and few programs were refused."""
        return self.refused <= MOST_REFUSED and not any(self.counts[name] for name in FAILURES)


def summaries(results: Iterable[dict[str, Any]]) -> list[Summary]:
    """Return one summary for each kind with results."""
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for result in results:
        by_kind[result["kind"]].append(result)
    return [
        Summary(kind, Counter(r["verdict"] for r in found), sum(r["seconds"] for r in found))
        for kind, found in by_kind.items()
        if found
    ]


def reasons(results: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the reasons for refusals, without numbers and names, each with its count."""
    refused = (result["what"] for result in results if result["verdict"] == REFUSED)
    return Counter(map(failures.normalised, refused)).most_common()


def undrawn(results: Iterable[dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the reasons for refusing steps because of dims, without the sizes in them, each with
    its count."""
    refused = (reason for result in results for reason in result.get("undrawn", ()))
    return Counter(map(failures.normalised_of_dims, refused)).most_common()


VERDICTS = (RIGHT, REFUSED, *FAILURES)
