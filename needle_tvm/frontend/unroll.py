"""Unroll the loops and choices of a graph into the ops of all their steps, for code without loops.

On a GPU, the host would have to launch the kernels of a loop again for each step. Only the usual
recurrent layers run in this way (`kernels.recurrence.gpu.layers`). Both branches of a choice run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from needle import ops
from needle.autograd.node import Node, OpRules
from needle.op.subgraph import Body
from needle.ops import Cond, MakeTuple, Scan, TupleGetItem, WhileLoop
from needle.trace.graph import Graph
from needle_runtime.errors import TargetError


def unrolled(graph: Graph, keep: Callable[[Scan], bool]) -> Graph:
    """Return the graph with scans and choices unrolled, except for scans that `keep` accepts.
    Return the same graph if there are none.

    Raises TargetError for a loop whose number of steps is not known.
    """
    if not any(node.op is not None and node.op.has_bodies for node in graph.nodes):
        return graph
    nodes: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op is None:
            nodes[node] = node
            continue
        inputs = [nodes[source] for source in node.input_nodes]
        if isinstance(node.op, Scan) and keep(node.op.only(sorted(parts_read(graph, node)))):
            new: Node | list[Node] = _node(node.op, inputs, node.scope)
        else:
            new = _written(node.op, inputs, node.scope)
        nodes[node] = new if isinstance(new, Node) else _node(MakeTuple(), new, node.scope)
    result = Graph(
        graph.inputs,
        list(graph.params),
        list(graph.constants),
        [nodes[node] for node in graph.outputs],
        graph.input_tree,
        graph.output_tree,
        graph.signature,
        graph.output_names,
    )
    result.weights = graph.weights
    return result


def _node(op: OpRules, inputs: Sequence[Node], scope: str | None) -> Node:
    node = Node(op.infer(*[source.spec for source in inputs]), False, scope)
    node.op, node.input_nodes = op, tuple(inputs)
    return node


def parts_read(graph: Graph, node: Node) -> set[int]:
    """Return the numbers of the parts of a tuple-valued node that are read."""
    readers = [each for each in graph.nodes if node in each.input_nodes]
    if node in graph.outputs or not all(isinstance(r.op, TupleGetItem) for r in readers):
        return set(range(len(node.specs)))
    return {each.op.index % len(node.specs) for each in readers}  # type: ignore[union-attr]


def _written(op: OpRules, inputs: Sequence[Node], scope: str | None) -> Node | list[Node]:
    """Return the node of an op; for an op with bodies, the nodes of all its results."""

    def run(body: Body, given: Sequence[Node]) -> list[Node]:
        def step(op: OpRules, given: Sequence[Node]) -> Node:
            if isinstance(op, TupleGetItem):  # from the results of an unrolled op
                (whole,) = given
                if isinstance(whole.op, MakeTuple):
                    return whole.input_nodes[op.index % len(whole.input_nodes)]
            new = _written(op, given, scope)
            return new if isinstance(new, Node) else _node(MakeTuple(), new, scope)

        found: list[Node] = body.evaluated(given, step)
        return found

    if isinstance(op, WhileLoop):
        raise TargetError(
            "while_loop: code for a GPU cannot have a loop whose number of steps is not known; use "
            "needle.scan with a length, or compile for the CPU"
        )
    if isinstance(op, Cond):
        predicate, *given = inputs
        flag = _node(ops.Reshape(()), [predicate], scope)
        pairs = zip(run(op.true, given), run(op.false, given), strict=True)
        return [_node(ops.Where(), [flag, *pair], scope) for pair in pairs]
    if not isinstance(op, Scan):
        return _node(op, inputs, scope)
    states, last = op.states, op.states + op.sequences
    now, constants = list(inputs[:states]), inputs[last:]
    kept: list[list[Node]] = [[] for _ in op.body.outputs[states:]]
    for t in reversed(range(op.length)) if op.reverse else range(op.length):
        slices = [_node(ops.Slice((t,)), [x], scope) for x in inputs[states:last]]
        made = run(op.body, [*now, *slices, *constants])
        now = made[:states]
        for values, value in zip(kept, made[states:], strict=True):
            values.append(value)
    whole = [_node(ops.Stack(0), v[::-1] if op.reverse else v, scope) for v in kept]
    return [*now, *whole]
