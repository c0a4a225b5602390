"""Find the parts of a loop's body that need not run step by step.

Each value of the body is one of these: the same in all steps, computed only from slices of the
sequences, needed for the next state, or needed only for the outputs. A value that is the same in
all steps is computed once, before the loop. Outputs computed only from slices are computed for all
steps at once. Matmuls of slices become matmuls of whole sequences before the loop. Matmuls that
only outputs need become matmuls of whole outputs after the loop. One large matmul reads a weight
once, whereas a matmul in each step reads it again for a few rows. Other elementwise work stays in
the loop, where its operands are in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .. import ops
from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..op import Binary, Elementwise, Op
from ..op.subgraph import Body, Step, remembered, without
from ..ops.arithmetic import Where
from ..ops.matmul import Matmul
from ..ops.movement import Squeeze, Unsqueeze
from ..ops.shape import BroadcastTo, Permute, Reshape, Transpose

Finish = Callable[[Sequence[Tensor]], list[Tensor]]


class Parts:
    """The parts of a body. `core` runs step by step and reads `sequences` sequences."""

    def __init__(self, body: Body, states: int, sequences: int) -> None:
        self._body, self._states = body, states  # a body without dead steps
        last = states + sequences
        self._specs = body.specs()
        self._steps = dict(body.numbered())
        count = len(body.inputs)
        varying = body.reached(range(last))
        stateful = body.reached(range(states))
        self._constant = {n for n in range(body.count) if n not in varying}
        self._core = body.needed(body.outputs[:states])
        batched = set(range(states, last))  # values that can be computed for all steps at once
        for number, step in body.numbered():
            if number in varying and number not in stateful and self._fits(step, batched):
                batched.add(number)
        self._before = {n for n in batched if n >= count and isinstance(self._steps[n].op, Matmul)}
        self._behind = self._outputs_alone(varying, stateful)
        self._stacked = body.outputs[states:]
        # The loop stacks the values that are read after it, unless they are available already.
        read = dict.fromkeys(i for n in sorted(self._behind) for i in self._steps[n].inputs)
        more = without(read, self._behind | self._constant)
        self._inner = [
            n
            for n in dict.fromkeys([*without(self._stacked, self._behind | batched), *more])
            if not states <= n < last and n not in self._constant
        ]
        roots = [*body.outputs[:states], *self._inner]
        reads = self._reads(roots)
        self._same = sorted(n for n in reads if n in self._constant)
        self._slices = sorted(n for n in reads if states <= n < last or n in self._before)
        self.sequences = len(self._slices)
        self.core = body.cut([*range(states), *self._slices, *self._same], roots)
        ahead = [n for n in self._stacked if n in self._constant or n in batched]
        fixed = [n for n in read if n in self._constant]
        needed = body.needed([*self._same, *self._slices, *ahead, *fixed])
        self._ahead = sorted(n for n in needed if n >= count)

    def _fits(self, step: Step, batched: set[int]) -> bool:
        """Return whether a step of the body can be computed for all steps of the loop at once."""
        varying = [i for i in step.inputs if i not in self._constant]
        return all(i in batched for i in varying) and self._rule(step, set(varying)) is not None

    def _outputs_alone(self, varying: set[int], stateful: set[int]) -> set[int]:
        """Return the matmuls that only outputs need, and the values computed from them, if all
        these can be computed for all steps at once."""
        products: set[int] = set()
        for number, step in self._body.numbered():
            if not isinstance(step.op, Matmul) or number not in stateful or number in products:
                continue
            after = self._body.reached([number])
            if after.isdisjoint(self._core) and all(
                self._rule(self._steps[n], {i for i in self._steps[n].inputs if i in varying})
                for n in after
            ):
                products |= after
        return products

    def divided(self, inputs: Sequence[Tensor], length: Any) -> tuple[list[Tensor], Finish]:
        """Compute the values before a loop with these `inputs` and `length`. Return the inputs of
        the loop over `core`, and a function from that loop's results to the results of the whole
        loop."""
        values: dict[int, Tensor] = dict(enumerate(inputs))
        for number in self._ahead:
            self._compute(number, values, length)
        states = self._states
        given = [*inputs[:states], *[values[n] for n in (*self._slices, *self._same)]]

        def finish(made: Sequence[Tensor]) -> list[Tensor]:
            values.update(zip(self._inner, made[states:], strict=True))
            for number in sorted(self._behind):
                self._compute(number, values, length)
            whole = [self._whole(n, values, length) for n in self._stacked]
            return [*made[:states], *whole]

        return given, finish

    def _reads(self, roots: Sequence[int]) -> set[int]:
        """Return the values from outside the loop that are needed to compute `roots` in it."""
        read, pending = set(), list(roots)
        seen: set[int] = set()
        while pending:
            number = pending.pop()
            if number in seen:
                continue
            seen.add(number)
            if number in self._constant or number in self._before:
                read.add(number)
            elif number < len(self._body.inputs):
                if number >= self._states:
                    read.add(number)
            else:
                pending += self._steps[number].inputs
        return read

    def _compute(self, number: int, values: dict[int, Tensor], length: Any) -> None:
        """Compute a value for all steps at once, or only once if it is the same in all steps."""
        if number in values:
            return
        step = self._steps[number]
        given = [values[i] for i in step.inputs]
        varying = {i for i in step.inputs if i not in self._constant}
        if not varying:
            values[number] = apply(step.op, tuple(given))
            return
        rule = self._rule(step, varying)
        assert rule is not None, "was checked"
        values[number] = rule(given, length)

    def _whole(self, number: int, values: dict[int, Tensor], length: Any) -> Tensor:
        """Return a stacked output."""
        value = values[number]
        if number not in self._constant:
            return value
        return ops.broadcast_to(ops.unsqueeze(value, 0), (length, *value.shape))

    def _rule(self, step: Step, varying: set[int]) -> Callable[[list[Tensor], Any], Tensor] | None:
        """Return a function that computes a step for all steps at once, or None. Inputs that vary
        have an additional first axis of steps."""
        ndims = []
        for i in step.inputs:
            if isinstance(self._specs[i], list) or not hasattr(self._specs[i], "shape"):
                return None
            ndims.append(len(self._specs[i].shape))
        varies = [i in varying for i in step.inputs]
        spec: Any = step.op.infer(*[self._specs[i] for i in step.inputs])
        op = step.op
        if isinstance(op, Matmul):
            return _matmul(op, ndims, varies, spec)
        if isinstance(op, Elementwise):
            return lambda given, length: apply(op, tuple(given))
        if isinstance(op, (Binary, Where)):
            return lambda given, length: apply(op, tuple(_aligned(given, ndims, varies)))
        if isinstance(op, (Reshape, Squeeze, Unsqueeze)):
            return lambda given, length: ops.reshape(given[0], (length, *spec.shape))
        if isinstance(op, BroadcastTo):
            return lambda given, length: ops.broadcast_to(
                _with_axes(given[0], len(spec.shape) - ndims[0]), (length, *spec.shape)
            )
        if isinstance(op, (Permute, Transpose)):
            return lambda given, length: ops.permute(given[0], _moved_axes(op, ndims[0]))
        return None


@remembered
def parts(body: Body, states: int, sequences: int) -> Parts:
    """Return the parts of a `body` with this number of `states` and `sequences`, without its dead
    steps."""
    return Parts(body.cut(range(len(body.inputs)), body.outputs), states, sequences)


def _moved_axes(op: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a permutation with an additional first axis of steps."""
    if isinstance(op, Permute):
        return (0, *[axis % ndim + 1 for axis in op.axes])
    a, b = (-1, -2) if op.axes is None else op.axes
    order = list(range(ndim + 1))
    a, b = a % ndim + 1, b % ndim + 1
    order[a], order[b] = b, a
    return tuple(order)


def _with_axes(x: Tensor, count: int) -> Tensor:
    """Insert `count` axes of extent 1 into `x`, a value of all steps, after the axis of steps."""
    return ops.reshape(x, (x.shape[0], *[1] * count, *x.shape[1:])) if count else x


def _aligned(given: Sequence[Tensor], ndims: Sequence[int], varies: Sequence[bool]) -> list[Tensor]:
    """Reshape operands so that they broadcast like the operands of one step."""
    most = max(ndims)
    return [
        _with_axes(x, most - ndim) if varying else x
        for x, ndim, varying in zip(given, ndims, varies, strict=True)
    ]


def _matmul(op: Op, ndims: list[int], varies: list[bool], spec: Any) -> Any:
    """Return the rule for a matmul: if possible, one matmul of all rows with a single matrix."""
    if varies == [True, False] and ndims[1] == 2:

        def rows(given: list[Tensor], length: Any) -> Tensor:
            x, w = given
            flat = ops.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
            return ops.reshape(ops.matmul(flat, w), (length, *spec.shape))

        return rows
    if varies == [False, True] and ndims == [2, 1]:
        return lambda given, length: ops.matmul(given[1], ops.transpose(given[0]))
    if min(ndims) >= 2:
        return lambda given, length: ops.matmul(*_aligned(given, ndims, varies))
    return None
