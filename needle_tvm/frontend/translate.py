"""Translate a traced graph to a Relax module. No op is known by name: each emits itself."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from needle.backend_ndarray.dtypes import SMALL_INTEGER, compute_dtype, is_floating, is_narrow
from needle.ops import _te
from needle.sizes.dims import bounds_of
from needle_tvm._tvm.names import (
    OP_PATTERN,
    TE_NAMESPACE,
    IRModule,
    TensorType,
    relax,
    te,
    tvm_ffi,
)
from needle_tvm.errors import TranslationError
from needle_tvm.faults import named, sentence
from needle_tvm.frontend.extents import Extents
from needle_tvm.frontend.unroll import parts_read
from needle_tvm.kernels.scheduled import SCHEDULED
from needle_tvm.lower.build import MAIN
from needle_tvm.tir import reads
from needle_tvm.tir.functions import nothing, tensors_of

if TYPE_CHECKING:
    from needle.autograd import Node
    from needle.backend_ndarray import NDArray
    from needle.op import Op
    from needle.trace import Graph, Leaf
    from needle_tvm.frontend.loops import Loops

_FOLDED = 4096  # elements of a constant that may replace smaller ones


def translate(graph: Graph, *, prefer_emit: bool, loops: Loops | None = None) -> IRModule:
    """Return a module with one function `main(inputs..., params...)` for the outputs of `graph`.

    Parameters stay parameters: the attribute `num_input` of `main` is the number of inputs among
    its arguments. With `prefer_emit`, ops that have a Relax operator use it, so that graph passes
    recognise them; otherwise every op becomes a tensor expression. `loops` translates ops with
    bodies. One output is returned bare, several as a tuple, in the graph's order. Dims become
    variables, and their bounds become attributes of `main`.

    Raises a TranslationError that names the op and the module that called it if an op has no rule,
    its rule fails, or its shapes or dtypes differ from what `infer` returns.
    """
    builder, extents = relax.BlockBuilder(), Extents.of(graph.dims)
    arguments = [_variable(leaf, extents) for leaf in (*graph.inputs, *graph.params)]
    values: dict[Node, Any] = {
        leaf.node: variable
        for leaf, variable in zip((*graph.inputs, *graph.params), arguments, strict=True)
    }
    known = {leaf.node: leaf.value for leaf in graph.constants}

    def value_of(node: Node) -> Any:
        if node not in values:
            # Without a dtype, TVM would convert float64 to float32, and int64 to int32.
            array = known[node].numpy()
            values[node] = relax.const(array, array.dtype.name)
        return values[node]

    try:
        attributes = {"num_input": len(graph.inputs), **extents.attributes}
        with builder.function(MAIN, arguments, attrs=attributes):
            with builder.dataflow():
                for node in graph.nodes:
                    if node.op is None:
                        continue
                    if prefer_emit and _is_foldable(node, known, extents):
                        known[node] = _folded(node, known)
                        continue
                    operands = [value_of(operand) for operand in node.input_nodes]
                    if loops is not None and node.op.has_bodies:
                        used, fixed = parts_read(graph, node), _fixed(graph)
                        made = loops.emit(builder, node, operands, used, fixed, extents)
                    else:
                        made = _emit(builder, node, operands, prefer_emit, extents)
                    values[node] = made
                results = [builder.emit_output(value_of(node)) for node in graph.outputs]
            builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    except BaseException:
        builder._end_block()  # otherwise TVM prints a warning about the open block
        raise
    return builder.get()


def _is_foldable(node: Node, known: Collection[Node], extents: Extents) -> bool:
    """Return whether the node applies one of needle's own ops to constants and has one result, not
    much larger than they are."""
    op = node.op
    if op is None or not node.input_nodes:
        return False
    if any(source not in known for source in node.input_nodes):
        return False
    if not type(op).__module__.startswith("needle.") or op.structural or op.has_bodies:
        return False
    if type(node.spec) is tuple or extents.used_by(node):
        return False
    operands = [prod(source.spec.shape) for source in node.input_nodes]
    return prod(node.spec.shape) <= max(_FOLDED, *operands)


def _folded(node: Node, known: Mapping[Node, NDArray]) -> Any:
    """Return the result of an op on constants, computed by its eager kernel. TVM's FoldConstant
    would compile a function for each such call, which takes 30 ms."""
    try:
        op: Any = node.op
        return op.compute(*[known[source] for source in node.input_nodes])
    except Exception as error:  # the error of any rule must name the op
        raise _refused(node, sentence(error)) from error


def _fixed(graph: Graph) -> set[Node]:
    """Return the nodes that depend only on parameters and constants."""
    found = {leaf.node for leaf in (*graph.params, *graph.constants)}
    for node in graph.nodes:
        if node.op is not None and found.issuperset(node.input_nodes):
            found.add(node)
    return found


def _variable(leaf: Leaf, extents: Extents) -> relax.Var:
    (spec,) = leaf.node.specs
    shape = extents.expressed(spec.shape)
    return relax.Var(_identifier(leaf.name), TensorType(shape, str(spec.dtype)))


def _identifier(name: str) -> str:
    """Return `name` as a TVMScript identifier. Relax renames on collision: only order matters."""
    found = re.sub(r"\W", "_", name)
    return f"p_{found}" if found[:1].isdigit() else found  # C has no names that begin with a digit


def _emit(
    builder: relax.BlockBuilder,
    node: Node,
    operands: list[Any],
    prefer_emit: bool,
    extents: Extents,
) -> Any:
    try:
        op: Op = extents.expressed(node.op)
        if op.structural:  # regroups values of any kind
            return op.compute(*operands)
        if all(0 in spec.shape for spec in node.specs):
            return _nothing(builder, node, extents)
        # Like the eager kernels, widen half precision and small integers, and round or wrap once.
        widen = set() if op.moves else _to_widen(node)
        single = len(node.specs) == 1 or not widen
        if prefer_emit and op.emit is not None and single and not _has_empty(node):
            wide = [_widened(builder, operand, widen) for operand in operands]
            result = op.emit(relax, *wide)
            if isinstance(result, relax.Expr):  # some cases have no equivalent operator
                if widen or (_has_narrow_result(node) and not op.moves):
                    (spec,) = node.specs
                    result = relax.op.astype(builder.emit(result), spec.dtype)
                value = builder.emit(result)
                if not extents or _is_spelt(node, tensors_of(value), extents):
                    _check(node, "emit", tensors_of(value), extents)
                    return _bind(builder, node, value)
        return _emit_te(builder, node, operands, widen, extents)
    except (TranslationError, KeyboardInterrupt):
        raise
    except Exception as error:  # the error of any rule must name the op
        raise _refused(node, sentence(error)) from error


def _refused(node: Node, reason: str) -> TranslationError:
    """Return the error that names a node's op, the module that called it, and its inputs."""
    shapes = ", ".join(str(spec) for operand in node.input_nodes for spec in operand.specs)
    return TranslationError(f"{named(node)} on {shapes}: {reason}")


def _is_spelt(node: Node, found: Sequence[tuple[tuple[Any, ...], str]], extents: Extents) -> bool:
    """Return whether symbolic extents have exactly the form that they have in other nodes.

    TVM's passes do not see that other forms are equal, such as n // 8 * 8 and n for multiples of 8.
    """
    return len(found) == len(node.specs) and all(
        _same_form(shape, extents.expressed(spec.shape))
        for (shape, _), spec in zip(found, node.specs, strict=True)
    )


def _same_form(shape: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return len(shape) == len(wanted) and all(
        tvm_ffi.structural_equal(a, b, map_free_vars=False) if not isinstance(b, int) else a == b
        for a, b in zip(shape, wanted, strict=True)
    )


def _check(
    node: Node,
    rule: str,
    found: list[tuple[tuple[Any, ...], str]],
    extents: Extents,
    wide: bool = False,
) -> None:
    """Raise TranslationError unless a rule's shapes and dtypes are what `infer` returns. With
    `wide`, results in narrow dtypes may still be in the wider dtypes that they are computed in."""
    if len(found) != len(node.specs):
        raise _refused(node, f"{rule} gives {len(found)} results, infer says {len(node.specs)}")
    for number, ((shape, dtype), spec) in enumerate(zip(found, node.specs, strict=True)):
        dtypes = {spec.dtype, compute_dtype(spec.dtype)} if wide else {spec.dtype}
        if not extents.are(shape, spec.shape) or dtype not in dtypes:
            which = f" as result {number}" if len(found) > 1 else ""
            given = ", ".join(map(str, shape))
            raise _refused(node, f"{rule} gives {dtype}[{given}]{which}, infer says {spec}")


def _nothing(builder: relax.BlockBuilder, node: Node, extents: Extents) -> Any:
    """Return a node's results, none of which has any elements."""
    parts = tuple(
        builder.emit_te(
            nothing,
            list(extents.expressed(spec.shape)),
            spec.dtype,
            primfunc_name_hint="nothing",
        )
        for spec in node.specs
    )
    return parts if type(node.spec) is tuple else parts[0]


def _has_empty(node: Node) -> bool:
    """Return whether an extent is 0: some Relax operators give 0 a special meaning."""
    specs = [*node.specs, *(spec for source in node.input_nodes for spec in source.specs)]
    return any(0 in spec.shape for spec in specs)


def _to_widen(node: Node) -> set[str]:
    """Return the narrow dtypes of operands that are widened to their compute dtype for the rule.
    Small integers combined with floats stay narrow: int8 with float16 gives float16, but int32
    would give float64."""
    dtypes = {spec.dtype for source in node.input_nodes for spec in source.specs}
    kept = SMALL_INTEGER if any(map(is_floating, dtypes)) else ()
    return {dtype for dtype in dtypes if is_narrow(dtype) and dtype not in kept}


def _has_narrow_result(node: Node) -> bool:
    return any(is_narrow(spec.dtype) for spec in node.specs)


def _widened(builder: relax.BlockBuilder, operand: Any, dtypes: Collection[str]) -> Any:
    """Return a Relax value, cast to its compute dtype if its dtype is in `dtypes`."""
    if isinstance(operand, tuple):
        return tuple(_widened(builder, part, dtypes) for part in operand)
    dtype = str(operand.ty.dtype)
    if dtype in dtypes:
        return builder.emit(relax.op.astype(operand, compute_dtype(dtype)))
    return operand


def _emit_te(
    builder: relax.BlockBuilder,
    node: Node,
    operands: list[Any],
    widen: Collection[str],
    extents: Extents,
) -> Any:
    used = extents.used_by(node)

    def wide(x: Any) -> Any:
        if not hasattr(x, "dtype"):
            return [wide(part) for part in x]
        dtype = _te.dtype_of(x)
        return _te.cast(TE_NAMESPACE, x, compute_dtype(dtype)) if dtype in widen else x

    def rule(*tensors: Any, sizes: Sequence[Any] = ()) -> Any:
        own = Extents(dict(zip(used, sizes, strict=True)))  # a function has its own variables
        op = own.expressed(node.op)
        result = op.emit_te(TE_NAMESPACE, *map(wide, tensors))
        several = type(node.spec) is tuple  # a Spec is a named tuple
        if several != isinstance(result, Sequence):
            said = "a tuple" if several else "one tensor"
            raise _refused(node, f"emit_te returns {type(result).__name__}, infer says {said}")
        parts = list(result) if several else [result]
        for part in parts:
            if not isinstance(part, te.Tensor):
                raise _refused(
                    node, f"emit_te returns {type(part).__name__}, not a tensor expression"
                )
        _check(node, "emit_te", tensors_of(parts), own, wide=not op.moves)
        if not type(op).__module__.startswith("needle."):  # tests cover the rules of needle's ops
            wrong = reads.fault(parts, tensors)
            if wrong:
                raise _refused(node, f"emit_te {wrong}")
        parts = [
            _te.cast(TE_NAMESPACE, part, spec.dtype)
            for part, spec in zip(parts, node.specs, strict=True)
        ]
        parts = _apart(parts, tensors)
        if own:
            parts = [
                _spelt(part, own.expressed(spec.shape))
                for part, spec in zip(parts, node.specs, strict=True)
            ]
        return parts if several else parts[0]

    grouped = [relax.Tuple(list(o)) if isinstance(o, tuple) else o for o in operands]
    assert node.op is not None
    alone = node.op.opaque or _ends_a_product_twice(node)
    marks = {"op_pattern": OP_PATTERN.opaque} if alone else {}
    if node.op.scheduled:
        marks[SCHEDULED] = True
    given = {"sizes": list(used.values())} if used else {}
    result = builder.emit_te(
        rule, *grouped, primfunc_name_hint=node.op.name, primfunc_attrs=marks or None, **given
    )
    if type(node.spec) is tuple and len(node.spec) == 1:
        return (result,)  # one tensor expression in a list comes back as a tensor, not a tuple
    return _bind(builder, node, result)


def _apart(parts: list[Any], tensors: tuple[Any, ...]) -> list[Any]:
    """Copy each result that is an operand or another result: TVM functions write all results."""
    taken = reads.flat(tensors)
    for number, part in enumerate(parts):
        if any(part.same_as(other) for other in (*taken, *parts[:number])):
            parts[number] = TE_NAMESPACE.topi.identity(part)
    return parts


def _spelt(part: te.Tensor, shape: Sequence[Any]) -> te.Tensor:
    """Return a tensor with the same elements, whose symbolic extents have the form used by other
    nodes."""
    if _same_form(part.shape, shape):
        return part
    return te.compute(shape, lambda *index: part(*index), name="spelt")


def _ends_a_product_twice(node: Node) -> bool:
    """Return whether a matmul whose result the node reads could be fused with the node into a
    function with several results; matmul schedules need a single block after the reduction. One
    result as large as the operands is enough: an optimizer's step also returns its count."""
    operands = [prod(spec.shape) for source in node.input_nodes for spec in source.specs]
    parts = [prod(spec.shape) for spec in node.specs]
    if len(parts) < 2:
        return False
    largest = max(bounds_of(size)[1] for size in parts)
    return largest >= max((bounds_of(size)[0] for size in operands), default=0)


def _bind(builder: relax.BlockBuilder, node: Node, result: relax.Var) -> Any:
    """Return the value of a node: its variable, or the variables of a tuple's parts."""
    if type(node.spec) is not tuple:  # a Spec is a named tuple
        return result
    return tuple(builder.emit(relax.TupleGetItem(result, i)) for i in range(len(node.specs)))
