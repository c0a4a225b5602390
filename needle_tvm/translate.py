"""A traced tensor graph as a TVM Relax module. Knows no op by name: each op emits itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from needle_tvm._tvm import TE_NAMESPACE, IRModule, TensorType, relax
from needle_tvm.errors import TranslationError

if TYPE_CHECKING:
    from needle.autograd import Node
    from needle.op import Op
    from needle.trace import Graph, Leaf

MAIN = "main"


def translate(graph: Graph, *, prefer_emit: bool) -> IRModule:
    """Module with one function `main(inputs..., params...)` that computes the graph's outputs.

    Parameters stay parameters: attribute `num_input` of `main` says how many of its arguments are
    inputs. With `prefer_emit`, ops that have a Relax operator use it, so that graph passes know
    them; otherwise every op is its own tensor expression. One output is returned bare, several as
    a tuple, in the graph's order.

    Raises TranslationError naming the op and the module that made it when an op has no rule, or
    its rule fails.
    """
    builder = relax.BlockBuilder()
    arguments = [_variable(leaf) for leaf in (*graph.inputs, *graph.params)]
    values: dict[Node, Any] = {
        leaf.node: variable
        for leaf, variable in zip((*graph.inputs, *graph.params), arguments, strict=True)
    }
    for leaf in graph.constants:
        values[leaf.node] = relax.const(leaf.value.numpy())
    with builder.function(MAIN, arguments, attrs={"num_input": len(graph.inputs)}):
        with builder.dataflow():
            for node in graph.nodes:
                if node.op is not None:
                    operands = [values[operand] for operand in node.input_nodes]
                    values[node] = _emit(builder, node, node.op, operands, prefer_emit)
            results = [builder.emit_output(values[node]) for node in graph.outputs]
        builder.emit_func_output(results[0] if len(results) == 1 else relax.Tuple(results))
    return builder.get()


def _variable(leaf: Leaf) -> relax.Var:
    (spec,) = leaf.node.specs
    return relax.Var(_identifier(leaf.name), TensorType(spec.shape, str(spec.dtype)))


def _identifier(name: str) -> str:
    """`name` as a TVMScript identifier; Relax renames on collision, positions are what counts."""
    return re.sub(r"\W", "_", name)


def _emit(
    builder: relax.BlockBuilder, node: Node, op: Op, operands: list[Any], prefer_emit: bool
) -> Any:
    try:
        if op.structural:  # regroups values, whatever they are
            return op.compute(*operands)
        if prefer_emit and op.emit is not None and not _has_empty(node):
            result = op.emit(relax, *operands)
            if isinstance(result, relax.Expr):  # not every case has an equal operator
                return _bind(builder, node, builder.emit(result))
        return _emit_te(builder, node, op, operands)
    except (TranslationError, KeyboardInterrupt):
        raise
    except Exception as error:  # whatever a rule raises must name the op it belongs to
        where = f" (in {node.scope})" if node.scope else ""
        shapes = ", ".join(str(spec) for operand in node.input_nodes for spec in operand.specs)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TranslationError(f"op {op.name}{where} on {shapes}: {reason}") from error


def _has_empty(node: Node) -> bool:
    """Whether an extent is 0, which to some of Relax's operators means something else."""
    specs = [*node.specs, *(spec for source in node.input_nodes for spec in source.specs)]
    return any(0 in spec.shape for spec in specs)


def _emit_te(builder: relax.BlockBuilder, node: Node, op: Op, operands: list[Any]) -> Any:
    def rule(*tensors: Any) -> Any:
        result = op.emit_te(TE_NAMESPACE, *tensors)
        return list(result) if isinstance(result, tuple) else result

    grouped = [relax.Tuple(list(o)) if isinstance(o, tuple) else o for o in operands]
    result = builder.emit_te(rule, *grouped, primfunc_name_hint=op.name)
    if type(node.spec) is tuple and len(node.spec) == 1:
        return (result,)  # one tensor expression in a list comes back as a tensor, not a tuple
    return _bind(builder, node, result)


def _bind(builder: relax.BlockBuilder, node: Node, result: relax.Var) -> Any:
    """The value of a node: its variable, or for a tuple-valued op the variables of its parts."""
    if type(node.spec) is not tuple:  # a Spec is a named tuple
        return result
    return tuple(builder.emit(relax.TupleGetItem(result, i)) for i in range(len(node.specs)))
