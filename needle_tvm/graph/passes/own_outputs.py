"""Copies results that share memory with the model or with another result.

Before: `main` returns an argument, a constant, or a value that a dataflow block computes from
parameters alone, by itself or in a tuple; or it returns a value twice. A caller that changes such a
result would change the model, or another result.

After: `main` returns a fresh copy of each such value, made after the dataflow blocks. The pass runs
first, because LiftTransformParams computes work on parameters only once: it drops values that
nothing in `main` reads, and returns the same memory at each call for the values that it keeps. The
pass also runs last, because folding and lifting treat the copy of a constant or a parameter as work
to do once.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import Constant, IRModule, Target, relax, te
from needle_tvm.graph.dependence import Origins, parameters_of
from needle_tvm.tir.extents import own_variables


def own_outputs(module: IRModule, target: Target) -> IRModule:
    """Copy every result of `main` that would share memory with the model or with another result."""
    main = module["main"]
    body = main.body
    in_blocks = {
        binding.var: binding.value
        for block in body.blocks
        if isinstance(block, relax.DataflowBlock)
        for binding in block.bindings
    }
    renamed = {
        binding.var: binding.value
        for block in body.blocks
        for binding in block.bindings
        if isinstance(binding.value, (relax.Var, relax.Tuple, Constant))
    }
    returned = renamed.get(body.body)
    if not isinstance(returned, relax.Tuple):
        returned = body.body
    results = list(returned.fields) if isinstance(returned, relax.Tuple) else [returned]
    origins = Origins(parameters_of(main), in_blocks.get)
    builder = relax.BlockBuilder(module)
    copies: list[Any] = []
    returned_before: set[Any] = set()
    for number, result in enumerate(results):
        source = result
        while isinstance(source, relax.Var) and source in renamed:
            source = renamed[source]
        lifted = source in in_blocks and origins.is_parameter_work(source)
        again = source in returned_before
        returned_before.add(source)
        if isinstance(source, Constant) or source in set(main.params) or lifted or again:
            # A block's inner variables are not visible after the block.
            operand = result if isinstance(source, relax.DataflowVar) else source
            variable = copy_function(builder, operand)
            call = relax.call_tir(variable, [operand], out_ty=operand.ty)
            copy = relax.Var(f"copy{number}", operand.ty)
            copies.append(relax.VarBinding(copy, call))
            results[number] = copy
    if not copies:
        return module
    result = relax.Tuple(results) if isinstance(returned, relax.Tuple) else results[0]
    body = builder.normalize(relax.SeqExpr([*body.blocks, relax.BindingBlock(copies)], result))
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    module = builder.get()
    module.update_func(module.get_global_var("main"), function)
    return module


def copy_function(builder: relax.BlockBuilder, source: Any, mark: str | None = None) -> Any:
    """Add a PrimFunc that copies a tensor like `source` to the builder's module; return its
    variable. The PrimFunc has the attribute `mark` if it is given."""
    shape, dtype = own_variables(source.ty.shape.values), str(source.ty.dtype)
    x = te.placeholder(shape, dtype, name="x")
    copied = te.compute(shape, lambda *i: x(*i), name="copy")
    function = te.create_prim_func([x, copied]).without_attr("global_symbol")
    if mark is not None:
        function = function.with_attrs({mark: True, "tirx.is_scheduled": True})
    return builder.add_func(function, "copy")
