"""The gradient of `Scan`: a scan from the last step to the first, over what the steps have left."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import ops
from .._state import call_recording, state
from ..apply import apply
from ..backend_ndarray.dtypes import is_floating
from ..body import Body, Step, without
from ..dims import bounds_of
from ..engine import _filled
from ..node import Node
from ..op_types import Gradients
from ..ops.arithmetic import Add
from ..ops.matmul import Matmul
from ..ops.reduce import Summation
from ..ops.shape import Reshape
from ..spec import Spec
from ..tensor import Tensor, handle
from .tracing import InnerTrace, recorded

if TYPE_CHECKING:
    from ..ops.scan_loop import Scan


@functools.lru_cache(maxsize=256)
def recording(op: Scan) -> Scan:
    """The loop with what its gradient reads among its outputs: states before each step, and
    products, which take long to compute again. The rest is computed again from these."""
    body = op.body
    stateful, needed = body.reached(range(op.states)), body.needed(body.outputs)
    readers: dict[int, list[int]] = {}
    for number, step in body.numbered():
        for source in step.inputs:
            readers.setdefault(source, []).append(number)
    steps = dict(body.numbered())

    def kept(number: int) -> int:
        """A sum that alone reads a product is kept in its place: its gradient reads no product."""
        users = readers.get(number, [])
        is_added = len(users) == 1 and isinstance(steps[users[0]].op, Add)
        return kept(users[0]) if is_added and number not in body.outputs else number

    products = [
        kept(number)
        for number, step in steps.items()
        if number in stateful and number in needed and isinstance(step.op, Matmul)
    ]
    there = body.outputs[op.states :]
    more = without(dict.fromkeys([*range(op.states), *products]), there)
    return replace(op, body=body.with_outputs((*body.outputs, *more)))


def gradient(op: Scan, out_grads: Sequence[Tensor | None], node: Any) -> Gradients:
    """The gradients of a scan's inputs from those of its results, None where there is none."""
    from .scan import run

    inputs, outputs = node.inputs, list(node)
    op = op.fitted([x.spec for x in inputs])
    full = recording(op)
    if full.outputs > op.outputs:  # it was not recorded for a gradient: run it once more
        outputs = list(apply(full, tuple(inputs)))
        out_grads = [*out_grads, *[None] * (full.outputs - op.outputs)]
    op, states, last = full, full.states, full.states + full.sequences
    requires = [x.requires_grad and is_floating(x.dtype) for x in inputs]
    for number in range(states):  # a gradient may come through any state
        requires[number] = is_floating(inputs[number].dtype)
    given = tuple([n for n in range(states, op.outputs) if out_grads[n] is not None])
    back = _backward(op, tuple(requires), given, inputs[0].device)
    of_states = [
        _filled(inputs[n].shape, 0, inputs[n]) if out_grads[n] is None else out_grads[n]
        for n in back.carried
    ]
    sums = [_filled(spec.shape, 0, spec) for spec in back.sums]
    stacked = {n: outputs[states + at] for at, n in enumerate(op.body.outputs[states:])}
    stacked |= {n: inputs[n] for n in range(states, last)}
    sequences = [stacked[n] for n in back.known] + [out_grads[n] for n in given]
    constants = [inputs[n] for n in back.constants]
    first = [*of_states, *sums]
    found = run(
        back.body,
        [*first, *sequences, *constants, *back.captured],  # type: ignore[list-item]
        len(first),
        len(sequences),
        op.length,
        not op.reverse,
    )
    result: list[Any] = [None] * len(inputs)
    for number, value in back.results(found, op.length):
        if inputs[number].requires_grad:
            result[number] = value
    return tuple(result)


@dataclass(frozen=True)
class _Backward:
    """The loop of a scan's gradient. Its body takes the gradients of the next states `carried` and
    sums over steps (`sums`), the values `known` and the gradients of stacked results of a step, and
    then `constants` and what the gradient rules have `captured`."""

    body: Body
    carried: Sequence[int]
    known: Sequence[int]
    constants: Sequence[int]
    captured: Sequence[Tensor]
    sums: Sequence[Spec]
    slices: Sequence[int]  # the inputs whose gradients are its first stacked results
    rules: Sequence[tuple[int, Any]]  # by constant input, what makes its gradient; None: a sum

    def results(self, found: Sequence[Tensor], length: Any) -> list[tuple[int, Tensor]]:
        """The gradients of inputs, by number, from the results of the loop."""
        first = len(self.carried)
        count = first + len(self.sums)
        totals, whole = iter(found[first:count]), found[count:]
        made = [*zip(self.carried, found, strict=False), *zip(self.slices, whole, strict=False)]
        for number, rule in self.rules:
            made.append((number, next(totals) if rule is None else rule(whole, length)))
        return made


@functools.lru_cache(maxsize=256)
def _backward(
    op: Scan, requires: tuple[bool, ...], given: tuple[int, ...], device: Any
) -> _Backward:
    """The loop for results whose gradients are `given`, and inputs that require one."""
    states, last, count = op.states, op.states + op.sequences, len(op.body.inputs)
    carried = [n for n in range(states) if requires[n]]
    compare = {number for number, step in op.body.numbered() if step.op.compares}
    results = without(op.body.outputs[states:], compare)
    known = list(dict.fromkeys([*results, *range(states, last)]))
    constants = range(last, count)
    step, captured = _step(op, requires, carried, known, given, device)
    wanted = [n for n in constants if requires[n]]
    body, sums, rules = _accumulated(step, len(carried), len(known) + len(given), len(wanted))
    return _Backward(
        body,
        carried,
        known,
        constants,
        captured,
        [Spec(spec.shape, spec.dtype, device) for spec in sums],
        [n for n in range(states, last) if requires[n]],
        list(zip(wanted, rules, strict=True)),
    )


def _step(
    op: Scan,
    requires: Sequence[bool],
    carried: Sequence[int],
    known: Sequence[int],
    given: Sequence[int],
    device: Any,
) -> tuple[Body, list[Tensor]]:
    """The body of a step backward, and what it captures. Inputs: the gradients of next states,
    known values, the gradients of stacked outputs, and constants; outputs: the gradients of the
    inputs that require one."""
    body, states = op.body, op.states
    last, count = states + op.sequences, len(op.body.inputs)
    specs = body.specs()
    needs = body.reached([n for n in range(count) if requires[n]])
    ys = [body.outputs[n] for n in given]
    run = InnerTrace(state.trace)
    nodes = []
    for number in (*carried, *known, *ys, *range(last, count)):
        spec = Spec(specs[number].shape, specs[number].dtype, device)
        nodes.append(run.own(Node(spec, is_floating(spec.dtype), "")))
    handles = iter([handle(node, None) for node in nodes])
    of_next = [next(handles) for _ in carried]
    values: dict[int, Any] = {n: next(handles) for n in known}
    of_ys = [next(handles) for _ in ys]
    values |= {n: next(handles) for n in range(last, count)}
    alias: dict[Node, Node] = {}

    def computed() -> list[Tensor]:
        made: dict[int, Any] = {}  # what each step's gradient rule takes for its result
        for number, each in body.numbered():
            made[number] = apply(each.op, tuple([values[i] for i in each.inputs]))
            made[number]._node.requires_grad = number in needs
            if number in values:
                alias[made[number]._node] = values[number]._node
            else:
                values[number] = made[number]
        grads: dict[int, Any] = {}
        ends = [body.outputs[n] for n in carried]
        for number, grad in zip((*ends, *ys), (*of_next, *of_ys), strict=True):
            _add(grads, number, grad)
        _pull_back(body, made, grads, needs)
        found = []
        for number in [n for n in range(count) if requires[n]]:
            spec = Spec(specs[number].shape, specs[number].dtype, device)
            found.append(grads[number] if number in grads else _filled(spec.shape, 0, spec))
        return found

    with run.running():
        ends = [run.local(x)._node for x in call_recording(False, computed)]
    return recorded(run, nodes, ends, alias)


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
    step: Body, carried: int, slices: int, constants: int
) -> tuple[Body, list[Spec], list[Any]]:
    """The body with the gradients of constants, its last outputs, summed over steps: (the body, the
    specs of sums that are states, and for each constant the rule that makes its gradient of what is
    stacked, None for a sum).

    A sum of outer products is one product behind the loop, of what its operands are stacked to. A
    sum over axes of a value that is stacked anyway is taken there too. All others are states.
    """
    steps, specs = dict(step.numbered()), step.specs()
    first, last = step.outputs[:carried], len(step.outputs) - constants
    stacked = list(step.outputs[carried:last])
    ends = step.outputs[last:]

    def place(number: int) -> int:
        if number not in stacked:
            stacked.append(number)
        return stacked.index(number)

    varying = step.reached(range(carried + slices))
    rules = [_product(number, steps, specs, place, varying) for number in ends]
    for at, number in enumerate(ends):
        rules[at] = rules[at] or _total(number, steps, specs, stacked)
    summed = [number for number, rule in zip(ends, rules, strict=True) if rule is None]
    # The inputs of sums come behind the states.
    moved = [n if n < carried else n + len(summed) for n in range(step.count)]
    sums = [Spec(specs[n].shape, specs[n].dtype, None) for n in summed]
    inputs = (*step.inputs[:carried], *sums, *step.inputs[carried:])
    made = [Step(each.op, tuple([moved[i] for i in each.inputs])) for each in step.steps]
    totals = []
    for at, number in enumerate(summed):
        made.append(Step(Add(), (carried + at, moved[number])))
        totals.append(len(inputs) + len(made) - 1)
    outputs = (*[moved[n] for n in first], *totals, *[moved[n] for n in stacked])
    return Body(inputs, tuple(made), outputs), sums, rules


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
