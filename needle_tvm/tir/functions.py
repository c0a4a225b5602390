"""Answers queries about functions (their reads, writes and loops), and converts them to float64."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from needle_tvm._tvm.names import (
    IRModule,
    PrimFunc,
    detect_linear_equation,
    iter_affine_map,
    module_pass,
    relax,
    s_tir,
    sequential,
    te,
    tirx,
    tvm,
    tvm_ffi,
)
from needle_tvm.errors import TuningError
from needle_tvm.tir.divisions import plain_divisions

NARROW_FLOATS = ("float16", "bfloat16", "float32")


def trace_fields(trace: Any) -> Any:
    """Return a schedule's trace as plain JSON values, in the form that TVM's databases use."""
    return _without_immediates(trace.as_json(remove_postproc=False))


def _without_immediates(value: Any) -> Any:
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): _without_immediates(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_immediates(item) for item in value]
    return value


def static_shape(expr: Any) -> tuple[int, ...] | None:
    """Return the shape of a Relax tensor expression; None if an extent is not a constant."""
    extents = getattr(getattr(expr.ty, "shape", None), "values", None)
    if extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    return tuple(int(extent) for extent in extents)


def tensors_of(value: Any) -> list[tuple[tuple[Any, ...], str]]:
    """Return the shape and dtype of each tensor in a Relax value or a list of tensor expressions.
    Symbolic extents stay expressions."""
    if isinstance(value, list):
        types = [(part.shape, part.dtype) for part in value]
    else:
        fields = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
        types = [(getattr(each.shape, "values", [each.shape]), each.dtype) for each in fields]
    return [(tuple(map(_number, shape)), str(dtype)) for shape, dtype in types]


def _number(extent: Any) -> Any:
    known = extent if isinstance(extent, int) else simplified(extent)
    return int(known) if isinstance(known, int | tirx.IntImm) else extent


def written_dtype(block: Any) -> str:
    """Return the element type of the buffer that a schedulable block writes."""
    return str(block.writes[0].source.dtype)


def loads_in(block: Any) -> list[Any]:
    """Return the loads in a block's body, each with its `source` and `indices`."""
    found: list[Any] = []
    tvm_ffi.structural_walk(block.body, (tvm.ir.expr.TensorLoad, found.append), order="post")
    return found


def variables_of(expr: Any) -> set[Any]:
    """Return the variables on which an expression depends."""
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, (tvm.ir.Var, found.add), order="post")
    return found


def linear_in(expr: Any, variables: Sequence[Any]) -> list[Any] | None:
    """Return the constant coefficients of `variables` in an index, followed by the rest of the sum;
    None if the index is not linear in the variables."""
    *factors, added = detect_linear_equation(expr, list(variables)) or [None]
    if not factors or not all(isinstance(factor, tirx.IntImm) for factor in factors):
        return None
    return [*map(int, factors), added]


def inverse_of(
    indices: Sequence[Any], extents: Mapping[Any, int]
) -> Callable[[Sequence[Any]], dict[Any, Any]] | None:
    """Return the inverse of a map from variables to `indices`, where each variable runs from 0 to
    its extent. The inverse maps values of the indices to values of the variables. Return None if
    the map is not a bijection."""
    ranges = {var: tvm.ir.Range(0, extent) for var, extent in extents.items()}
    found = iter_affine_map.detect_iter_map(
        list(indices),
        ranges,
        check_level="bijective",
        simplify_trivial_iterators=False,
    )
    if not found.indices:
        return None
    return lambda values: dict(iter_affine_map.inverse_affine_iter_map(found.indices, list(values)))


def nothing(shape: Sequence[Any], dtype: str) -> te.Tensor:
    """Return an empty tensor expression, for a `shape` with an extent of 0."""
    zero = tirx.const(0, dtype)
    extents = [tirx.const(n, "int64") if isinstance(n, int) else n for n in shape]
    return te.compute(extents, lambda *_: zero, name="nothing")


def simplified(expr: Any) -> Any:
    """Return an expression simplified by TVM's rules."""
    return tvm.sym.Analyzer().simplify(expr)


NODES = SimpleNamespace(
    load=tvm.ir.expr.TensorLoad,
    store=tirx.BufferStore,
    sblock=s_tir.SBlock,
    realize=s_tir.SBlockRealize,
    loop=tirx.For,
    call=tvm.ir.expr.Call,
    cast=tirx.Cast,
    select=tirx.Select,
    arithmetic=(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min),
    division=(tirx.FloorDiv, tirx.FloorMod),
    comparisons=(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
)


def nodes_in(root: Any, kind: type) -> list[Any]:
    """Return all nodes of `kind`, one of NODES, under a function, statement or expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kind, found.append), order="post")
    return found


# Parts of the names of calls whose meaning depends on the number of bits of their operands.
_FIXED_WIDTH = ("reinterpret", "extern", "llvm", "call_packed", "access_ptr", "address_of", "fast_")


def in_float64(module: IRModule) -> IRModule:
    """Return the module with every narrower floating-point type replaced by float64.

    Constants keep their values; integers and booleans keep their types. Raises ValueError, naming
    the call, if a call cannot be computed in another type.
    """
    described = json.loads(tvm.ir.save_json(module))
    for node in described["nodes"]:
        if node["type"] == "ir.Op" and any(part in node["data"] for part in _FIXED_WIDTH):
            raise ValueError(f"{node['data']} cannot be computed in float64")
        if node["type"] == "ir.PrimType":
            element, lanes, count = node["data"]["dtype"].partition("x")
            if element in NARROW_FLOATS:
                node["data"]["dtype"] = f"float64{lanes}{count}"
    return tvm.ir.load_json(json.dumps(described))


# Calls to PrimFuncs; the second kind writes results to the memory of arguments.
KERNEL_CALLS = tuple(tvm.ir.Op.get(f"relax.{name}") for name in ("call_tir", "call_tir_inplace"))


def calls_in(function: relax.Function) -> list[Any]:
    """Return all kernel calls in a Relax function."""
    return [call for call in nodes_in(function, NODES.call) if call.op in KERNEL_CALLS]


def calls_of(module: IRModule, name: str) -> list[str]:
    """Return the names of the PrimFuncs that the Relax function `name` calls, one entry per
    call."""
    return [call.args[0].name_hint for call in calls_in(module[name])]


def estimate_flops(function: PrimFunc) -> int:
    """Return TVM's estimate of a PrimFunc's number of arithmetic operations, including comparisons
    and padding.

    Raises TuningError if TVM cannot estimate the function's body.
    """
    try:
        return int(s_tir.analysis.estimate_tir_flops(IRModule({"main": function})))
    except (RuntimeError, ValueError, TypeError) as error:
        last = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise TuningError(f"work of a function: TVM cannot estimate the work: {last}") from error


def parameter_bytes(function: PrimFunc) -> list[int]:
    """Return the size of each parameter of a PrimFunc, in bytes. Raises TuningError if an extent is
    not a number."""
    sizes = []
    for number, buffer in enumerate(function.params):
        bits = int(tvm.DataType(str(buffer.dtype)).bits)
        for extent in buffer.shape:
            if not isinstance(extent, (int, tirx.IntImm)):
                raise TuningError(
                    f"work of a function: parameter {number} has an extent that is not a number: "
                    f"{extent}"
                )
            bits *= int(extent)
        sizes.append(-(-bits // 8))
    return sizes


def element_bytes(dtype: Any) -> int:
    """Return the number of bytes that an element of a dtype takes in memory; a boolean takes 1."""
    return max(1, int(tvm.DataType(str(dtype)).bits) // 8)


def lowered_loops(module: IRModule, select_branches: bool = True) -> IRModule:
    """Lower scheduled blocks to loops over flat buffers; the loops keep their kinds.

    This runs the first part of TVM's own pipeline. Staging, software pipelining, virtual threads
    and barriers are as in the compiled kernel, but vectorised and unrolled loops are still loops.

    With `select_branches`, choices between loaded values become branches, as they later do in code
    that is not vectorised. In code that will be vectorised, branches would break up vectors.
    """
    passes = s_tir.transform
    return sequential(
        [
            module_pass(plain_divisions),
            passes.CanonicalizeLoop(),
            passes.LowerCrossThreadReduction(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.LiftThreadBinding(),
            passes.ManifestSharedMemoryLocalStage(),
            passes.CompactBufferAllocation(),
            passes.LowerAutoCopy(),
            passes.UnifyThreadBinding(),
            passes.LowerMatchBuffer(),
            passes.StmtSimplify(),
            passes.InjectPermutedLayout(),
            passes.InjectSoftwarePipeline(),
            passes.TransformMmaBufferLayout(),
            passes.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
            passes.InjectVirtualThread(),
            passes.InjectDoubleBuffer(),
            *([passes.RewriteUnsafeSelect()] if select_branches else []),
            passes.ThreadSync("shared"),
            passes.ThreadSync("shared.dyn"),
            tirx.transform.StmtSimplify(),
        ]
    )(module)


def prim_funcs(module: IRModule) -> dict[str, PrimFunc]:
    """Return the module's PrimFuncs by name."""
    return {
        variable.name_hint: function
        for variable, function in module.functions.items()
        if isinstance(function, PrimFunc)
    }


def module_of(function: PrimFunc) -> IRModule:
    """Return a module of one PrimFunc, called `main`."""
    return IRModule({"main": function})
