"""The gradient of `Scan`: a scan from the last step to the first, over what the steps have left."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from .. import ops
from .._state import call_recording, state
from ..apply import apply
from ..backend_ndarray.dtypes import is_floating
from ..body import Body, Step
from ..dims import bounds_of
from ..engine import _filled
from ..node import Node
from ..op_types import Gradients
from ..ops.matmul import Matmul
from ..ops.reduce import Summation
from ..ops.shape import Reshape
from ..spec import Spec
from ..tensor import Tensor, handle
from .tracing import InnerTrace, recorded

if TYPE_CHECKING:
    from ..ops.scan_loop import Scan


def wanted(op: Scan) -> list[int]:
    """The values of the body that the gradient reads: states before each step, and products, which
    take long to compute again. The rest is computed again from these."""
    body = op.body
    stateful = body.reached(range(op.states))
    products = [
        number
        for number, step in body.numbered()
        if number in stateful and isinstance(step.op, Matmul)
    ]
    needed = body.needed(body.outputs)
    return [*range(op.states), *[number for number in products if number in needed]]


def gradient(op: Scan, out_grads: Sequence[Tensor], node: Any) -> Gradients:
    """The gradients of a scan's inputs from those of all its results."""
    inputs = node.inputs
    outputs = list(node)
    op = op.fitted([x.spec for x in inputs])
    full = op.recording()
    if full.outputs > op.outputs:  # it was not recorded for a gradient: run it once more
        outputs = list(apply(full, tuple(inputs)))
        out_grads = [*out_grads, *[_filled(x.shape, 0, x) for x in outputs[op.outputs :]]]
    return _Backward(full, inputs, outputs, out_grads).gradients()


class _Backward:
    """A scan's inputs and results, by the numbers of its body's values."""

    def __init__(
        self,
        op: Scan,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        out_grads: Sequence[Tensor],
    ) -> None:
        self._op, self._inputs, self._out_grads = op, inputs, out_grads
        body, states = op.body, op.states
        last = states + op.sequences
        self._requires = [x.requires_grad and is_floating(x.dtype) for x in inputs]
        for number in range(states):  # a gradient may come through any state
            self._requires[number] = is_floating(inputs[number].dtype)
        # Values of all steps that are known: by number, the stacked tensor.
        self._known: dict[int, Tensor] = {}
        for number, value in zip(body.outputs[states:], outputs[states:], strict=True):
            self._known.setdefault(number, value)
        for number in range(states, last):
            self._known[number] = inputs[number]

    def gradients(self) -> Gradients:
        from .scan import run

        op, body = self._op, self._op.body
        states, last = op.states, op.states + op.sequences
        carried = [n for n in range(states) if self._requires[n]]
        ys = [
            (number, grad)
            for number, grad in zip(body.outputs[states:], self._out_grads[states:], strict=True)
            if is_floating(grad.dtype)
        ]
        known = list(self._known)
        slices = [self._known[n] for n in known] + [grad for _, grad in ys]
        traced, captured = self._step(carried, known, [n for n, _ in ys])
        # The step returns the gradients of states, then of slices, then one for each constant.
        of_slices = [n for n in range(states, last) if self._requires[n]]
        of_constants = [n for n in range(last, len(body.inputs)) if self._requires[n]]
        first = [self._out_grads[n] for n in carried]
        traced, first, finish = _accumulated(
            traced, first, len(carried), len(slices), len(of_constants), self._inputs[last:]
        )
        found = run(
            traced, [*first, *slices, *captured], len(first), len(slices), op.length, not op.reverse
        )
        ends, constants = finish(found, len(carried), len(of_slices), op.length)
        result: list[Any] = [None] * len(self._inputs)
        for number, value in zip(
            (*carried, *of_slices, *of_constants), (*ends, *constants), strict=True
        ):
            result[number] = value if self._inputs[number].requires_grad else None
        return tuple(result)

    def _step(
        self, carried: Sequence[int], known: Sequence[int], ys: Sequence[int]
    ) -> tuple[Body, list[Tensor]]:
        """The body of a step backward. Inputs: the gradients of next states, known values and the
        gradients of stacked outputs, and then what is captured; outputs: those of `gradients`."""
        body, op = self._op.body, self._op
        states, last = op.states, op.states + op.sequences
        specs = body.specs()
        run = InnerTrace(state.trace)
        given = (
            [body.inputs[n] for n in carried] + [specs[n] for n in known] + [specs[n] for n in ys]
        )
        nodes = [run.own(Node(self._here(spec), is_floating(spec.dtype), "")) for spec in given]
        handles = [handle(node, None) for node in nodes]
        of_next = dict(zip(carried, handles, strict=False))
        values = dict(zip(known, handles[len(carried) :], strict=False))
        of_ys = handles[len(carried) + len(known) :]
        alias: dict[Node, Node] = {}

        def computed() -> list[Tensor]:
            for number in range(len(body.inputs)):
                if number not in values:  # a constant
                    values[number] = run.local(self._inputs[number])
            rules = self._forward(run, values, alias)
            grads: dict[int, Any] = {}
            for number, grad in (
                *((body.outputs[n], of_next[n]) for n in carried),
                *zip(ys, of_ys, strict=True),
            ):
                _add(grads, number, grad)
            _pull_back(body, rules, grads, self._needs_gradient())
            wanted = [
                *carried,
                *[n for n in range(states, len(body.inputs)) if self._requires[n]],
            ]
            return [run.local(grads[n] if n in grads else self._zeros(specs[n])) for n in wanted]

        del last
        with run.running():
            ends = [x._node for x in call_recording(False, computed)]
        return recorded(run, nodes, ends, alias)

    def _zeros(self, spec: Spec) -> Tensor:
        return _filled(spec.shape, 0, self._here(spec))

    def _here(self, spec: Spec) -> Spec:
        return Spec(spec.shape, spec.dtype, self._inputs[0].device)

    def _needs_gradient(self) -> set[int]:
        body = self._op.body
        return body.reached([n for n, requires in enumerate(self._requires) if requires])

    def _forward(
        self, run: InnerTrace, values: dict[int, Any], alias: dict[Node, Node]
    ) -> dict[int, Any]:
        """Compute the values of a step, but for those that are known; return what each step's
        gradient rule takes for its result."""
        needs = self._needs_gradient()
        rules: dict[int, Any] = {}
        for number, step in self._op.body.numbered():
            given = tuple([values[i] for i in step.inputs])
            made = apply(step.op, given)
            node = made._node
            node.requires_grad = number in needs
            rules[number] = made
            if number in values:
                alias[node] = values[number]._node
            else:
                values[number] = made
        return rules


def _anywhere(spec: Spec) -> Spec:
    return Spec(spec.shape, spec.dtype, None)


def _add(grads: dict[int, Any], number: int, grad: Any) -> None:
    before = grads.get(number)
    if before is None:
        grads[number] = grad
    elif type(grad) is tuple:
        grads[number] = tuple(
            b if a is None else a if b is None else a + b for a, b in zip(before, grad, strict=True)
        )
    else:
        grads[number] = before + grad


def _pull_back(body: Body, rules: dict[int, Any], grads: dict[int, Any], needs: set[int]) -> None:
    """Add the gradients of all values that the body's outputs depend on to `grads`."""
    for number, step in reversed(list(body.numbered())):
        if number not in grads or number not in needs:
            continue
        made, grad = rules[number], grads.pop(number)
        specs = made._node.specs
        if type(grad) is tuple:
            grad = tuple(
                _filled(spec.shape, 0, spec) if part is None else part
                for part, spec in zip(grad, specs, strict=True)
            )
        for source, part in zip(step.inputs, step.op.gradient_as_tuple(grad, made), strict=True):
            if part is not None and source in needs:
                _add(grads, source, part)


def _accumulated(
    step: Body,
    first: list[Tensor],
    carried: int,
    slices: int,
    constants: int,
    of: Sequence[Tensor],
) -> tuple[Body, list[Tensor], Any]:
    """The body with the gradients of constants summed over steps, the loop's first states, and a
    function that takes what the loop makes apart.

    A sum of outer products is one product behind the loop, of what its operands are stacked to. A
    sum over axes of a value that is stacked anyway is taken there too. All others are states.
    """
    number_of = dict(step.numbered())
    outputs = list(step.outputs)
    slices_out = outputs[carried : len(outputs) - constants]
    stacked: list[int] = list(slices_out)  # what the loop stacks

    def place(number: int) -> int:
        if number not in stacked:
            stacked.append(number)
        return stacked.index(number)

    varying = step.reached(range(carried + slices))
    rules: list[Any] = []
    specs = step.specs()
    ends = outputs[len(outputs) - constants :]
    for number in ends:
        rules.append(_product(number, number_of, specs, place, varying))
    for at, number in enumerate(ends):
        if rules[at] is None:
            rules[at] = _total(number, number_of, specs, stacked)
    summed = [number for number, rule in zip(ends, rules, strict=True) if rule is None]
    count = len(first) + len(summed)
    base = len(first)
    # New inputs for the sums come behind the states.
    moved = {n: n if n < base else n + len(summed) for n in range(step.count)}
    inputs = (
        *step.inputs[:base],
        *[_anywhere(specs[n]) for n in summed],
        *step.inputs[base:],
    )
    steps = [Step(s.op, tuple([moved[i] for i in s.inputs])) for s in step.steps]
    sums = []
    for at, number in enumerate(summed):
        steps.append(Step(ops.Add(), (base + at, moved[number])))
        sums.append(len(inputs) + len(steps) - 1)
    made = Body(
        inputs,
        tuple(steps),
        (*[moved[n] for n in outputs[:carried]], *sums, *[moved[n] for n in stacked]),
    )
    zeros = [_zeros(specs[n], first, of) for n in summed]

    def finish(
        found: Sequence[Tensor], carried: int, of_slices: int, length: Any
    ) -> tuple[list[Tensor], list[Tensor]]:
        whole = found[count:]
        totals = iter(found[carried:count])
        result = [next(totals) if rule is None else rule(whole, length) for rule in rules]
        return [*found[:carried], *whole[:of_slices]], result

    return made, [*first, *zeros], finish


def _zeros(spec: Spec, first: Sequence[Tensor], of: Sequence[Tensor]) -> Tensor:
    device = (*first, *of)[0].device
    return _filled(spec.shape, 0, Spec(spec.shape, spec.dtype, device))


def _product(number: int, steps: dict[int, Step], specs: Any, place: Any, varying: set[int]) -> Any:
    """The rule of a gradient that is a product of matrices, larger than these: None for others."""
    step = steps.get(number)
    shapes = []
    while step is not None and isinstance(step.op, Reshape):
        shapes.append(specs[number].shape)
        number = step.inputs[0]
        step = steps.get(number)
    if step is None or not isinstance(step.op, Matmul):
        return None
    a, b = (specs[i] for i in step.inputs)
    if len(a.shape) != 2 or len(b.shape) != 2 or not varying.issuperset(step.inputs):
        return None
    (rows, inner), columns = a.shape, b.shape[1]
    if bounds_of(inner * (rows + columns))[1] >= bounds_of(rows * columns)[1]:
        return None
    left, right = (place(i) for i in step.inputs)

    def whole(stacked: Sequence[Tensor], length: Any) -> Tensor:
        first = ops.permute(stacked[left], (1, 0, 2))
        first = ops.reshape(first, (rows, length * inner))
        made = ops.matmul(first, ops.reshape(stacked[right], (length * inner, columns)))
        for shape in reversed(shapes):
            made = ops.reshape(made, shape)
        return made

    return whole


def _total(number: int, steps: dict[int, Step], specs: Any, stacked: Sequence[int]) -> Any:
    """The rule of a gradient that is a sum over axes of a stacked value: None for others."""
    step = steps.get(number)
    shape = specs[number].shape
    while step is not None and isinstance(step.op, Reshape):
        number = step.inputs[0]
        step = steps.get(number)
    if step is None or not isinstance(step.op, Summation) or step.inputs[0] not in stacked:
        return None
    source = step.inputs[0]
    ndim = len(specs[source].shape)
    axes = step.op.axes
    over = tuple(range(ndim)) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    over = (0, *[axis % ndim + 1 for axis in over])
    at = stacked.index(source)

    def whole(found: Sequence[Tensor], length: Any) -> Tensor:
        return ops.reshape(ops.summation(found[at], over), shape)

    return whole


__all__ = ["gradient", "prod", "wanted"]
