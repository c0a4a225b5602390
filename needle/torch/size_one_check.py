"""The check that a recorded program is its model's at sizes of 1 as well.

PyTorch's export takes an axis of one element for a constant, so a program is recorded at larger
sizes, and whatever the model or PyTorch asks about a size of 1 is answered with no.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DimError
from .dims import Asked
from .oracle import are_close, described, of_pytorch, run_program
from .structure import Flat


def check_ones(flat: Flat, functional: Any, written: Sequence[str], asked: Asked) -> None:
    """Run a model and its program in PyTorch with each dim alone at 1, and with all that may be 1.

    Raises DimError that names the dims if their results differ.
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
                f"dims: at {described(sizes)} the model is another than at other sizes: give "
                f"{' and '.join(which)} a min of 2, and load it for 1 by itself ({what})"
            )


def _difference(functional: Any, inputs: Sequence[Any], wanted: Sequence[Any]) -> str | None:
    """What a program does otherwise than its model; None if it does the same."""
    try:
        _, found = run_program(functional, inputs)
    except Exception as error:  # PyTorch's operators have many error types
        return f"its record does not run there: {error}".splitlines()[0]
    if are_close(found, wanted):
        return None
    shapes = [[list(each.shape) for each in results] for results in (wanted, found)]
    if shapes[0] != shapes[1]:
        return f"its results are of shapes {shapes[0]}, not {shapes[1]}"
    return "its results have other values"
