"""The check at a model's first compile: compare its code with the model on the example inputs."""

from __future__ import annotations

from needle_tvm.artifact.tolerance import relative_difference
from needle_tvm.errors import MismatchError
from needle_tvm.frontend.source import Source
from needle_tvm.runtime import Program
from needle_tvm.stages import STAGES

FUSION = "no single operation: the fault is in their fusion"


def check(source: Source, program: Program, stage: str) -> None:
    """Run the program, which has the source's weights, on the example, and compare with the model.

    Results within the tolerance of the whole output are right. For others, the errors that may have
    reached each element are computed, which takes longer. Raises MismatchError that names the first
    operation whose result is wrong.
    """
    expected = source.reference(source.example, source.params())
    found = program.run(source.example)
    differences = map(relative_difference, expected, found)
    if all(d <= most for d, most in zip(differences, source.tolerances(), strict=True)):
        return
    what = source.explain(found)
    if what is None:
        return
    at_fault = source.diverges(program, stage) or FUSION
    raise MismatchError(
        f"stage {stage!r} computes other results than the model: {what}; the first to differ is "
        f"{at_fault}; {_advice(source, program, stage)}check=False compiles it all the same"
    )


def _advice(source: Source, program: Program, stage: str) -> str:
    """A sentence on whether the simplest stage is right, from compiling and running it."""
    plainest = STAGES[0]
    if stage == plainest:
        return ""
    at_fault = source.diverges(program, plainest)
    if at_fault is None:
        return f"stage={plainest!r} is right; "
    return f"stage={plainest!r} has {at_fault} wrong, too; "
