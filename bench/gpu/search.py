"""A search with a bounded budget on the GPU, and what it found beside what our rules give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import cases
from bench.gpu import compiling, contest
from bench.gpu.settings import MODELS, OWN_BATCH, Settings
from needle_tvm.process.child import Child, ChildError
from needle_tvm.process.scratch import scratch_folder
from needle_tvm.process.threads import available_cores
from needle_tvm.words import error_line

_CONTEST_SECONDS = 12.0  # of a model: two processes
_LEAST_SECONDS = 15.0  # of a search: its workers start within some seconds
_TRIALS = 4  # of a rehearsal
SEARCHED = "needle tuned, searched"


def measure(settings: Settings) -> dict[str, Any]:
    """Each model at its own batch, searched for a like part of the time there is; `models`: what
    `contest.run` gives and what the search did, `failed` why others are not among them."""
    compiling.use_caches()
    found: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    names = MODELS[:1] if settings.rehearsal else MODELS
    for number, name in enumerate(names):
        seconds = settings.left / (len(names) - number) - _CONTEST_SECONDS
        if seconds < _LEAST_SECONDS and not settings.rehearsal:
            failed[name] = f"{max(seconds, 0.0):.0f} s were left for its search"
            continue
        try:
            found.append(_measure(name, seconds, settings))
        except ChildError as error:
            failed[name] = error_line(error)
    return {"models": found, "failed": failed}


def _measure(name: str, seconds: float, settings: Settings) -> dict[str, Any]:
    with scratch_folder("needle-gpu-") as folder:
        subject = cases.Subject.of(cases.Case(name, settings.batch(OWN_BATCH)), folder)
        # Compiling what was found takes a part of the time, and a search may end late.
        budget = {"trials": _TRIALS} if settings.rehearsal else {"minutes": 0.7 * seconds / 60}
        compiled = {}
        for title, options in ((cases.TUNED, {}), (SEARCHED, budget)):
            setup = {
                "recipe": subject.recipe,
                "options": {"target": settings.device, **options},
                "path": str(Path(folder, title.replace(" ", "-"))),
            }
            with Child(title, compiling.SERVICE, setup, timeout=settings.left) as child:
                compiled[title] = child.receive("search")
        threads = available_cores()
        entries = [
            contest.Entry(subject.exported(title, facts["path"], threads), ours=True)
            for title, facts in compiled.items()
        ]
        result = contest.run(entries, subject.exact(), settings)
        told = {"model": name, "batch": subject.case.batch, "budget": budget}
        return {**told, "compiled": compiled, **result}
