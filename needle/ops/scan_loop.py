"""Scan, the op behind `needle.scan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..autograd.node import Node
from ..autograd.shapes import Spec, common_device
from ..autograd.tensor import TensorTuple
from ..backend_ndarray import NDArray, full
from ..backend_ndarray.ndarray import wrap
from ..errors import ShapeError
from ..op import Op, register
from ..op.samples import Arg, error, sample
from ..op.signatures import ArrayGradients, Gradients
from ..op.subgraph import Body, Run, Step, reference_of, same_spec
from ..sizes.dims import Expression
from ..sizes.extents import same
from ._loop_rules import RULES
from .arithmetic import Add, Multiply
from .elementwise import Tanh
from .matmul import Matmul

# _RNN: h' = tanh(x + h @ w), and y = h'. _LINEAR: h' = h * w + x, without y.
_RNN = Body(
    (Spec((2, 3), "float32"), Spec((2, 3), "float32"), Spec((3, 3), "float32")),
    (Step(Matmul(), (0, 2)), Step(Add(), (1, 3)), Step(Tanh(), (4,))),
    (5, 5),
)
_LINEAR = Body(
    (Spec((4,), "float32"), Spec((4,), "float32"), Spec((), "float32")),
    (Step(Multiply(), (0, 2)), Step(Add(), (1, 3))),
    (4,),
)


def _small(*shape: int) -> Arg:
    return Arg(shape, -0.5, 0.5, special=False)


_RNN_INPUTS = (_small(2, 3), _small(5, 2, 3), _small(3, 3))


def _linear_inputs(steps: int) -> tuple[Arg, ...]:
    return _small(4), _small(steps, 4), _small()


_OF_RNN = {"body": _RNN, "states": 1, "sequences": 1, "reverse": False}


@register
class Scan(Op):
    """The last states and the stacked outputs of `length` runs of a body, where each run takes the
    states that the previous run returned.

    The inputs are the initial `states`, the `sequences` (length, ...), each of which provides one
    slice per run, and the values that stay the same in all runs. The body has the same inputs, with
    slices in place of sequences. Its outputs are the next states, then the values to stack along
    axis 0. With `reverse`, the runs start at the last slices, and each output is stacked at the
    position of its slice.
    """

    body: Body
    states: int
    sequences: int
    length: Any
    reverse: bool = False

    has_bodies = True
    partial_gradients = True
    infer_first = True
    reads = frozenset({"inputs", "output"})
    samples = (
        sample(*_RNN_INPUTS, **_OF_RNN, length=5),
        sample(*_RNN_INPUTS, **{**_OF_RNN, "reverse": True}, length=5),
        sample(*_linear_inputs(3), body=_LINEAR, states=1, sequences=1, length=3),
        sample(*_linear_inputs(1), body=_LINEAR, states=1, sequences=1, length=1),
    )
    error_samples = (
        error(ShapeError, r"sequence 0 .*\(5, 2, 3\).* 4", *_RNN_INPUTS, **_OF_RNN, length=4),
        error(
            ShapeError,
            "state 0",
            *(_small(1), *_linear_inputs(3)[1:]),
            **{"body": _LINEAR, "states": 1, "sequences": 1, "length": 3},
        ),
    )

    @property
    def is_plain(self) -> bool:
        """Whether the body is plain (`Body.is_plain`) and the length is a number."""
        return self.body.is_plain and not isinstance(self.length, Expression)

    @property
    def outputs(self) -> int:
        """The number of results."""
        return len(self.body.outputs)

    def infer(self, *given: Spec) -> tuple[Spec, ...]:
        found = self.body.output_specs(self.of_a_step(given))
        for number, (first, after) in enumerate(zip(given[: self.states], found, strict=False)):
            if not same_spec(first, after):
                raise ShapeError(
                    f"{self.name}: state {number} is {first} first, and {after} after a step"
                )
        device = common_device(self.name, *given)
        shapes = [
            spec.shape if n < self.states else (self.length, *spec.shape)
            for n, spec in enumerate(found)
        ]
        return tuple([Spec(shape, s.dtype, device) for shape, s in zip(shapes, found, strict=True)])

    def of_a_step(self, given: Sequence[Spec]) -> tuple[Spec, ...]:
        """Return the specs of the body's inputs. Raises TypeError or ShapeError for inputs that do
        not fit."""
        if len(given) != len(self.body.inputs):
            raise TypeError(
                f"{self.name}: {len(given)} inputs; the body takes {len(self.body.inputs)}"
            )
        slices = [Spec(*spec) for spec in given]
        for number in range(self.states, self.states + self.sequences):
            shape = given[number].shape
            if not shape or not same(shape[0], self.length):
                raise ShapeError(
                    f"{self.name}: sequence {number - self.states} has shape {shape}; the extent "
                    f"of its first axis must be {self.length}, the number of steps"
                )
            slices[number] = Spec(shape[1:], given[number].dtype, given[number].device)
        return tuple(slices)

    def fitted(self, given: Sequence[Spec]) -> Scan:
        """Return the loop with a body for these inputs: the body may have been traced for other
        dtypes."""
        inputs = tuple([Spec(spec.shape, spec.dtype, None) for spec in self.of_a_step(given)])
        return replace(self, body=replace(self.body, inputs=inputs))

    def reduction_length(self, *given: Spec) -> int:
        return max(1, int(self.length)) * self.body.reduction_length(self.of_a_step(given))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return self.reference_by(reference_of, *inputs)

    def reference_by(self, run: Run, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the result of `reference`, but compute the steps of the body with `run`."""
        return self._run(inputs, lambda given: self.body.evaluated(given, run), np.stack)

    def compute(self, *inputs: NDArray) -> tuple[NDArray, ...]:
        found: tuple[NDArray, ...] | None = RULES.compute(self, inputs)
        if found is not None:
            return found

        def stack(parts: list[NDArray]) -> NDArray:
            device = parts[0].device
            return wrap(device, device.kernels.concat(tuple([p.view for p in parts]), 0, True))

        return self._run(inputs, self.body.compute, stack)

    def _run(self, inputs: Sequence[Any], run: Any, stack: Any) -> tuple[Any, ...]:
        last = self.states + self.sequences
        now, sequences, same_in_all = (
            list(inputs[: self.states]),
            inputs[self.states : last],
            inputs[last:],
        )
        steps = range(self.length)
        kept: list[list[Any]] = [[] for _ in range(self.outputs - self.states)]
        for t in reversed(steps) if self.reverse else steps:
            made = run([*now, *[x[t] for x in sequences], *same_in_all])
            now = made[: self.states]
            for values, value in zip(kept, made[self.states :], strict=True):
                values.append(value)
        if not self.length:
            return (*now, *self._nothing(inputs))
        return (*now, *[stack(values[::-1] if self.reverse else values) for values in kept])

    def _nothing(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the stacked outputs of zero steps."""
        x = inputs[0]
        given = [Spec(tuple(each.shape), str(each.dtype)) for each in inputs]
        specs = self.body.output_specs(self.of_a_step(given))[self.states :]
        if isinstance(x, np.ndarray):
            return [np.zeros((0, *spec.shape), spec.dtype) for spec in specs]
        return [full((0, *spec.shape), 0, spec.dtype, x.device) for spec in specs]

    def recording(self) -> Scan:
        """Return the same loop with more outputs for `gradient` to read: the states before each
        step, and the results of products, which are expensive to recompute."""
        found: Scan = RULES.recording(self)
        return found

    def only(self, used: Sequence[int]) -> Scan:
        """Return the same loop without the stacked outputs whose numbers are not in `used`."""
        kept = [n for i, n in enumerate(self.body.outputs) if i < self.states or i in used]
        body = self.body.cut(range(len(self.body.inputs)), kept)
        return replace(self, body=body)

    def gradient(self, out_grad: Any, node: TensorTuple) -> Gradients:
        found: Gradients = RULES.gradient(self, tuple(out_grad), node)
        return found

    def backward(self, out_grad: tuple[NDArray | None, ...], node: Node) -> ArrayGradients:
        found: ArrayGradients = RULES.backward(self, out_grad, node)
        return found
