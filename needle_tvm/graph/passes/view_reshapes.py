"""Replaces kernels that only reshape their operand with views of its memory.

Before: a binding of a dataflow block calls a PrimFunc with one operand and one result that hold the
same values in the same order, and
- the operand is a variable;
- if the result leaves the block, it views a kernel's result that leaves the block neither by
  itself nor through another such view: a model's results share no memory with each other or with
  its arguments.

After: the binding is a `reshape`, which the virtual machine executes without a copy. TVM's own
`RewriteDataflowReshape` looks at functions only after scheduling, when it no longer recognises
them, and it copies every result that leaves the block.
"""

from __future__ import annotations

import math
from typing import Any

from needle_tvm._tvm.names import INTERNAL_ERROR, IRModule, PrimFunc, Target, relax, tvm
from needle_tvm.tir.extents import exprs_of, shape_of

_CALL_TIR, _RESHAPE = tvm.ir.Op.get("relax.call_tir"), tvm.ir.Op.get("relax.reshape")


def view_reshapes(module: IRModule, target: Target) -> IRModule:
    """Turn every kernel that meets the preconditions into a view, in every Relax function."""
    for name, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            module.update_func(name, _rewritten(module, function))
    return module


def _rewritten(module: IRModule, function: relax.Function) -> relax.Function:
    blocks = [
        relax.DataflowBlock(_bindings(module, block))
        if isinstance(block, relax.DataflowBlock)
        else block
        for block in function.body.blocks
    ]
    body = relax.BlockBuilder(module).normalize(relax.SeqExpr(blocks, function.body.body))
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _bindings(module: IRModule, block: Any) -> list[Any]:
    """Return the bindings of a block, with views where they are allowed."""
    leaving = _leaving(block)
    # The owner of each variable's memory, and the owners whose memory leaves the block.
    owner: dict[Any, Any] = {each: each for each in leaving}
    parts: dict[Any, Any] = {}  # the first variable of each part of a tuple
    shown = set(leaving)
    bindings = []
    for binding in block.bindings:
        source = _source(module, binding.value)
        inside = source in owner
        root = owner.get(source, source)
        if source is not None and (binding.var not in leaving or (inside and root not in shown)):
            shape = shape_of(binding.value)
            view = relax.op.reshape(source, exprs_of(shape or ()))
            binding = relax.VarBinding(binding.var, view)
            if inside:  # no result may view an argument's memory, not even through this view
                owner[binding.var] = root
            if binding.var in leaving:
                shown.add(root)
        elif _viewed(binding.value) in owner:
            owner[binding.var] = owner[_viewed(binding.value)]
        elif isinstance(binding.value, relax.Call) and binding.value.op == _CALL_TIR:
            owner[binding.var] = binding.var
        elif _part(binding.value) is not None and binding.value.tuple_value in owner:
            # Each part of a kernel's results has memory of its own.
            owner[binding.var] = parts.setdefault(_part(binding.value), binding.var)
            if binding.var in leaving:
                shown.add(owner[binding.var])
        bindings.append(binding)
    return bindings


def _part(value: Any) -> Any:
    """Return the tuple's variable and the index of the field that a binding's value reads; None for
    any other value."""
    if not isinstance(value, relax.TupleGetItem):
        return None
    return value.tuple_value, int(value.index)


def _leaving(block: Any) -> set[Any]:
    """Return the variables whose values are read outside of a block, including tuple fields."""
    leaving: set[Any] = set()
    for binding in reversed(block.bindings):
        if not isinstance(binding.var, relax.DataflowVar):
            leaving.add(binding.var)
        if binding.var in leaving:
            fields = binding.value.fields if isinstance(binding.value, relax.Tuple) else ()
            names = [binding.value] if isinstance(binding.value, relax.Var) else []
            leaving |= {each for each in (*fields, *names) if isinstance(each, relax.Var)}
    return leaving


def _source(module: IRModule, value: Any) -> Any:
    """Return the operand that a binding's value only reshapes; None for any other value."""
    if not isinstance(value, relax.Call) or value.op != _CALL_TIR or len(value.args) != 2:
        return None
    (function, operands), shape = value.args, shape_of(value)
    # A function may also take symbolic extents, which are not tensors.
    tensors = [each for each in operands.fields if isinstance(each.ty, relax.TensorType)]
    if shape is None or len(tensors) != 1:
        return None
    (source,) = tensors
    before = shape_of(source)
    called = module[function]
    if not isinstance(source, relax.Var) or before is None or not isinstance(called, PrimFunc):
        return None
    if math.prod(before) != math.prod(shape) or source.ty.dtype != value.ty.dtype:
        return None
    return source if _only_reshapes(called) else None


def _only_reshapes(function: PrimFunc) -> bool:
    try:
        return bool(relax.analysis.has_reshape_pattern(function))
    except INTERNAL_ERROR:  # TVM 0.27 cannot resolve some divisions by symbolic extents
        return False


def _viewed(value: Any) -> Any:
    """Return the variable that a binding's value names or reshapes; None for any other value."""
    if isinstance(value, relax.Call) and value.op == _RESHAPE:
        value = value.args[0]
    return value if isinstance(value, relax.Var) else None
