"""Rules for loops and conditions, whose bodies are subgraphs: Scan, Loop and If."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import ops
from ...autograd.node import Node
from ...op.subgraph import Body
from ...sizes.extents import same
from ._rules import Site, rule, written
from ._writer import Value, Writer
from .along_axis import counting
from .recurrent import layer


def _run(w: Writer, body: Body, inputs: Sequence[Value]) -> list[Value]:
    """Write the nodes of a body for these inputs and return its outputs."""
    specs = body.specs()
    nodes = [Node(spec, False, "") for spec in specs]
    for number, step in body.numbered():
        nodes[number].op = step.op
        nodes[number].input_nodes = tuple([nodes[i] for i in step.inputs])
    users: dict[Node, list[Node | None]] = {node: [] for node in nodes}
    for node in nodes:
        for source in node.input_nodes:
            users[source].append(node)
    for number in body.outputs:
        users[nodes[number]].append(None)
    values: dict[Node, Any] = dict(zip(nodes, inputs, strict=False))
    for node in nodes:
        if node not in values:  # inputs already have values
            values[node] = written(w, node, values, users)
    return [values[nodes[number]] for number in body.outputs]


@rule(ops.Scan)
def scan(s: Site, *inputs: Value) -> tuple[Value, ...]:
    """Write a Scan without unused results. A traced scan also returns results for its gradient."""
    w, count, used = s.w, s.op.states, _used(s)
    found = None if same(s.op.length, 0) else layer(s, used)
    if found is not None:
        return found
    op = s.op.fitted([node.spec for node in s.node.input_nodes]).only(used)
    kept = [*range(count), *[n for n in used if n >= count]]
    last = count + op.sequences
    states, constants = inputs[:count], inputs[last:]
    xs = list(inputs[count:last])
    if same(op.length, 0):  # the stacked outputs have no elements
        made = [*states, *[w.full(0, s.out[n].dtype, s.out[n].shape) for n in kept[count:]]]
    else:
        extra = 0 if xs else 1  # a Scan needs a sequence to count its steps

        def step(body: Writer, *given: Value) -> tuple[Sequence[Value], Sequence[Value]]:
            made = _run(body, op.body, [*given[: len(given) - extra], *constants])
            return made[:count], made[count:]

        sequences = xs or [counting(w, op.length)]
        lasts, stacks = w.scan(states, sequences, step, 0, op.reverse)
        made = [*lasts, *stacks]
    results = [Value("", spec.dtype, spec.shape) for spec in s.out]
    for number, value in zip(kept, made, strict=True):
        results[number] = value
    return tuple(results)


def _used(s: Site) -> list[int]:
    """Return the indices of the results that are read."""
    users = s.users[s.node]
    if all(user is not None and isinstance(user.op, ops.TupleGetItem) for user in users):
        return sorted({user.op.index % len(s.out) for user in users})  # type: ignore[union-attr]
    return list(range(len(s.out)))


@rule(ops.WhileLoop)
def while_loop(s: Site, *inputs: Value) -> tuple[Value, ...]:
    """Write a Loop that has no trip count and tests its states after each step."""
    w, count = s.w, s.op.states
    op = s.op.fitted([node.spec for node in s.node.input_nodes])
    states, constants = inputs[:count], inputs[count:]

    def test(w: Writer, now: Sequence[Value]) -> Value:
        return w.reshape(_run(w, op.test, [*now, *constants])[0], ())

    body = w.subgraph(
        "step",
        [("number", "int64", ()), ("again", "bool", ())]
        + [("state", x.dtype, x.shape) for x in states],
    )
    after = _run(body, op.body, [*body.inputs[2:], *constants])
    body.outputs = [body.own(x) for x in (test(body, after), *after)]
    dtypes = tuple(x.dtype for x in states)
    made = w.node("Loop", None, test(w, states), *states, dtype=dtypes, data=1, body=body)
    return tuple(made)


@rule(ops.Cond)
def cond(s: Site, predicate: Value, *inputs: Value) -> tuple[Value, ...]:
    op = s.op.fitted([node.spec for node in s.node.input_nodes])
    branches: dict[str, Any] = {}
    for name, body in (("then_branch", op.true), ("else_branch", op.false)):
        branches[name] = w = s.w.subgraph(name, [])
        w.outputs = [w.own(x) for x in _run(w, body, inputs)]
    dtypes = tuple(spec.dtype for spec in s.out)
    made = s.w.node("If", s.w.reshape(predicate, ()), dtype=dtypes, **branches)
    return tuple(made)
