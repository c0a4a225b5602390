"""Running a loop over a body: what of it runs step by step, and what before and behind."""

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
    """The last states and the stacked outputs of a loop whose body takes these inputs: states,
    slices of sequences and what is the same in all steps."""
    found = parts(body, states, sequences)
    given, finish = found.divided(inputs, length)
    if not found.core.outputs:  # nothing depends on a step before
        return finish([])
    op = Scan(found.core, states, found.sequences, length, reverse)
    wanted = op.outputs
    if _may_be_differentiated(given) and op.body.has_gradient:
        op = op.recording()
    made = apply(op, tuple(given))
    return finish([made[number] for number in range(wanted)])


def _may_be_differentiated(inputs: Sequence[Tensor]) -> bool:
    if state.trace is not None:  # what nothing reads is left out of compiled code
        return any(is_floating(x.dtype) for x in inputs)
    return state.grad and any(x.requires_grad for x in inputs)
