"""Lets a function's arrays begin at any address that is a multiple of their element size.

TVM assumes that arrays begin at multiples of 64 bytes, and its code crashes if one does not. Most
NumPy arrays begin elsewhere, and copying an input takes longer than vector loads that cross cache
lines.

Before: the buffers that are a function's parameters have an alignment of 64 bytes.

After: they have the alignment of their elements. So have the buffers by which tensor intrinsics
refer to parts of them: a part must not have a larger alignment than the whole. Buffers that the
function allocates stay as they are.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx
from needle_tvm.kernels.blocks import item_bytes
from needle_tvm.tir import nests
from needle_tvm.tir.functions import NODES, nodes_in


def any_address(module: IRModule) -> IRModule:
    """Change all PrimFuncs of a CPU module, scheduled or not."""
    module = module.clone()
    for name, function in list(module.functions_items()):
        if isinstance(function, PrimFunc):
            module.update_func(name, _relaxed(function))
    return module


def _relaxed(function: PrimFunc) -> PrimFunc:
    matched = [
        match.buffer
        for block in nodes_in(function.body, NODES.sblock)
        for match in block.match_buffers
    ]
    buffers = [*filter(tirx.is_buffer_var, function.params), *matched]
    found = {each: _at_elements(each) for each in buffers}
    parameters = [found.get(each, each) for each in function.params]
    body = nests.substitute(function.body, found)
    return PrimFunc(parameters, body, function.ret_type, function.attrs)


def _at_elements(buffer: Any) -> Any:
    kind = buffer.ty
    return tirx.decl_buffer(
        kind.shape,
        kind.dtype,
        buffer.name,
        strides=kind.strides,
        elem_offset=kind.elem_offset,
        scope=buffer.scope(),
        data_alignment=item_bytes(str(kind.dtype)),
        offset_factor=kind.offset_factor,
        layout=kind.layout,
    )
