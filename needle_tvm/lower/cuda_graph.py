"""Marks models that the runtime may capture as one CUDA graph, and adds the functions for it.

A replayed graph uses the addresses that inputs, outputs, weights and all intermediates had when it
was captured. TVM's own `RewriteCUDAGraph` leaves out every kernel that reads an input or writes an
output, and assumes that weights never move. Here the runtime keeps its own buffers for inputs
(`runtime/needle_runtime/replay.py`), and captures the graph again for other weights.

`cuda_graph` marks the `main` of a scheduled module if
- all shapes are constant, and its body only calls PrimFuncs or external functions,
- none of the PrimFuncs allocates global memory: TVM's host code would take it from its own pool,
  which may free it or give it to other code,
- the graph pays off, by the estimate of `_pays`.

`add_graph_functions` runs after `main` is lowered to calls with explicit memory. It adds
- `main_for_graph`: like `main`, but it returns its outputs and then all memory that it allocated. A
  graph may be replayed as long as this memory is kept;
- `main_results`: returns new, uninitialised tensors with the types of the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import Constant, IRModule, PrimFunc, Target, TensorType, relax, tirx
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.tir.functions import NODES, calls_of, element_bytes, nodes_in, prim_funcs

MAIN = "main"
FOR_GRAPH = f"{MAIN}_for_graph"
RESULTS = f"{MAIN}_results"

_MARK = "needle.cuda_graph"

_KERNELS = ("relax.call_tir", "relax.call_dps_packed")
_VIEW = "relax.reshape"
_ALLOCATIONS = ("relax.memory.alloc_storage", "relax.builtin.alloc_tensor")

# Estimates for `_pays`; the numbers are calculated, not measured. For each kernel, the host takes
# about 3 us: 2 to 2.5 for CUDA's launch, the rest for the virtual machine's call and for packing
# arguments. Launching a graph takes about as long as two kernels, however many the graph holds.
# Each input and output is copied once more on the device. A copy takes one driver call, and an A100
# or a newer GPU reads and writes its bytes at 1 TB/s or more.
_KERNEL_US, _GRAPH_US, _COPY_US = 3.0, 6.0, 2.0
_COPIED_BYTES_PER_US = 0.5e6


def cuda_graph(module: IRModule, target: Target) -> IRModule:
    """Mark the module's `main` if it may be captured and the graph pays off."""
    main = module[MAIN]
    return mark(module) if _has_static_shapes(main) and _pays(main) else module


def mark(module: IRModule) -> IRModule:
    """Mark the module's `main` if it may be captured, whether or not the graph pays off."""
    main = module[MAIN]
    functions = prim_funcs(module)
    called = {functions[name] for name in calls_of(module, MAIN)}
    if _may_be_captured(main) and not any(map(_allocates, called)):
        module.update_func(module.get_global_var(MAIN), main.with_attr(_MARK, True))
    return module


def is_marked(module: IRModule) -> bool:
    """Return whether `cuda_graph` has marked the module's `main`."""
    return _MARK in (module[MAIN].attrs or {})


def add_graph_functions(module: IRModule) -> IRModule:
    """Add `main_for_graph` and `main_results` to a marked module; return other modules unchanged.

    This must run after `StaticPlanBlockMemory`.
    """
    if not is_marked(module):
        return module
    main = module[MAIN]
    module = module.clone()
    module[FOR_GRAPH] = _keeping_memory(relax.utils.copy_with_new_vars(main))
    module[RESULTS] = _results(main)
    return module


def _results(main: relax.Function) -> relax.Function:
    """Return a function without parameters that allocates tensors of the types of `main`'s
    results."""
    builder = relax.BlockBuilder()
    with builder.function(RESULTS, [], pure=False):
        found = [
            builder.emit(relax.op.builtin.alloc_tensor(each.shape, str(each.dtype), 0, "global"))
            for each in _fields(main.ret_ty)
        ]
        builder.emit_func_output(relax.Tuple(found))
    return builder.get()[RESULTS].with_attr("relax.force_pure", True)


def _keeping_memory(function: relax.Function) -> relax.Function:
    """Return the lowered function, changed to return its results and then all memory that it
    allocates."""
    body = function.body
    bound = bindings_of(function)
    result = body.body
    while isinstance(result, relax.Var) and isinstance(bound.get(result), (relax.Var, relax.Tuple)):
        result = bound[result]
    results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    memory = [
        variable
        for variable, value in bound.items()
        if any(is_op(value, allocation) for allocation in _ALLOCATIONS)
    ]
    everything = relax.Tuple([*results, *memory])
    body = relax.BlockBuilder().normalize(relax.SeqExpr(body.blocks, everything))
    return relax.Function(function.params, body, body.ty, function.is_pure, function.attrs)


def _has_static_shapes(main: relax.Function) -> bool:
    variables = [*main.params, *bindings_of(main)]
    return all(_is_static(each) for variable in variables for each in _fields(variable.ty))


def _may_be_captured(main: relax.Function) -> bool:
    return _has_static_shapes(main) and all(map(_is_step, bindings_of(main).values()))


def _is_step(value: Any) -> bool:
    if isinstance(value, relax.Call):
        return any(is_op(value, name) for name in (*_KERNELS, _VIEW))
    return isinstance(value, (relax.Var, relax.Tuple, relax.TupleGetItem, Constant))


def _is_static(ty: Any) -> bool:
    extents = getattr(getattr(ty, "shape", None), "values", None)
    constant = extents is not None and all(isinstance(each, tirx.IntImm) for each in extents)
    return isinstance(ty, TensorType) and constant


def _allocates(function: PrimFunc) -> bool:
    """Return whether a function accesses a buffer that it allocates in global memory. An unused
    buffer does not count: rules that keep the values in registers leave such buffers, and TVM drops
    them."""
    accessed = [
        *(load.source for load in nodes_in(function.body, NODES.load)),
        *(store.buffer for store in nodes_in(function.body, NODES.store)),
    ]
    return any(
        buffer.scope() == "global" and any(buffer.same_as(each) for each in accessed)
        for block in nodes_in(function.body, NODES.sblock)
        for buffer in block.alloc_buffers
    )


def _pays(main: relax.Function) -> bool:
    """Return whether launching all kernels at once saves more time than it takes to copy inputs and
    outputs."""
    kernels = sum(
        any(is_op(value, name) for name in _KERNELS) for value in bindings_of(main).values()
    )
    inputs = [each.ty for each in main.params[: int(main.attrs["num_input"])]]
    copied = [_bytes(each) for each in (*inputs, *_fields(main.ret_ty))]
    copies = sum(_COPY_US + size / _COPIED_BYTES_PER_US for size in copied)
    return kernels * _KERNEL_US > _GRAPH_US + copies


def _bytes(ty: Any) -> int:
    return math.prod(int(extent) for extent in ty.shape.values) * element_bytes(ty.dtype)


def _fields(ty: Any) -> Sequence[Any]:
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
