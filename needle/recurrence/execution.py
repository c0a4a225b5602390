"""Run a loop over a body: one part step by step, the rest before and after the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import is_floating
from ..common.state import state
from ..op.subgraph import Body
from ..ops.scan_loop import Scan
from .hoisting import parts


def run(
    body: Body, inputs: Sequence[Tensor], states: int, sequences: int, length: Any, reverse: bool
) -> list[Tensor]:
    """Run a loop and return its last states and stacked outputs. The `inputs` are `states` initial
    states, `sequences` sequences, and values that are the same in all steps; the `body` takes
    slices of the sequences. The loop has `length` steps and starts at the last step if
    `reverse`."""
    found = parts(body, states, sequences)
    given, finish = found.divided(inputs, length)
    if not found.core.outputs:  # no step depends on an earlier step
        return finish([])
    op = Scan(found.core, states, found.sequences, length, reverse)
    wanted = op.outputs
    if _may_be_differentiated(given) and op.body.has_gradient:
        op = op.recording()
    made = apply(op, tuple(given))
    return finish([made[number] for number in range(wanted)])


def _may_be_differentiated(inputs: Sequence[Tensor]) -> bool:
    if state.trace is not None:  # compiled code leaves out values that nothing reads
        return any(is_floating(x.dtype) for x in inputs)
    return state.grad and any(x.requires_grad for x in inputs)
