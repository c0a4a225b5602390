"""What is wanted on a GPU, and whether a result has it. Standard library only.

A ratio is the other's time over ours, the median over blocks taken in turn: above 1 ours is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.gpu.settings import (
    EITHER,
    GEMM,
    LARGE_BATCH,
    MODELS,
    OWN_BATCH,
    PRECISIONS,
    STEPS,
    named,
)

FASTER = {OWN_BATCH: 1.3, LARGE_BATCH: 1.0}  # than the best of PyTorch, by batch
EAGER = 1 / 1.2  # "within 1.2 times PyTorch eager's time"
PRODUCT = 0.9  # of cuBLAS

MET, MISSED, OPEN = "met", "not met", "not measured"

# The project that this one began as, on an NVIDIA T4: time of its eager models over that of TVM's
# (1 / 0.1361687547, 1 / 0.05765534620, 1 / 0.04388941894), with batch 8 and the same models.
PUBLISHED = {"mlp": 1 / 0.1361687547, "conv": 1 / 0.0576553462, "transformer": 1 / 0.04388941894}


@dataclass(frozen=True)
class Bar:
    """One thing that is wanted: `measured` is a ratio, None where there is none; `note` says beside
    what, or why not."""

    text: str
    wanted: float
    measured: float | None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.measured is None:
            return OPEN
        return MET if self.measured >= self.wanted else MISSED

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "verdict": self.verdict}


def ratio(ours: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The median of the other's time over ours, block by block."""
    pairs = zip(ours["blocks"], other["blocks"], strict=True)
    return statistics.median(theirs / mine for mine, theirs in pairs)


def entry(section: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The contestant of that name, None where it has no times."""
    return next((one for one in section.get("contestants", ()) if one["name"] == name), None)


def fastest(
    section: Mapping[str, Any], ours: Mapping[str, Any]
) -> tuple[float, Mapping[str, Any]] | None:
    """The lowest ratio of a peer of the same precision to ours, and that peer."""
    found = [
        (ratio(ours, one), one)
        for one in section["contestants"]
        if not one["ours"] and one["precision"] == ours["precision"]
    ]
    return min(found, key=lambda pair: pair[0], default=None)


def of(result: Mapping[str, Any]) -> list[Bar]:
    """All that is wanted; what was not measured, too. A rehearsal measures nothing."""
    found = [*_models(result), *_eager(result), *_products(result), *_training(result)]
    if result["rehearsal"]:
        note = "a rehearsal"
        found = [b if b.measured is None else replace(b, measured=None, note=note) for b in found]
    return found


def _missing(result: Mapping[str, Any], name: str, who: str = "") -> str:
    """Why there is no figure: of a section, or of a contestant in it."""
    section = result["sections"].get(name)
    if section is None:
        return result["not_measured"].get(name, "not asked for")
    reason = section.get("failed", {}).get(who)
    return f"{who}: {reason}" if reason else f"{who} is not among what was measured"


def _models(result: Mapping[str, Any]) -> Iterator[Bar]:
    for batch, wanted in FASTER.items():
        for model in MODELS:
            for precision in PRECISIONS:
                yield _model(result, model, batch, precision, wanted)


def _model(result: Mapping[str, Any], model: str, batch: int, precision: str, wanted: float) -> Bar:
    text = f"{model}, batch {batch}, {precision}: the best of PyTorch's time / needle tuned's"
    section, ours = result["sections"].get(f"{model}-{batch}"), named("needle tuned", precision)
    found = [entry(section, who) for who in (ours, named(EITHER, precision)) if section]
    both = [one for one in found if one is not None]
    if section is None or not both:
        return Bar(text, wanted, None, _missing(result, f"{model}-{batch}", ours))
    # The best of PyTorch is not known where a way to run it is missing.
    for peer in ("PyTorch eager", "torch.compile, not frozen"):
        if entry(section, named(peer, precision)) is None:
            return Bar(
                text, wanted, None, _missing(result, f"{model}-{batch}", named(peer, precision))
            )
    chosen = min(both, key=lambda one: statistics.median(one["blocks"]))
    best = fastest(section, chosen)
    assert best is not None  # PyTorch eager is there
    return Bar(text, wanted, best[0], f"{chosen['name']} beside {best[1]['name']}")


def _eager(result: Mapping[str, Any]) -> Iterator[Bar]:
    for batch in FASTER:
        for model in MODELS:
            text = f"{model}, batch {batch}: PyTorch eager's time / needle eager's"
            yield _pair(result, f"{model}-{batch}", text, EAGER, "needle eager", "PyTorch eager")


def _pair(
    result: Mapping[str, Any], name: str, text: str, wanted: float, ours: str, other: str
) -> Bar:
    section = result["sections"].get(name)
    found = [entry(section, who) if section else None for who in (ours, other)]
    mine, theirs = found
    if mine is None or theirs is None:
        return Bar(text, wanted, None, _missing(result, name, ours if mine is None else other))
    return Bar(text, wanted, ratio(mine, theirs))


def _products(result: Mapping[str, Any]) -> Iterator[Bar]:
    yield _own_product(result)
    text = f"product of {GEMM} x {GEMM}, bfloat16: cuBLAS's time / that of the chosen kernel"
    ours, other = (named(name, "bfloat16") for name in ("needle, chosen", "PyTorch"))
    yield _pair(result, f"gemm-{GEMM}", text, PRODUCT, ours, other)


def _own_product(result: Mapping[str, Any]) -> Bar:
    """The best of what is compiled and of the lab's rungs, each beside PyTorch in its contest."""
    text = f"product of {GEMM} x {GEMM}, float32: cuBLAS's time / that of our own kernel"
    ours = "needle, own kernel"
    bar = _pair(result, f"gemm-{GEMM}", text, PRODUCT, ours, "PyTorch")
    found = [(bar.measured, ours)] if bar.measured is not None else []
    lab = result["sections"].get(f"lab-gemm-{GEMM}", {"rungs": (), "peers": (), "size": {}})
    cublas = [peer for peer in lab["peers"] if peer["name"] == "PyTorch" and peer["blocks"]]
    for rung in lab["rungs"] if cublas and set(lab["size"].values()) == {GEMM} else ():
        if rung["precision"] == "float32" and rung["blocks"]:
            found.append((ratio(rung, cublas[0]), f"the lab's {rung['name']}"))
    if not found:
        return bar
    measured, who = max(found, key=lambda pair: pair[0])
    return Bar(text, PRODUCT, measured, who)


def _training(result: Mapping[str, Any]) -> Iterator[Bar]:
    for batch in FASTER:
        text = f"ResNet9's training step, batch {batch}: PyTorch eager's time / needle's"
        yield _pair(result, f"training-{batch}", text, EAGER, "needle eager", "PyTorch eager")
    yield _memory(result)


def _memory(result: Mapping[str, Any]) -> Bar:
    text = f"{STEPS} training steps: the device's memory before / after"
    section = result["sections"].get("steps")
    if section is None:
        return Bar(text, 1.0, None, _missing(result, "steps"))
    before, after = section["samples"][0], section["samples"][-1]
    if after["loss"] is None:
        return Bar(text, 1.0, None, "the loss is no number")
    # What arrays take, and what was taken from the device; the one that grew more counts.
    keys = [key for key in ("allocated", "reserved") if key in before]
    worst = min(before[key] / after[key] if after[key] else 1.0 for key in keys)
    note = ", ".join(f"{key} {before[key]} to {after[key]} bytes" for key in keys)
    return Bar(text, 1.0, worst, note)
