"""Adds `main_into`: like `main`, but it writes results to memory that the caller passes in.

Before: memory planning has given each result of `main` its own allocation; the result may be a view
of it in another shape.

After: `main_into` takes arrays of the results' types as arguments between inputs and parameters,
writes the results to them, and returns them. If a result has no allocation of its own, the module
stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from needle_tvm._tvm.names import IRModule, relax
from needle_tvm.graph.dependence import bindings_of, is_op

MAIN = "main"
INTO = f"{MAIN}_into"

_ALLOCATION, VIEW = "relax.builtin.alloc_tensor", "relax.reshape"


def add_into(module: IRModule) -> IRModule:
    """Add `main_into` to a module after `StaticPlanBlockMemory`."""
    main = relax.utils.copy_with_new_vars(module[MAIN])
    bound = bindings_of(main)
    results, memory = memory_of_results(main, bound)
    if None in memory or len(set(memory)) < len(memory):
        return module
    outputs = [relax.Var(f"out{n}", each.ty) for n, each in enumerate(results)]
    builder = relax.BlockBuilder()
    replacements = {
        variable: output
        if variable.ty.shape.same_as(output.ty.shape)
        else builder.normalize(relax.op.reshape(output, variable.ty.shape))
        for variable, output in zip(memory, outputs, strict=True)
    }
    blocks = [
        relax.BindingBlock(
            [
                relax.VarBinding(each.var, replacements[each.var])
                if each.var in replacements
                else each
                for each in block.bindings
            ]
        )
        for block in main.body.blocks
    ]
    count = int(main.attrs["num_input"])
    body = builder.normalize(relax.SeqExpr(blocks, main.body.body))
    parameters = [*main.params[:count], *outputs, *main.params[count:]]
    function = relax.Function(parameters, body, body.ty, main.is_pure, main.attrs)
    module = module.clone()
    module[INTO] = function.with_attrs({"global_symbol": INTO, "num_input": count + len(outputs)})
    return module


def memory_of_results(
    main: relax.Function, bound: Mapping[Any, Any]
) -> tuple[list[Any], list[Any]]:
    """Return the results of `main`, and for each result the variable bound to its allocation (None
    if it has none)."""
    result = _renamed(main.body.body, bound)
    results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    return results, [_allocation(each, bound) for each in results]


def _renamed(value: Any, bound: Mapping[Any, Any]) -> Any:
    """Return the value to which a variable refers through other variables and tuple fields."""
    while isinstance(value, relax.Var) and value in bound:
        behind = bound[value]
        if isinstance(behind, relax.TupleGetItem):
            whole = _renamed(behind.tuple_value, bound)
            if not isinstance(whole, relax.Tuple):
                break
            behind = whole.fields[behind.index]
        if not isinstance(behind, (relax.Var, relax.Tuple)):
            break
        value = behind
    return value


def _allocation(value: Any, bound: Mapping[Any, Any]) -> Any:
    """Return the variable bound to the allocation that holds a result, perhaps in another shape;
    None if there is none."""
    value = _renamed(value, bound)
    while isinstance(value, relax.Var) and is_op(bound.get(value), VIEW):
        value = _renamed(bound[value].args[0], bound)
    return value if is_op(bound.get(value), _ALLOCATION) else None
