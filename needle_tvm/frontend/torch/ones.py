"""The check that an exported program is its model's at sizes of 1 as well.

PyTorch's export takes an axis of one element for a constant, so a program is recorded at larger
sizes, and whatever the model or PyTorch asks about a size of 1 is answered with no.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm.artifact.tolerance import estimated_tolerances, relative_difference
from needle_tvm.errors import UsageError
from needle_tvm.frontend.shapes import Shapes
from needle_tvm.frontend.torch.arrays import Array, array, tensor


def check_ones(model: Any, exported: Any, shapes: Shapes, example: Sequence[Array]) -> None:
    """Run a model and its program with each dim alone at 1, and with all that may be 1.

    Raises UsageError that names the dims if their results differ, and for an example that does not
    fit the dims.
    """
    given = shapes.given(example)
    ones = [dim.name for dim in shapes.dims if dim.min == 1]
    program = exported.module(check_guards=False)
    for which in [[name] for name in ones] + ([ones] if len(ones) > 1 else []):
        sizes = {**given, **dict.fromkeys(which, 1)}
        arguments = [tensor(each) for each in shapes.resized(example, sizes)]
        what = _difference(model, program, arguments)
        if what is not None:
            at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise UsageError(
                f"dims: at {at} the model is another than at larger sizes ({what}): give "
                f"{' and '.join(which)} a min of 2, and compile the model for 1 by itself"
            )


def _difference(model: Any, program: Any, arguments: Sequence[Any]) -> str | None:
    """What a program does otherwise than its model; None if it does the same."""
    import torch

    map_tensors, leaves = torch.utils._pytree.tree_map_only, torch.utils._pytree.tree_leaves
    results = []
    for function in (model, program):
        copies = map_tensors(torch.Tensor, torch.clone, arguments)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                result = function(*copies)
        except Exception as error:  # the model's own code may raise anything
            who = "PyTorch does not run" if function is model else "its export does not run"
            return f"{who} it there: {type(error).__name__}: {error}".splitlines()[0]
        tensors = [each for each in leaves(result) if isinstance(each, torch.Tensor)]
        results.append(list(map(array, tensors)))
    wanted, found = results
    if len(wanted) != len(found):
        return f"it returns {len(wanted)} tensors, not {len(found)}"
    weights = [{"shape": list(each.shape)} for each in model.parameters()]
    for number, (want, have) in enumerate(zip(wanted, found, strict=True)):
        if want.shape != have.shape:
            return f"output {number} is of shape {want.shape}, not {have.shape}"
        (most,) = estimated_tolerances([{"shape": want.shape, "dtype": str(want.dtype)}], weights)
        if not relative_difference(want, have) <= most:
            return f"output {number} has other values"
    return None
