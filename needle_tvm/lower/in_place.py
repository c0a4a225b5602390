"""Adds `main_in_place`: `main` that writes new values over the inputs that they replace.

The attribute `updates` of `main` has pairs (result, input) of one type: the result is what the
input will be after the call, such as a cache of keys with a row more.

Before: after memory planning, a result of such a pair lies in an allocation of its own, and the
input is not read after the kernel that writes the result, which either does not read it or copies
it first, in loops with the annotation COPIED. All results lie in allocations of their own.

After: `main_in_place` takes what `main` takes. Those results are written to the inputs' memory, by
kernels without the loops that copy, and it returns the others, in a tuple. Pairs without that
precondition are results as before; without any, the module stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from needle.ops._index import COPIED
from needle_tvm._tvm.names import IRModule, PrimFunc, relax, tirx
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.lower.caller_memory import MAIN, VIEW, memory_of_results
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, variables_of

IN_PLACE = f"{MAIN}_in_place"
UPDATES = "updates"

Pairs = list[tuple[int, int]]


def updating(module: IRModule, pairs: Iterable[tuple[int, int]]) -> IRModule:
    """A module whose `main` has the attribute: its results that replace inputs."""
    pairs = list(pairs)
    if not pairs:
        return module
    main = module[MAIN].with_attr(UPDATES, [list(pair) for pair in pairs])
    module = module.clone()
    module.update_func(module.get_global_var(MAIN), main)
    return module


def add_in_place(module: IRModule) -> tuple[IRModule, Pairs]:
    """Add the function to a module after `StaticPlanBlockMemory`; also the pairs that it serves."""
    wanted = [tuple(map(int, pair)) for pair in (module[MAIN].attrs or {}).get(UPDATES, ())]
    if not wanted:
        return module, []
    main = relax.utils.copy_with_new_vars(module[MAIN])
    bound = bindings_of(main)
    results, memory = memory_of_results(main, bound)
    if None in memory or len(set(memory)) < len(memory):
        return module, []
    bindings = [each for block in main.body.blocks for each in block.bindings]
    builder = relax.BlockBuilder(module)
    changed: dict[Any, Any] = {}  # values of variables
    served: Pairs = []
    for result, number in wanted:
        parameter, written = main.params[number], memory[result]
        if not nests.same(parameter.ty, results[result].ty):
            continue
        at = next(i for i, each in enumerate(bindings) if written in _arguments(each.value))
        reads = _uses(bindings, parameter)
        if reads is None or any(reads[at + 1 :]) or bindings[at].var in changed:
            continue
        call = bindings[at].value
        if reads[at]:
            function = _without_copies(module[call.op], reads[at])
            if function is None:
                continue
            kernel = builder.add_func(function, f"{call.op.name_hint}_in_place")
            call = relax.Call(kernel, call.args, call.attrs, call.ty_args)
            changed[bindings[at].var] = builder.normalize(call)
        shape = written.ty.shape
        is_view = not nests.same(shape, parameter.ty.shape)
        changed[written] = (
            builder.normalize(relax.op.reshape(parameter, shape)) if is_view else parameter
        )
        served.append((result, number))
    if not served:
        return module, []
    rest = [each for i, each in enumerate(results) if i not in {result for result, _ in served}]
    returned = relax.Var("rest", relax.TupleType([each.ty for each in rest]))
    blocks = [
        relax.BindingBlock(
            [relax.VarBinding(each.var, changed.get(each.var, each.value)) for each in bindings]
        ),
        relax.BindingBlock([relax.VarBinding(returned, relax.Tuple(rest))]),
    ]
    body = builder.normalize(relax.SeqExpr(blocks, returned))
    function = relax.Function(main.params, body, body.ty, main.is_pure, main.attrs)
    builder.add_func(function.with_attr("global_symbol", IN_PLACE), IN_PLACE)
    return builder.get(), served


def _uses(bindings: Sequence[Any], variable: Any) -> list[list[int]] | None:
    """For each binding, at which places a kernel takes a variable, or a view of it; None if it is
    used by anything else."""
    names, found = {variable}, []
    for each in bindings:
        value, places = each.value, list[int]()
        if isinstance(value, relax.Var):
            if value in names:
                names.add(each.var)
        elif _arguments(value):
            places = [i for i, argument in enumerate(_arguments(value)) if argument in names]
        elif any(used in names for used in relax.analysis.free_vars(value)):
            if not is_op(value, VIEW):
                return None
            names.add(each.var)
        found.append(places)
    return found


def _arguments(value: Any) -> Sequence[Any]:
    """The arguments of a kernel's call; none for anything else."""
    is_kernel = isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar)
    return list(value.args) if is_kernel else ()


def _without_copies(function: PrimFunc, places: Sequence[int]) -> PrimFunc | None:
    """A kernel without the loops that copy the parameter at a place, to be called with the memory
    that it copies to at that place; None if it reads it elsewhere."""

    def dropped(loop: Any) -> Any:
        return tirx.Evaluate(0) if COPIED in loop.annotations else loop

    body = nests.map_nodes(function.body, NODES.loop, dropped)
    taken = {function.params[place] for place in places}
    if taken & variables_of(body):
        return None
    changed = PrimFunc(function.params, body, function.ret_type, function.attrs)
    return changed.without_attr("tirx.noalias")
