"""The stages and the rungs that tvm_eval.py compiles a model through.

Each rung adds one step to the rung before it. `needle_tvm.compile` compiles all of them: a rung
between two stages is the higher stage with the passes and rules of later steps disabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from needle_tvm.stages import STAGES

EAGER_STEP = "needle's own kernels, op by op"


@dataclass(frozen=True)
class Rung:
    """Code to compile and time: a stage without the passes and rules in `disable`. `searches` says
    whether a requested search applies to this rung."""

    name: str
    stage: str
    step: str = ""
    disable: tuple[str, ...] = ()
    searches: bool = False

    @property
    def whole(self) -> bool:
        """Whether this rung is the highest stage with nothing disabled."""
        return self.stage == STAGES[-1] and not self.disable


def stages(names: Sequence[str]) -> list[Rung]:
    """Return a rung for each stage; a search applies to the last stage."""
    return [Rung(name, name, searches=name == STAGES[-1]) for name in names]


def rungs(device: str, searches: bool) -> list[Rung]:
    """Return the rungs on a device, from plain loops upwards; `searches` adds a searched rung."""
    found = _on_gpu() if device == "cuda" else _on_cpu()
    if searches:
        found.append(Rung("searched", "tuned", "schedules that a search measured", searches=True))
    return found


def _on_cpu() -> list[Rung]:
    return [
        Rung("noopt", "noopt", "every op as plain loops"),
        Rung("fused", "fused", "ops fused into larger kernels"),
        Rung(
            "packed",
            "tuned",
            "our graph passes: weights packed once",
            disable=("schedule", "merge_kernels"),
        ),
        Rung("scheduled", "tuned", "register tiles, vectors, threads", disable=("merge_kernels",)),
        Rung("merged", "tuned", "kernels merged into one, with barriers"),
    ]


def _on_gpu() -> list[Rung]:
    """Return the rungs on a GPU. There is no rung `merged`: each rung is launched as one CUDA
    graph. A GPU runs no unscheduled code, so the rungs below `scheduled` have simpler schedules."""
    from needle_tvm.kernels import gpu  # imports TVM

    return [
        Rung("noopt", "noopt", "every op by itself, one thread per result"),
        Rung("fused", "fused", "ops fused; TVM's default schedules"),
        Rung("packed", "tuned", "our graph passes: weights packed once", disable=gpu.names()),
        Rung("scheduled", "tuned", "our rules: tiles in shared memory and registers"),
    ]
