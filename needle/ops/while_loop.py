"""WhileLoop, the op behind `needle.while_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import TensorTuple
from ..backend_ndarray import NDArray
from ..errors import ShapeError, UnsupportedError
from ..op import Op, register
from ..op.samples import Arg, ErrorSample, Sample
from ..op.subgraph import Body, Run, Step, reference_of, same_spec
from ._predicates import check_predicate
from .arithmetic import Add, Compare, Multiply

# while n < limit: x, n = x * w + x, n + 1
_INPUTS = (
    Spec((3,), "float32"),
    Spec((), "int64"),
    Spec((3,), "float32"),
    Spec((), "int64"),
    Spec((), "int64"),
)
_TEST = Body(_INPUTS, (Step(Compare("less"), (1, 3)),), (5,))
_STEP = Body(_INPUTS, (Step(Multiply(), (0, 2)), Step(Add(), (5, 0)), Step(Add(), (1, 4))), (6, 7))


def _inputs(first: int, last: int, *shape: int) -> tuple[Arg, ...]:
    x = Arg(shape, -0.5, 0.5, special=False)
    return (
        x,
        Arg((), first, first + 1, "int64", special=False),
        Arg((3,), -0.5, 0.5, special=False),
        Arg((), last, last + 1, "int64", special=False),
        Arg((), 1, 2, "int64", special=False),
    )


_Call = Callable[[Sequence[Any]], list[Any]]
_LOOP = {"test": _TEST, "body": _STEP, "states": 2}


@register
class WhileLoop(Op):
    """A loop that runs a body while a test holds; its results are the states at the end.

    The first `states` inputs are the initial states; the other inputs stay the same in all steps.
    The test and the body take all inputs. The test returns one bool; the body returns the next
    states.
    """

    may_share = True

    test: Body
    body: Body
    states: int

    has_bodies = True
    has_gradient = False
    infer_first = True
    samples = (
        Sample(_inputs(0, 3, 3), _LOOP, gradient=False),
        Sample(_inputs(2, 2, 3), _LOOP, gradient=False),
    )
    error_samples = (
        ErrorSample(_inputs(0, 3, 1), ShapeError, "state 0 is .* after a step", _LOOP),
        ErrorSample(_inputs(0, 3, 3), TypeError, "test .* float32", {**_LOOP, "test": _STEP}),
    )

    def infer(self, *given: Spec) -> tuple[Spec, ...]:
        if len(given) != len(self.body.inputs):
            raise TypeError(
                f"{self.name}: {len(given)} inputs; the body takes {len(self.body.inputs)}"
            )
        check_predicate(self.name, "the test", self.test.output_specs(given)[0])
        after = self.body.output_specs(given)
        for number, (first, last) in enumerate(zip(given, after, strict=False)):
            if not same_spec(first, last):
                kind = TypeError if first.dtype != last.dtype else ShapeError
                raise kind(
                    f"{self.name}: state {number} is {first} at first and {last} after a step; "
                    "a state keeps its shape and dtype"
                )
        device = common_device(self.name, *given)
        return tuple([Spec(spec.shape, spec.dtype, device) for spec in after])

    def fitted(self, given: Sequence[Spec]) -> WhileLoop:
        """Return the loop with its test and body adapted to inputs with these specs; both may have
        been traced for other dtypes."""
        inputs = tuple([Spec(spec.shape, spec.dtype, None) for spec in given])
        test, body = (replace(each, inputs=inputs) for each in (self.test, self.body))
        return replace(self, test=test, body=body)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.reference_by(reference_of, *inputs)

    def reference_by(self, run: Run, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the result of `reference`, but compute the steps of the body with `run`. The steps
        of the test still run as in `reference`."""
        return self._run(
            inputs,
            lambda given: self.test.evaluated(given, reference_of),
            lambda given: self.body.evaluated(given, run),
        )

    def compute(self, *inputs: NDArray) -> tuple[NDArray, ...]:
        return self._run(inputs, self.test.compute, self.body.compute)

    def _run(self, inputs: Sequence[Any], test: _Call, body: _Call) -> tuple[Any, ...]:
        now, same_in_all = list(inputs[: self.states]), inputs[self.states :]
        while test([*now, *same_in_all])[0].item():
            now = body([*now, *same_in_all])
        return tuple(now)

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> NoReturn:
        raise UnsupportedError(
            "while_loop: the number of steps is unknown, so there is no gradient through the loop; "
            "use needle.scan with a length, or needle.no_grad around the loop"
        )
