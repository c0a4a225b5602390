"""The gradient of `Scan`: a scan from the last step to the first, over values saved by the
steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import ops
from ..autograd.dispatch import apply
from ..autograd.engine import _filled
from ..autograd.node import Node
from ..autograd.shapes import Spec
from ..autograd.tensor import Tensor, handle
from ..backend_ndarray.dtypes import is_floating
from ..common.state import call_recording
from ..op.signatures import Gradients
from ..op.subgraph import Body, Step, remembered, without
from ..ops.arithmetic import Add
from ..ops.matmul import Matmul
from ..ops.reduce import Summation
from ..ops.scan_loop import Scan
from ..ops.shape import Permute, Reshape, Transpose
from ..recurrence.execution import run
from ..sizes.dims import bounds_of
from .tracing import InnerTrace, recorded


@remembered
def recording(op: Scan) -> Scan:
    """Return the loop `op` with additional outputs that its gradient reads: the state before each
    step, and matrix products, which are slow to recompute. Other values are recomputed from
    these."""
    body = op.body
    stateful, needed = body.reached(range(op.states)), body.needed(body.outputs)
    readers: dict[int, list[int]] = {}
    for number, step in body.numbered():
        for source in step.inputs:
            readers.setdefault(source, []).append(number)
    steps = dict(body.numbered())

    def kept(number: int) -> int:
        """Return the value to save for a product. If a product is read only by an addition, the sum
        is saved instead, because the gradient of an addition does not read its operands."""
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

    def with_them(numbers: Sequence[int]) -> Scan:
        return replace(op, body=body.with_outputs((*body.outputs, *numbers)))

    requires = tuple([is_floating(spec.dtype) for spec in body.inputs])
    floating = [is_floating(spec.dtype) for spec in body.output_specs()]
    given = tuple([n for n in range(op.states, len(floating)) if floating[n]])
    try:
        read = _backward(with_them(more), requires, given, None).read()
    except Exception:  # a gradient rule failed; it fails again if a gradient is requested
        return with_them(more)
    return with_them([n for n in more if n in read])


def gradient(op: Scan, out_grads: Sequence[Tensor | None], node: Any) -> Gradients:
    """Return the gradients of the inputs of a scan (`op`) from the gradients of its results,
    `out_grads`, which are None if absent. `node` has the scan's inputs and results."""
    inputs, outputs = node.inputs, list(node)
    op = op.fitted([x.spec for x in inputs])
    full = recording(op)
    if full.outputs > op.outputs:  # the loop ran without the extra outputs, so run it again
        outputs = list(apply(full, tuple(inputs)))
        out_grads = [*out_grads, *[None] * (full.outputs - op.outputs)]
    op, states, last = full, full.states, full.states + full.sequences
    requires = [x.requires_grad and is_floating(x.dtype) for x in inputs]
    for number in range(states):  # a gradient may flow through any state
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
    loop_results = run(
        back.body,
        [*first, *sequences, *constants, *back.captured],  # type: ignore[list-item]
        len(first),
        len(sequences),
        op.length,
        not op.reverse,
    )
    result: list[Any] = [None] * len(inputs)
    for number, value in back.results(loop_results, sequences, op.length):
        if inputs[number].requires_grad:
            result[number] = value
    return tuple(result)


@dataclass(frozen=True)
class _Backward:
    """The loop that computes a scan's gradient. The inputs of its body are, in order: the gradients
    of the next states (`carried`), sums over steps (`sums`), a step's `known` values, the gradients
    of a step's stacked results, `constants`, and the tensors that the gradient rules `captured`."""

    body: Body
    carried: Sequence[int]
    known: Sequence[int]
    constants: Sequence[int]
    captured: Sequence[Tensor]
    sums: Sequence[Spec]
    slices: Sequence[int]  # the inputs whose gradients are the first stacked results
    rules: Sequence[tuple[int, Rule | None]]  # the gradient rule of each constant; None for a sum
    stacked: _Stacked

    def read(self) -> set[int]:
        """Return the `known` values that the loop or a rule reads."""
        first = len(self.carried) + len(self.sums)
        inputs = [n - first for n in self.body.needed(self.body.outputs) if n >= first]
        inputs += [n - len(self.carried) for n in self.stacked.slices]
        return {self.known[n] for n in inputs if n < len(self.known)}

    def results(
        self, found: Sequence[Tensor], sequences: Sequence[Tensor], length: Any
    ) -> list[tuple[int, Tensor]]:
        """Return (number, gradient) for the scan's inputs, from the results of the loop."""
        first = len(self.carried)
        count = first + len(self.sums)
        totals, whole = iter(found[first:count]), found[count:]
        made = [*zip(self.carried, found, strict=False), *zip(self.slices, whole, strict=False)]

        def value(number: int) -> Tensor:
            return self.stacked.value(number, sequences, whole)

        for number, rule in self.rules:
            made.append((number, next(totals) if rule is None else rule(value, length)))
        return made


@remembered
def _backward(
    op: Scan, requires: tuple[bool, ...], given: tuple[int, ...], device: Any
) -> _Backward:
    """Build the gradient loop. `given` numbers the results whose gradients are known, and
    `requires` says for each input whether it requires a gradient."""
    states, last, count = op.states, op.states + op.sequences, len(op.body.inputs)
    carried = [n for n in range(states) if requires[n]]
    compare = {number for number, step in op.body.numbered() if step.op.compares}
    results = without(op.body.outputs[states:], compare)
    known = list(dict.fromkeys([*results, *range(states, last)]))
    constants = range(last, count)
    step, captured = _step(op, requires, carried, known, given, device)
    wanted = [n for n in constants if requires[n]]
    slices = len(known) + len(given)
    body, sums, rules, stacked = _accumulated(step, len(carried), slices, len(wanted))
    return _Backward(
        body,
        carried,
        known,
        constants,
        captured,
        [Spec(spec.shape, spec.dtype, device) for spec in sums],
        [n for n in range(states, last) if requires[n]],
        list(zip(wanted, rules, strict=True)),
        stacked,
    )


def _step(
    op: Scan,
    requires: Sequence[bool],
    carried: Sequence[int],
    known: Sequence[int],
    given: Sequence[int],
    device: Any,
) -> tuple[Body, list[Tensor]]:
    """Return the body of a backward step and its captured tensors. The body's inputs are the
    gradients of the next states, known values, the gradients of stacked outputs, and constants. Its
    outputs are the gradients of the inputs that require one."""
    body, states = op.body, op.states
    last, count = states + op.sequences, len(op.body.inputs)
    specs = body.specs()
    needs = body.reached([n for n in range(count) if requires[n]])
    ys = [body.outputs[n] for n in given]
    run = InnerTrace.inside()
    nodes = []
    for number in (*carried, *known, *ys, *range(last, count)):
        spec = Spec(specs[number].shape, specs[number].dtype, device)
        nodes.append(run.own(Node(spec, is_floating(spec.dtype), "")))
    handles = iter([handle(node, None) for node in nodes])
    of_next = [next(handles) for _ in carried]
    values: dict[int, Any] = {n: next(handles) for n in known}
    of_ys = [next(handles) for _ in ys]
    values |= {n: next(handles) for n in range(last, count)}
    for number in range(states):  # unknown states, recorded only if something reads them
        if number not in values:
            spec = Spec(specs[number].shape, specs[number].dtype, device)
            values[number] = handle(run.own(Node(spec, is_floating(spec.dtype), "")), None)
    alias: dict[Node, Node] = {}

    def computed() -> list[Tensor]:
        made: dict[int, Any] = {}  # the result of each step, which its gradient rule needs
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
    """Propagate `grads` from a body's outputs back to the values that they depend on."""
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


@dataclass
class _Stacked:
    """The values that the loop keeps for all steps: slices of the sequences that a step reads, and
    the results that it stacks."""

    first: int  # the number of the first input that is a slice of a sequence
    sequences: int
    numbers: list[int]  # the numbers of stacked values
    slices: set[int] = field(default_factory=set)  # slices that a rule reads

    def has(self, number: int) -> bool:
        return self.is_slice(number) or number in self.numbers

    def is_slice(self, number: int) -> bool:
        return self.first <= number < self.first + self.sequences

    def add(self, number: int) -> None:
        if self.is_slice(number):
            self.slices.add(number)
        elif number not in self.numbers:
            self.numbers.append(number)

    def value(self, number: int, sequences: Sequence[Tensor], stacked: Sequence[Tensor]) -> Tensor:
        if self.is_slice(number):
            return sequences[number - self.first]
        return stacked[self.numbers.index(number)]


# A rule computes the gradient of a constant after the loop. Its arguments are a function that
# returns a value for all steps, and the number of steps.
Rule = Callable[[Callable[[int], Tensor], Any], Tensor]


def _accumulated(
    step: Body, carried: int, slices: int, constants: int
) -> tuple[Body, list[Spec], list[Rule | None], _Stacked]:
    """Extend `step` to sum the gradients of constants, its last outputs, over the steps. Return the
    body, the specs of the sums that are states, the gradient rule of each constant (None for such a
    sum), and the values that the rules read.

    A sum of outer products is computed after the loop as one product of all steps' operands. A sum
    over axes of a value that is stacked anyway is also computed after the loop. All other sums are
    states.
    """
    steps, specs = dict(step.numbered()), step.specs()
    first, last = step.outputs[:carried], len(step.outputs) - constants
    stacked = _Stacked(carried, slices, list(step.outputs[carried:last]))
    ends = step.outputs[last:]
    varying = step.reached(range(carried + slices))
    rules = [_product(number, steps, specs, stacked, varying) for number in ends]
    for at, number in enumerate(ends):
        rules[at] = rules[at] or _total(number, steps, specs, stacked)
    summed = [number for number, rule in zip(ends, rules, strict=True) if rule is None]
    # The sums are inputs after the states.
    moved = [n if n < carried else n + len(summed) for n in range(step.count)]
    sums = [Spec(specs[n].shape, specs[n].dtype, None) for n in summed]
    inputs = (*step.inputs[:carried], *sums, *step.inputs[carried:])
    made = [Step(each.op, tuple([moved[i] for i in each.inputs])) for each in step.steps]
    totals = []
    for at, number in enumerate(summed):
        made.append(Step(Add(), (carried + at, moved[number])))
        totals.append(len(inputs) + len(made) - 1)
    outputs = (*[moved[n] for n in first], *totals, *[moved[n] for n in stacked.numbers])
    whole = Body(inputs, tuple(made), outputs)
    return whole.cut(range(len(inputs)), outputs), sums, rules, stacked


def _through(number: int, steps: dict[int, Step], kinds: Any) -> tuple[int, list[int]]:
    """Follow a value back through steps whose ops are of `kinds`. Return the source and the values
    passed on the way."""
    passed = []
    while number in steps and isinstance(steps[number].op, kinds):
        passed.append(number)
        number = steps[number].inputs[0]
    return number, passed


def _is_transposed(number: int, steps: dict[int, Step], specs: Any) -> bool:
    """Return whether a value is the transpose of a matrix."""
    step = steps.get(number)
    if step is None or len(specs[number].shape) != 2:
        return False
    return isinstance(step.op, Transpose) or (
        isinstance(step.op, Permute) and tuple(a % 2 for a in step.op.axes) == (1, 0)
    )


def _product(
    number: int, steps: dict[int, Step], specs: Any, stacked: _Stacked, varying: set[int]
) -> Rule | None:
    """Return the rule for a gradient that is a matrix product larger than its operands; None for
    other gradients."""
    shape = specs[number].shape
    source, passed = _through(number, steps, (Reshape, Transpose, Permute))
    if any(not isinstance(steps[n].op, Reshape) for n in passed[:-1]):
        return None
    turned = bool(passed) and _is_transposed(passed[-1], steps, specs)
    if passed and not turned and not isinstance(steps[passed[-1]].op, Reshape):
        return None
    step = steps.get(source)
    if step is None or not isinstance(step.op, Matmul):
        return None
    left, right = step.inputs
    a, b = specs[left], specs[right]
    if len(a.shape) != 2 or len(b.shape) != 2 or not varying.issuperset(step.inputs):
        return None
    (rows, inner), columns = a.shape, b.shape[1]
    if bounds_of(inner * (rows + columns))[1] >= bounds_of(rows * columns)[1]:
        return None
    # If the left operand is a transpose, its source already has the rows of all steps in order.
    by_rows = _is_transposed(left, steps, specs)
    if by_rows:
        left = steps[left].inputs[0]
    stacked.add(left)
    stacked.add(right)

    def whole(value: Callable[[int], Tensor], length: Any) -> Tensor:
        first, count = value(left), length * inner
        if by_rows:
            first = ops.transpose(ops.reshape(first, (count, rows)))
        else:
            first = ops.reshape(ops.permute(first, (1, 0, 2)), (rows, count))
        made = ops.matmul(first, ops.reshape(value(right), (count, columns)))
        return ops.reshape(ops.transpose(made) if turned else made, shape)

    return whole


def _total(number: int, steps: dict[int, Step], specs: Any, stacked: _Stacked) -> Rule | None:
    """Return the rule for a gradient that sums a value over axes, if the loop keeps that value for
    all steps; else None."""
    shape = specs[number].shape
    number, _ = _through(number, steps, Reshape)
    step = steps.get(number)
    if step is None or not isinstance(step.op, Summation) or not stacked.has(step.inputs[0]):
        return None
    (source,), axes = step.inputs, step.op.axes
    stacked.add(source)
    ndim = len(specs[source].shape)
    over = tuple(range(ndim)) if axes is None else axes if isinstance(axes, tuple) else (axes,)
    over = (0, *[axis % ndim + 1 for axis in over])
    return lambda value, length: ops.reshape(ops.summation(value(source), over), shape)
