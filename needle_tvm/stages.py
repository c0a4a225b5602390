"""The names of the stages, for those who must not import TVM to know them."""

from __future__ import annotations

from needle_tvm.errors import StageError

STAGES = ("noopt", "fused", "tuned")


def check(stage: str, trials: int) -> None:
    """Raise StageError on an unknown stage, or on trials that it cannot use."""
    if stage not in STAGES:
        raise StageError(f"stage {stage!r}: must be one of {', '.join(STAGES)}")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 0:
        raise StageError(f"trials={trials!r}: must be an integer of at least 0")
    if trials and stage != "tuned":
        raise StageError(f"trials={trials}: only stage 'tuned' searches, not {stage!r}")
