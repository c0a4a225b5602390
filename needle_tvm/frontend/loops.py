"""Translation of loops: each becomes one kernel, its body lowered like a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from needle.dims import dims_of
from needle.graph import Graph, Leaf
from needle.node import Node
from needle.ops import Scan
from needle.spec import Spec
from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, relax
from needle_tvm.frontend.extents import Extents
from needle_tvm.graph.dependence import is_op
from needle_tvm.kernels.mark import SCHEDULED
from needle_tvm.kernels.recurrence.gates import fuse_gates
from needle_tvm.kernels.recurrence.pack_recurrence import pack_recurrence
from needle_tvm.lower import build, pipeline
from needle_tvm.lower.loops import Layout, Loop, body_of
from needle_tvm.lower.variant import Variant
from needle_tvm.tir import nests

if TYPE_CHECKING:
    pass


MERGE = "merge_kernels"


@dataclass
class Loops:
    """Translates the loops of a graph for a target and a variant. `lower(graph, target, variant)`
    gives the module of a body."""

    target: Target
    variant: Variant
    lower: Callable[[Graph, Target, Variant, Loops], IRModule]
    depth: int = 0

    def emit(
        self,
        builder: relax.BlockBuilder,
        node: Node,
        operands: Sequence[Any],
        used: Collection[int],
        extents: Extents,
    ) -> tuple[Any, ...]:
        """The results of a Scan; those of its stacked results that are not `used` are None."""
        whole = node.op
        assert isinstance(whole, Scan)
        op = whole.fitted([s for i in node.input_nodes for s in i.specs]).only(used)
        states, last = op.states, op.states + op.sequences
        if (
            pack_recurrence in pipeline.of(self.target, self.variant.stage).graph
            and str(self.target.kind) == "llvm"
        ):
            body = fuse_gates(op.body, states, last, self.target)
            op = replace(op, body=body)
        graph, ends = _graph_of(op)
        variant = self.variant
        if MERGE in pipeline.switches(variant.stage):  # the loop's function merges them
            variant = replace(variant, disable=(*variant.disable, MERGE))
        inside = replace(self, depth=self.depth + 1)
        module = self.lower(graph, self.target, variant, inside)
        module = build.schedule(module, self.target, variant.stage, variant.disable)
        body = body_of(module, self.target)
        keys = dict(zip([leaf.node for leaf in graph.inputs], body.parameters, strict=False))
        results = dict(zip(graph.outputs, body.results, strict=True))
        given = dict(
            zip([leaf.name for leaf in graph.params], _constants(op, operands, graph), strict=True)
        )
        fixed = _transformed(builder, module, list(given.values()))
        of_parameter = dict(zip(body.parameters[len(graph.inputs) :], fixed, strict=True))
        for leaf, parameter in zip(graph.inputs[last:], body.parameters[last:], strict=False):
            if leaf.name in _names(op):
                of_parameter[parameter] = operands[_names(op)[leaf.name]]
        for number in range(last, len(op.body.inputs)):  # constants that are results themselves
            leaf = ends[number]
            if leaf in ends[len(op.body.inputs) :] and leaf not in keys:
                keys[leaf] = operands[number]
        found = [results.get(end, keys.get(end)) for end in ends[len(op.body.inputs) :]]
        layout = Layout(
            states=[*zip([keys[n] for n in ends[:states]], found[:states], strict=True)],
            slices=[keys[n] for n in ends[states:last]],
            stacked=list(dict.fromkeys(found[states:])),
            specs=self._specs(op, ends, keys, found, extents),
            length=extents.expressed(op.length),
            reverse=op.reverse,
        )
        loop = Loop(body, layout, module, self.target)
        plan = loop.plan(lambda task: builder.add_func(task, "task"), self.depth > 0)
        function = builder.add_func(
            plan.function.with_attrs({"op_pattern": OP_PATTERN.opaque, SCHEDULED: True}), "loop"
        )
        constants = [of_parameter.get(key, key) for key in plan.constants]
        specs = [
            spec
            for number, spec in enumerate(
                whole.infer(*[s for i in node.input_nodes for s in i.specs])
            )
        ]
        dims = {str(v.name): v for v in extents._variables.values()}
        types = [_type(spec, extents) for spec in specs[:states]]
        order = [
            next(i for i, f in enumerate(found[states:]) if f is key) for key in layout.stacked
        ]
        kept = [n for n in range(len(whole.body.outputs)) if n < states or n in used]
        types += [_type(specs[kept[states + i]], extents) for i in order]
        symbols = [dims[str(v.name)] for v in plan.symbols]
        outer = dict(zip(plan.symbols.values(), symbols, strict=True))
        types += [
            relax.TensorType((nests.substitute(size, outer) if outer else size,), dtype)
            for dtype, size in plan.workspaces
        ]
        arguments = [*operands[:last], *constants, *symbols]
        arguments = [builder.emit(a) if isinstance(a, relax.Call) else a for a in arguments]
        made = builder.emit(relax.call_tir(function, arguments, out_ty=types))
        count = states + len(layout.stacked)
        parts = [made]
        if len(types) > 1:  # one result is no tuple
            parts = [builder.emit(relax.TupleGetItem(made, n)) for n in range(count)]
        place = {key: parts[states + i] for i, key in enumerate(layout.stacked)}
        values: list[Any] = [None] * len(whole.body.outputs)
        for n, at in enumerate(kept):
            values[at] = parts[n] if n < states else place[found[n]]
        return tuple(values)

    def _specs(
        self, op: Scan, ends: Sequence[Node], keys: Any, found: Sequence[Any], extents: Extents
    ) -> dict[Any, tuple[Sequence[Any], str]]:
        specs: dict[Any, tuple[Sequence[Any], str]] = {}
        count = len(op.body.inputs)
        for node in ends[: op.states + op.sequences]:
            specs[keys[node]] = _shape(node.specs[0], extents)
        for node, key in zip(ends[count:], found, strict=True):
            specs[key] = _shape(node.specs[0], extents)
        return specs


def _shape(spec: Any, extents: Extents) -> tuple[Sequence[Any], str]:
    return list(extents.expressed(spec.shape)), str(spec.dtype)


def _type(spec: Any, extents: Extents) -> Any:
    return relax.TensorType(extents.expressed(spec.shape), str(spec.dtype))


def _graph_of(op: Scan) -> tuple[Graph, list[Node]]:
    """The graph of a body: states and slices are inputs, constants parameters, unless their sizes
    depend on dims. And its nodes: those of the body's inputs, then those of its outputs. Each dim
    is the size of a further input, which nothing reads: others' axes may be expressions of it."""
    body, last = op.body, op.states + op.sequences
    nodes: list[Any] = [Node(spec, False, "") for spec in body.inputs]
    for (_, step), spec in zip(body.numbered(), body.specs()[len(nodes) :], strict=True):
        node = Node(spec, False, "")
        node.op, node.input_nodes = step.op, tuple([nodes[i] for i in step.inputs])
        nodes.append(node)
    leaves = [Leaf(name, nodes[n], None) for name, n in _names(op).items()]
    outputs = list(dict.fromkeys(nodes[n] for n in body.outputs if n >= len(body.inputs)))
    tree = {"args": [], "kwargs": {}}
    extents = [n for node in nodes for spec in node.specs for n in spec.shape]
    sizes = [
        Leaf(dim.name, Node(Spec((dim,), "float32"), False, ""), None)
        for dim in sorted(dims_of(extents), key=lambda dim: dim.name)
    ]
    of_one_size = [leaf for leaf in leaves[last:] if not dims_of(leaf.spec.shape)]
    others = [leaf for leaf in leaves[last:] if dims_of(leaf.spec.shape)]
    inputs = [*leaves[:last], *others, *sizes]
    graph = Graph(inputs, of_one_size, [], outputs, tree, None, None)
    return graph, [*nodes[: len(body.inputs)], *[nodes[n] for n in body.outputs]]


def _constants(op: Scan, operands: Sequence[Any], graph: Graph) -> list[Any]:
    """The operands of a graph's parameters."""
    return [operands[_names(op)[leaf.name]] for leaf in graph.params]


def _names(op: Scan) -> dict[str, int]:
    """The names that a body's inputs have in its graph."""
    return {f"v{n}": n for n in range(len(op.body.inputs))}


def _transformed(builder: relax.BlockBuilder, module: IRModule, given: Sequence[Any]) -> list[Any]:
    """What a lowered body's `main` takes for its constants, computed in `builder` as the passes
    have it."""
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
                values[binding.var] = values[value.tuple_value].fields[value.index]
            elif is_op(value, "relax.reshape"):
                values[binding.var] = builder.emit(
                    relax.op.reshape(mapped(value.args[0]), value.args[1])
                )
            else:
                values[binding.var] = mapped(value)
    end = mapped(function.body.body)
    return list(end.fields) if isinstance(end, relax.Tuple) else [end]
