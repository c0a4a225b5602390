"""Cond, the op behind `needle.cond`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import TensorTuple
from ..backend_ndarray import NDArray
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import Gradients
from ..op.subgraph import Body, Run, Step, reference_of, same_spec
from ._loop_rules import RULES
from ._predicates import check_predicate
from .arithmetic import Add, Multiply
from .reduce import Summation

_INPUTS = (Spec((2, 3), "float32"), Spec((3,), "float32"))
# _TRUE returns x * w and x; _FALSE returns x + w and x * x.
_TRUE = Body(_INPUTS, (Step(Multiply(), (0, 1)),), (2, 0))
_FALSE = Body(_INPUTS, (Step(Add(), (0, 1)), Step(Multiply(), (0, 0))), (2, 3))
_SUM = Body(_INPUTS, (Step(Summation(), (0,)),), (2, 2))
_BRANCHES = {"true": _TRUE, "false": _FALSE}


def _predicate(*shape: int) -> Arg:
    return Arg(shape, 0, 1, "bool")


@register
class Cond(Op):
    """The results of one of two bodies. The first input, a bool, chooses the body; all other inputs
    are the inputs of both bodies.

    Only the chosen body runs.
    """

    may_share = True

    true: Body
    false: Body

    has_bodies = True
    infer_first = True
    reads = frozenset({"inputs"})
    samples = (
        sample(_predicate(), (2, 3), (3,), **_BRANCHES),
        sample(_predicate(1, 1), (2, 3), (3,), **_BRANCHES),
    )
    error_samples = (
        error(TypeError, "predicate .* float32", (), (2, 3), (3,), **_BRANCHES),
        error(ShapeError, r"predicate .*\[2\]", _predicate(2), (2, 3), (3,), **_BRANCHES),
        error(
            *(ShapeError, "result 0 is .* if the predicate is true", _predicate(), (2, 3), (3,)),
            **{"true": _SUM, "false": _FALSE},
        ),
    )

    def infer(self, predicate: Spec, *given: Spec) -> tuple[Spec, ...]:
        check_predicate(self.name, "the predicate", predicate)
        if len(given) != len(self.true.inputs):
            raise TypeError(
                f"{self.name}: {len(given)} inputs; the bodies take {len(self.true.inputs)}"
            )
        found, other = self.true.output_specs(given), self.false.output_specs(given)
        for number, (a, b) in enumerate(zip(found, other, strict=True)):
            if not same_spec(a, b):
                kind = TypeError if a.dtype != b.dtype else ShapeError
                raise kind(
                    f"{self.name}: result {number} is {a} if the predicate is true, and {b} if not"
                )
        device = common_device(self.name, predicate, *given)
        return tuple([Spec(spec.shape, spec.dtype, device) for spec in found])

    def fitted(self, given: Sequence[Spec]) -> Cond:
        """Return the same op with its bodies fitted to the inputs `given`; they may have been
        traced for other dtypes."""
        inputs = tuple([Spec(spec.shape, spec.dtype, None) for spec in given[1:]])
        true, false = (replace(each, inputs=inputs) for each in (self.true, self.false))
        return replace(self, true=true, false=false)

    def reduction_length(self, predicate: Spec, *given: Spec) -> int:
        return max(body.reduction_length(given) for body in (self.true, self.false))

    def reference(self, predicate: np.ndarray, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.reference_by(reference_of, predicate, *inputs)

    def reference_by(
        self, run: Run, predicate: np.ndarray, *inputs: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Compute `reference` with `run` for the steps of the bodies."""
        body = self.true if predicate.item() else self.false
        return tuple(body.evaluated(inputs, run))

    def compute(self, predicate: NDArray, *inputs: NDArray) -> tuple[NDArray, ...]:
        return tuple((self.true if predicate.item() else self.false).compute(inputs))

    def gradient(self, out_grad: TensorTuple, node: TensorTuple) -> Gradients:
        found: Gradients = RULES.gradient_of_cond(self, tuple(out_grad), node)
        return found
