"""What `make gpu-bench` measures, in parts: which there are, and how one is run.

Standard library only; a part imports what it needs in its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.gpu.settings import GEMM, LARGE_BATCH, MODELS, OWN_BATCH, STEPS, Settings

Found = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """One part: `share` is about how many seconds it takes, by which time is shared out (by
    arithmetic, not measured). `run` gets `arguments` and the settings and returns JSON values."""

    name: str
    group: str
    share: int
    arguments: tuple[Any, ...] = ()


# In the order of interest: what comes last may be left to another call. Models at both batches,
# training, the product and the search come first, then the lab's ladders.
SECTIONS = {
    section.name: section
    for section in (
        *(Section(f"{name}-{OWN_BATCH}", "models", 60, (name, OWN_BATCH)) for name in MODELS),
        Section(f"training-{OWN_BATCH}", "training", 35, (OWN_BATCH,)),
        Section(f"gemm-{GEMM}", "gemm", 35, (GEMM,)),
        Section("steps", "steps", 25, (STEPS,)),
        *(Section(f"{name}-{LARGE_BATCH}", "models", 60, (name, LARGE_BATCH)) for name in MODELS),
        Section(f"training-{LARGE_BATCH}", "training", 35, (LARGE_BATCH,)),
        Section(f"lab-gemm-{GEMM}", "lab", 30, ("gemm", GEMM)),
        Section("search", "search", 90),
        Section("lab-gemm", "lab", 32, ("gemm", None)),
        Section("lab-conv1d", "lab", 16, ("conv1d", None)),
        Section("lab-depthwise", "lab", 16, ("depthwise", None)),
        Section("lab-gelu_matmul", "lab", 10, ("gelu_matmul", None)),
        Section("lab-separable", "lab", 8, ("separable", None)),
        Section("lab-vector_add", "lab", 10, ("vector_add", None)),
    )
}
GROUPS = tuple(dict.fromkeys(section.group for section in SECTIONS.values()))


def chosen(names: list[str] | None) -> dict[str, Section]:
    """The sections of these names and groups in their order; all without names."""
    return {
        name: section
        for name, section in SECTIONS.items()
        if names is None or name in names or section.group in names
    }


def measure(section: Section, settings: Settings) -> Found:
    """Runs a section in this process: imports TVM, needle and what else it takes."""
    runs: Mapping[str, Callable[..., Found]] = _runners(section)
    return runs[section.group](*section.arguments, settings)


def _runners(section: Section) -> Mapping[str, Callable[..., Found]]:
    if section.group == "lab":
        from bench.gpu import ladders

        return {"lab": ladders.measure}
    from bench.gpu import gemm, models, search, training

    return {
        "models": models.measure,
        "training": training.measure,
        "steps": training.measure_memory,
        "gemm": gemm.measure,
        "search": search.measure,
    }
