"""One of the three models at one batch: needle's ladder and PyTorch, in every precision, in one
contest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import apps.peers
from bench import cases
from bench.gpu import compiling, contest
from bench.gpu.settings import EITHER, OWN_BATCH, PRECISIONS, Settings, named
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import available_cores
from needle_tvm.process.timing import Contestant
from needle_tvm.stages import MEASURED, OWN

LADDER = ("noopt", "fused")  # the stages below `tuned`: at a model's own batch, in float32
COMPILED = ("torch-compile-plain", "torch-compile")
PEERS = ("torch", "torch-channels-last", *COMPILED)
EAGER, TUNED = cases.EAGER, cases.TUNED

# What tuning the peers leaves for the contest itself: a dozen processes start, then take turns.
_CONTEST_SECONDS = 45.0


def measure(name: str, batch: int, settings: Settings) -> dict[str, Any]:
    """The model of that name in `cases.MODELS`, as JSON values: `contest.run`'s, and `compiled`,
    what each of ours took to compile."""
    compiling.use_caches()
    with scratch_folder("needle-gpu-") as folder:
        subject = cases.Subject.of(cases.Case(name, settings.batch(batch)), folder)
        stages = (*LADDER, "tuned") if batch == OWN_BATCH else ("tuned",)
        choices = jobs_of(subject, [(EITHER, "tuned", MEASURED)], settings)
        own = [(f"needle {stage}", stage, OWN) for stage in stages]
        jobs = jobs_of(subject, own, settings)
        peers = peers_of(subject, settings)
        untuned = [c for c, key, _ in peers if key in COMPILED]
        # A peer that is not there is better than no contest.
        deadline = settings.deadline - _CONTEST_SECONDS
        with ThreadPoolExecutor(2) as beside:  # the processor's work beside the GPU's
            compiled = beside.submit(compiling.compile_all, jobs, settings)
            exact = beside.submit(subject.exact)
            failed = compiling.tune_peers(untuned, deadline)
        ready, not_compiled = compiled.result()
        measured, not_measured = compiling.compile_all(choices, settings, at_once=1)
        ready |= measured
        failed |= not_compiled | not_measured
        told = {"model": name, "batch": subject.case.batch, "compiled": ready}
        entries = ours(subject, ready, settings) + [
            contest.Entry(c, precision) for c, _, precision in peers if c.name not in failed
        ]
        found = contest.run(entries, exact.result(), settings)
        missing = apps.peers.missing(cases.MODELS[name].peer, PEERS)
        failed |= {peer: f"not installed: {', '.join(what)}" for peer, what in missing.items()}
        return {**told, **contest.gather(found, failed)}


def jobs_of(
    subject: cases.Subject, kinds: Sequence[tuple[str, str, str]], settings: Settings
) -> dict[str, dict[str, Any]]:
    """What `compiling.compile_all` takes for (name, stage, products of needle_tvm.compile): the
    stage tuned in each precision, others in float32."""
    return {
        named(name, precision): {
            "recipe": subject.recipe,
            "options": {
                "target": settings.device,
                "stage": stage,
                "dtype": precision,
                "products": by_whom,
            },
            "path": str(subject.folder / named(name, precision).replace(" ", "-")),
        }
        for name, stage, by_whom in kinds
        for precision in (PRECISIONS if stage == "tuned" else PRECISIONS[:1])
    }


def ours(
    subject: cases.Subject, ready: Mapping[str, Mapping[str, Any]], settings: Settings
) -> list[contest.Entry]:
    """needle eager, and what was compiled, by name."""
    threads = available_cores()
    found = [contest.Entry(subject.eager(threads, settings.device), ours=True)]
    for title, facts in ready.items():
        precision = next((p for p in PRECISIONS if title.endswith(f", {p}")), "float32")
        entry = subject.exported(title, facts["path"], threads)
        found.append(contest.Entry(entry, precision, ours=True))
    return found


def peers_of(subject: cases.Subject, settings: Settings) -> list[tuple[Contestant, str, str]]:
    """Each peer in each precision, with its key in apps/peers.py and the precision."""
    found = []
    for precision in PRECISIONS:
        if settings.rehearsal and precision == "tf32":
            continue  # a processor has none
        for key in PEERS:
            if settings.rehearsal and key in COMPILED:
                continue  # for a processor this takes a minute each
            where = {"device": settings.device, "precision": precision}
            for entry in subject.peers((key,), available_cores(), **where):
                found.append((replace(entry, name=named(entry.name, precision)), key, precision))
    return found
