"""The check at a model's first compile: compare its code with the model on the example inputs and,
if sizes are open, at other sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from needle_runtime import Program
from needle_runtime.artifact.tolerance import compare
from needle_runtime.calls import Calls
from needle_tvm.errors import MismatchError
from needle_tvm.frontend.source import Array, Source
from needle_tvm.stages import STAGES

FUSION = "no single operation: the fault is in their fusion"


def check(source: Source, program: Program, stage: str) -> None:
    """Run the program, which has the source's weights, on the examples; compare its results with
    the model's.

    Results within the tolerance of the whole output are right. For other results, the check bounds
    the rounding error of each element, which takes longer. Raises a MismatchError that names the
    first operation whose result is wrong.
    """
    params = source.params()
    for inputs in source.examples:
        expected = source.reference(inputs, params)  # runs first: an error here is the model's
        results = program.run(inputs)
        tolerances = source.tolerances(inputs)
        in_place = _in_place(program, inputs)
        if in_place is not None and not _within(results, in_place, tolerances):
            raise MismatchError(
                f"stage {stage!r}: the compiled code's results differ{_sizes(program, inputs)} "
                "when it writes new values over old ones; check=False compiles it anyway"
            )
        if _within(expected, results, tolerances):
            continue
        difference = source.explain(inputs, results)
        if difference is None:
            continue
        at_fault = source.diverges(inputs, program, stage) or FUSION
        raise MismatchError(
            f"stage {stage!r}: the compiled code's results differ from the model's"
            f"{_sizes(program, inputs)}: {difference}; the first to differ is {at_fault}; "
            f"{_advice(source, inputs, program, stage)}check=False compiles it anyway"
        )


def _in_place(program: Program, inputs: Sequence[Array]) -> list[Array] | None:
    """Return the results of the code that writes new values over inputs, run on copies of these
    inputs; None if there is no such code."""
    over = dict(program.artifact.main.in_place)
    if not over:
        return None
    copied = set(over.values())
    given = [np.array(each) if i in copied else each for i, each in enumerate(inputs)]
    found = Calls(program.executor).run_in_place(given)
    if found is None:
        return None
    return [given[over[i]] if each is None else each for i, each in enumerate(found)]


def _within(one: Sequence[Array], other: Sequence[Array], most: Sequence[float]) -> bool:
    """Return whether each pair of results differs by no more than its tolerance."""
    return all(
        (a.dtype == b.dtype and np.array_equal(a, b)) or compare(a, b, limit).right
        for a, b, limit in zip(one, other, most, strict=True)
    )


def _sizes(program: Program, inputs: list[Array]) -> str:
    """Describe an example's sizes for an error message; "" if no size is open."""
    main = program.artifact.main
    found = main.sizes.of([array.shape for array in inputs])
    return f" at {', '.join(f'{name} = {size}' for name, size in found.items())}" if found else ""


def _advice(source: Source, inputs: list[Array], program: Program, stage: str) -> str:
    """Compile and run the simplest stage; return a clause that says whether it is right."""
    plainest = STAGES[0]
    if stage == plainest:
        return ""
    at_fault = source.diverges(inputs, program, plainest)
    if at_fault is None:
        return f"stage={plainest!r} is right; "
    return f"stage={plainest!r} has {at_fault} wrong, too; "
