"""Check that a recorded program also matches its model at sizes of 1.

PyTorch's export treats an axis of one element as a constant, so programs are recorded at larger
sizes. During recording, every test for a size of 1, by the model or by PyTorch, is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DimError
from .dims import Asked
from .oracle import are_close, described, of_pytorch, run_program
from .structure import Flat


def check_ones(flat: Flat, functional: Any, written: Sequence[str], asked: Asked) -> None:
    """Run a model and its program in PyTorch with a single dim at 1 (each in turn), then with all
    dims at 1 that allow it.

    Raises DimError, which names the dims, if the results of the model (`flat`) and of the program
    (`functional`) differ. `written` are the names of written weights; `asked` has the dims.
    """
    given = asked.example_sizes()
    ones = [dim.name for dim in asked.dims if dim.min == 1]
    for which in [[name] for name in ones] + ([ones] if len(ones) > 1 else []):
        sizes = {**given, **dict.fromkeys(which, 1)}
        inputs = asked.resized(sizes)
        wanted = of_pytorch(flat, inputs, written, sizes)
        what = _difference(functional, inputs, wanted)
        if what is not None:
            raise DimError(
                f"dims: at {described(sizes)} the model computes something other than its "
                f"exported program: give {' and '.join(which)} a min of 2, and load it for 1 "
                f"separately ({what})"
            )


def _difference(functional: Any, inputs: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """Return how a program's results differ from its model's, or None if they agree."""
    try:
        _, found = run_program(functional, inputs)
    except Exception as error:  # PyTorch's operators have many error types
        return f"the recorded program fails at this size: {error}".splitlines()[0]
    if are_close(found, wanted):
        return None
    shapes = [[list(each.shape) for each in results] for results in (wanted, found)]
    if shapes[0] != shapes[1]:
        return f"the results have the shapes {shapes[0]}, not {shapes[1]}"
    return "the results have other values"
