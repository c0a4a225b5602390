"""Translate loops and choices: each becomes one kernel, with its bodies lowered like separate
models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from needle.autograd.node import Node
from needle.autograd.shapes import Spec
from needle.ops import Cond, Scan, WhileLoop
from needle.sizes.dims import dims_of
from needle.trace.graph import Graph, Leaf
from needle_tvm._tvm.names import OP_PATTERN, IRModule, PrimFunc, Target, relax
from needle_tvm.frontend.extents import Extents
from needle_tvm.graph.dependence import is_op
from needle_tvm.kernels.recurrence.gates import fuse_gates
from needle_tvm.kernels.recurrence.gpu import layers
from needle_tvm.kernels.scheduled import SCHEDULED
from needle_tvm.lower import bodies, build, pipeline
from needle_tvm.lower.choices import choice_function
from needle_tvm.lower.frame import Plan
from needle_tvm.lower.loops import Layout, scan_function
from needle_tvm.lower.variant import Variant
from needle_tvm.lower.while_loops import while_function
from needle_tvm.target.info import target_info
from needle_tvm.tir import nests, tasks

if TYPE_CHECKING:
    from needle.op.subgraph import Body


MERGE = "merge_kernels"
TUNED = "tuned"


@dataclass(frozen=True)
class _Lowered:
    """A body's kernels, the keys of its inputs that are not constants, the keys of its results, and
    the caller's values for keys that stand for constants."""

    body: bodies.Body
    inputs: list[Any]
    results: list[Any]
    constants: dict[Any, Any]


@dataclass
class Loops:
    """Translates the loops and choices of a graph for a target and a variant. `lower(graph, target,
    variant)` returns the module of a body."""

    target: Target
    variant: Variant
    lower: Callable[[Graph, Target, Variant, Loops], IRModule]
    depth: int = 0

    def has_kernels(self, op: Scan) -> bool:
        """Return whether there are GPU kernels for the steps of this scan."""
        return self.variant.stage == TUNED and layers.is_layer(op)

    def emit(
        self,
        builder: relax.BlockBuilder,
        node: Node,
        operands: Sequence[Any],
        used: Collection[int],
        fixed: Collection[Node],
        extents: Extents,
    ) -> tuple[Any, ...]:
        """Return the results of a node whose op has bodies; results that are not `used` may be
        None. Nodes in `fixed` depend only on parameters."""
        site = _Site(self, builder, node, list(operands), extents)
        if isinstance(node.op, Scan):
            return site.scan(node.op, used)
        if isinstance(node.op, WhileLoop):
            return site.while_loop(node.op)
        assert isinstance(node.op, Cond)
        return site.cond(node.op, [n for n, x in enumerate(node.input_nodes) if x not in fixed])

    def inside(self) -> tuple[Variant, Loops]:
        """Return the variant and loops for a body whose kernels the loop's function merges."""
        variant = self.variant
        if MERGE in pipeline.switches(variant.stage):
            variant = replace(variant, disable=(*variant.disable, MERGE))
        return variant, replace(self, depth=self.depth + 1)


class _Site:
    """One loop or choice of a graph: its node, and the values of its inputs."""

    def __init__(
        self,
        loops: Loops,
        builder: relax.BlockBuilder,
        node: Node,
        operands: list[Any],
        extents: Extents,
    ) -> None:
        self._loops, self._builder, self._node = loops, builder, node
        self._operands, self._extents = operands, extents
        self._specs = [spec for each in node.input_nodes for spec in each.specs]
        self._alone = loops.depth > 0

    def scan(self, whole: Scan, used: Collection[int]) -> tuple[Any, ...]:
        op = whole.fitted(self._specs).only(sorted(used))
        states, last = op.states, op.states + op.sequences
        if target_info(self._loops.target).is_gpu:
            return tuple(layers.layer(self._builder, whole, self._operands))
        target, stage = self._loops.target, self._loops.variant.stage
        if stage == TUNED:
            op = replace(op, body=fuse_gates(op.body, states, last, target))
        lowered = self._lowered(op.body, range(last), self._operands)
        befores, afters = lowered.inputs[:states], lowered.results[:states]
        step_results = lowered.results[states:]
        stacked = list(dict.fromkeys(step_results))
        described = {
            **dict(zip(lowered.inputs, map(self._shaped, op.body.inputs), strict=False)),
            **dict(zip(lowered.results, map(self._shaped, op.body.output_specs()), strict=True)),
        }
        last_read = [n for n in range(states) if n in used]
        layout = Layout(
            states=list(zip(befores, afters, strict=True)),
            last=last_read,
            slices=lowered.inputs[states:],
            stacked=stacked,
            specs=described,
            length=self._extents.expressed(op.length),
            reverse=op.reverse,
        )
        plan = scan_function(lowered.body, layout, target, self._add, self._alone)
        kept = [n for n in range(states, len(whole.body.outputs)) if n in used]
        specs = whole.infer(*self._specs)
        types = [specs[n] for n in last_read]
        types += [specs[kept[step_results.index(key)]] for key in stacked]
        parts = self._called("loop", plan, range(last), [lowered], types)
        values: list[Any] = [None] * len(whole.body.outputs)
        for at, n in enumerate(last_read):
            values[n] = parts[at]
        for n, key in zip(kept, step_results, strict=True):
            values[n] = parts[len(last_read) + stacked.index(key)]
        return tuple(values)

    def while_loop(self, whole: WhileLoop) -> tuple[Any, ...]:
        op = whole.fitted(self._specs)
        states = range(op.states)
        test = self._lowered(op.test, states, self._operands)
        step = self._lowered(op.body, states, self._operands)
        plan = while_function(
            (test.body, test.inputs, test.results[0]),
            (step.body, step.inputs, step.results),
            [self._shaped(spec) for spec in self._specs[: op.states]],
            self._loops.target,
            self._add,
            self._alone,
        )
        return self._called("loop", plan, states, [test, step], self._specs[: op.states])

    def cond(self, whole: Cond, varying: Sequence[int]) -> tuple[Any, ...]:
        op = whole.fitted(self._specs)
        operands = self._operands[1:]
        inputs = [n - 1 for n in varying if n > 0]
        true, false = (self._lowered(body, inputs, operands) for body in (op.true, op.false))
        specs = op.infer(*self._specs)
        given = [0, *[n + 1 for n in inputs]]
        plan = choice_function(
            (
                (true.body, true.inputs, true.results),
                (false.body, false.inputs, false.results),
            ),
            [self._shaped(self._specs[n]) for n in given],
            list(map(self._shaped, specs)),
            self._loops.target,
            self._add,
            self._alone,
        )
        return self._called("choice", plan, given, [true, false], specs)

    def _lowered(self, body: Body, inputs: Sequence[int], operands: Sequence[Any]) -> _Lowered:
        """Return a lowered body; `inputs` are the numbers of its inputs that are not constants, and
        `operands` are the values of all its inputs."""
        loops = self._loops
        graph, nodes, ends = _graph_of(body, inputs)
        variant, inner = loops.inside()
        module = loops.lower(graph, loops.target, variant, inner)
        module = build.schedule(module, loops.target, variant.stage, variant.disable)
        module = tasks.elsewhere(module, self._add)  # the tasks of loops in the body
        lowered_body = bodies.body_of(module, loops.target, self._add)
        keys = dict(
            zip([leaf.node for leaf in graph.inputs], lowered_body.parameters, strict=False)
        )
        parameters = [operands[nodes.index(leaf.node)] for leaf in graph.params]
        transformed = _transformed(self._builder, module, parameters)
        fixed = dict(zip(lowered_body.parameters[len(graph.inputs) :], transformed, strict=True))
        fixed |= {
            keys[x]: operands[n] for n, x in enumerate(nodes) if x in keys and n not in inputs
        }
        results = dict(zip(graph.outputs, lowered_body.results, strict=True))
        for end in ends:  # inputs that are also results
            if end not in results:
                results[end] = keys[end] if end in keys else operands[nodes.index(end)]
        return _Lowered(
            lowered_body, [keys[nodes[n]] for n in inputs], [results[end] for end in ends], fixed
        )

    def _called(
        self,
        name: str,
        plan: Plan,
        inputs: Sequence[int],
        lowered: Sequence[_Lowered],
        specs: Sequence[Any],
    ) -> tuple[Any, ...]:
        """Call a planned function and return its results, which `specs` describes."""
        builder = self._builder
        function = builder.add_func(
            plan.function.with_attrs({"op_pattern": OP_PATTERN.opaque, SCHEDULED: True}), name
        )
        fixed = {key: value for each in lowered for key, value in each.constants.items()}
        dims = {str(v.name): v for v in self._extents._variables.values()}
        outer = {own: dims[str(own.name)] for own in plan.numbers}
        types = [
            relax.TensorType(self._extents.expressed(spec.shape), str(spec.dtype)) for spec in specs
        ]
        types += [
            relax.TensorType((nests.substitute(size, outer) if outer else size,), dtype)
            for dtype, size in plan.workspaces
        ]
        arguments = [
            *[self._operands[n] for n in inputs],
            *[fixed.get(key, key) for key in plan.constants],
            *outer.values(),
        ]
        arguments = [builder.emit(a) if isinstance(a, relax.Call) else a for a in arguments]
        made = builder.emit(relax.call_tir(function, arguments, out_ty=types))
        if len(types) == 1:
            return (made,)
        return tuple([builder.emit(relax.TupleGetItem(made, n)) for n in range(len(specs))])

    def _add(self, task: PrimFunc) -> Any:
        return self._builder.add_func(task, "task")

    def _shaped(self, spec: Any) -> tuple[Sequence[Any], str]:
        return list(self._extents.expressed(spec.shape)), str(spec.dtype)


def _graph_of(body: Body, inputs: Sequence[int]) -> tuple[Graph, list[Node], list[Node]]:
    """Return the graph of a body, and the nodes of the body's inputs and outputs.

    The graph's inputs are `inputs` and all inputs whose sizes depend on dims; other inputs of the
    body are parameters. For each dim there is an additional input of that size, which nothing
    reads, because the axes of the body's inputs may be expressions of the dim."""
    nodes: list[Any] = [Node(spec, False, "") for spec in body.inputs]
    count = len(nodes)
    for (_, step), spec in zip(body.numbered(), body.specs()[count:], strict=True):
        node = Node(spec, False, "")
        node.op, node.input_nodes = step.op, tuple([nodes[i] for i in step.inputs])
        nodes.append(node)
    leaves = [Leaf(f"v{n}", node, None) for n, node in enumerate(nodes[:count])]  # type: ignore
    outputs = list(dict.fromkeys(nodes[n] for n in body.outputs if n >= count))
    tree: dict[str, Any] = {"args": [], "kwargs": {}}
    others = [leaf for n, leaf in enumerate(leaves) if n not in inputs]
    params = [leaf for leaf in others if not dims_of(leaf.spec.shape)]
    given = [*[leaves[n] for n in inputs], *[leaf for leaf in others if leaf not in params]]
    extents = [n for node in nodes for spec in node.specs for n in spec.shape]
    sizes = [
        Leaf(dim.name, Node(Spec((dim,), "float32"), False, ""), None)  # type: ignore
        for dim in sorted(dims_of(extents), key=lambda dim: dim.name)
    ]
    graph = Graph([*given, *sizes], params, [], outputs, tree, None, None)
    return graph, nodes[:count], [nodes[n] for n in body.outputs]


def _transformed(builder: relax.BlockBuilder, module: IRModule, given: Sequence[Any]) -> list[Any]:
    """Emit into `builder` the work on parameters that passes moved out of a lowered body's `main`;
    return its results, or `given` if there is none."""
    variable = {v.name_hint: v for v in module.get_global_vars()}.get(build.TRANSFORM)
    if variable is None:
        return list(given)
    function = module[variable]
    (parameter,) = function.params
    values: dict[Any, Any] = {parameter: relax.Tuple(list(given))}
    added: dict[Any, Any] = {}

    def mapped(value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            return relax.Tuple([mapped(each) for each in value.fields])
        return values.get(value, value)

    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if is_op(value, "relax.call_tir"):
                if value.args[0] not in added:
                    called = module[value.args[0]].with_attr("op_pattern", OP_PATTERN.opaque)
                    added[value.args[0]] = builder.add_func(called, value.args[0].name_hint)
                arguments = [added[value.args[0]], mapped(value.args[1]), *value.args[2:]]
                made = relax.Call(value.op, arguments, value.attrs, value.ty_args)
                values[binding.var] = builder.emit(made)
            elif isinstance(value, relax.TupleGetItem):
                whole = values[value.tuple_value]
                values[binding.var] = (
                    whole.fields[value.index]
                    if isinstance(whole, relax.Tuple)
                    else builder.emit(relax.TupleGetItem(whole, value.index))
                )
            elif is_op(value, "relax.reshape"):
                values[binding.var] = builder.emit(
                    relax.op.reshape(mapped(value.args[0]), value.args[1])
                )
            else:
                values[binding.var] = mapped(value)
    end = mapped(function.body.body)
    return list(end.fields) if isinstance(end, relax.Tuple) else [end]
