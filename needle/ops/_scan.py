"""The common part of scans along an axis. Compiled code passes once over each line. A line is all
elements that differ only in their position along the axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar

from ..autograd.shapes import Spec
from ..backend_ndarray import NDArray
from ..errors import ShapeError
from ..op import Op
from ..op.samples import ErrorSample, error
from ..op.signatures import Expr, Stmt, TeNamespace, TeTensor
from . import _te

_ERRORS = (
    error(ShapeError, "out of range", (2, 3), axis=2),
    error(ShapeError, "out of range", ()),
)
_COLUMNS = 64  # adjacent lines that one task of compiled code scans at once
_STEP = 8  # instructions per step of a line
_SHORT = 1 << 13  # if all rows take at most this many instructions, threads do not divide them

# One step of a scan in compiled code: see `Along.lines`.
Step = Callable[[list[Any], list[Any], list[Any], Expr, Any, Expr, bool], None]


class Along(Op):
    axis: int

    def line_axis(self, x: NDArray) -> int:
        """Return `axis` counted from the front. Raises ValueError if it is out of range; the error
        with the full message comes from `infer`."""
        ndim = x.view.ndim
        if not -ndim <= self.axis < ndim:
            raise ValueError(self.axis)
        return self.axis % ndim

    rows = 4  # number of rows that one task of compiled code scans at once
    error_samples: ClassVar[Sequence[ErrorSample]] = _ERRORS

    def reduction_length(self, *specs: Spec) -> int:
        return specs[0].shape[self.axis]

    def lines(
        self,
        k: TeNamespace,
        inputs: Sequence[TeTensor],
        dtypes: Sequence[str],
        states: Sequence[str],
        step: Step,
        reverse: bool = False,
    ) -> list[TeTensor]:
        """Return, for `emit_te`, one output of the inputs' shape for each dtype. Calls of
        step(inputs, outputs, states, i, place, j, first) write the code that fills them.

        A call of `step` writes the code of a line's i-th step. The step's elements are at the
        indices `place`, and the line's states (of the dtypes `states`) at index `j`. At the line's
        first step, `first` is true and the states are not set yet. The code passes once over each
        line, and threads divide the lines. A step waits for the step before it, so a task takes
        several lines at once: adjacent lines, whose steps form whole vectors, or rows, whose steps
        the processor overlaps. With `reverse`, lines are scanned from their end."""
        shape = list(inputs[0].shape)
        if any(_te.is_zero(n) for n in shape):
            return [nothing(k, shape, dtype) for dtype in dtypes]
        axis = self.axis % len(shape)
        one = k.tirx.const(1, "int64")
        outer, inner = prod(shape[:axis], start=one), prod(shape[axis + 1 :], start=one)
        n, in_rows = shape[axis], _te.is_one(inner)
        most = _rows_at_once(outer, n, self.rows) if in_rows else _COLUMNS
        blocks = k.tirx.floordiv((outer if in_rows else inner) + most - 1, most)
        tasks = blocks if in_rows else outer * blocks

        def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
            read, wrote = (list(map(s.buffer_proxy, buffers)) for buffers in (ins, outs))
            with _te.tasks(s, tasks, outer * n * inner * _STEP) as task:
                state = [
                    s.buffer_proxy(s.alloc_buffer((most,), dtype, scope="local"))
                    for dtype in states
                ]
                if in_rows:  # the last task ends at the last row, so it may repeat rows
                    first_row = task if most == 1 else k.te.min(task * most, outer - most)
                    each_line = partial(s.unroll, 0, most)
                else:
                    block = k.tirx.floormod(task, blocks) * most
                    row = k.tirx.floordiv(task, blocks)
                    each_line = partial(s.serial, 0, k.te.min(inner - block, most))

                def steps(i: Expr, first: bool) -> None:
                    at = n - 1 - i if reverse else i
                    with each_line() as j:
                        line = (first_row + j, one - 1) if in_rows else (row, block + j)
                        before = _te.unravel(k, line[0], shape[:axis])
                        behind = _te.unravel(k, line[1], shape[axis + 1 :])
                        step(read, wrote, state, i, (*before, at, *behind), j, first)

                steps(k.tirx.const(0, "int64"), True)
                with s.serial(1, n) as i:
                    steps(i, False)

        def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
            return k.statements(lambda s: write(s, ins, outs))

        made = k.te.extern(
            [shape] * len(dtypes), list(inputs), body, dtype=list(dtypes), name=self.name
        )
        return list(made) if len(dtypes) > 1 else [made]


def _rows_at_once(rows: Any, length: Any, most: int) -> int:
    """Return the number of rows that a task scans at once: at most `most`, and fewer if a long scan
    would otherwise have too few tasks for the threads."""
    count, steps = getattr(rows, "value", 1), getattr(length, "value", None)
    short = steps is not None and count * steps * _STEP <= _SHORT
    return max(1, min(most, count if short else count // most))


def nothing(k: TeNamespace, shape: Sequence[Any], dtype: str) -> TeTensor:
    return k.te.compute(shape, lambda *_: k.tirx.const(0, dtype), name="nothing")
