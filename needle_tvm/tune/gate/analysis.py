"""Analyse a TIR function: its arrays, its tolerance, and allowed values of its integer inputs.

`reference` runs these analyses before it writes a gate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from needle_runtime.artifact.tolerance import accumulated_tolerance
from needle_tvm._tvm.names import PrimFunc, tirx
from needle_tvm.errors import TuningError
from needle_tvm.kernels.dense.gpu.tensor_core import TF32
from needle_tvm.tir.functions import NODES, nodes_in, written_dtype
from needle_tvm.tune.gate.gate import Parameter, is_float

# Functions whose value jumps at certain arguments.
_STEPS = ("floor", "ceil", "round", "trunc", "nearbyint", "fmod", "truncmod", "floormod")

_PLAIN, _CLAMPED, _COMPUTED = "plain", "clamped", "computed"  # how an index uses a loaded value


def parameters_of(function: PrimFunc) -> tuple[Parameter, ...]:
    """Return the function's arrays, in the order of its parameters.

    Raises TuningError if a shape is not fixed, or if the function writes none of its arrays.
    """
    written = [store.buffer for store in nodes_in(function, NODES.store)]
    parameters = []
    for parameter in function.params:
        if not all(isinstance(extent, tirx.IntImm) for extent in parameter.shape):
            raise TuningError(
                f"parameter {parameter.name!r}: its shape {parameter.shape} is not fixed"
            )
        output = any(buffer.same_as(parameter) for buffer in written)
        shape = tuple(int(extent) for extent in parameter.shape)
        parameters.append(Parameter(str(parameter.name), shape, str(parameter.dtype), output))
    if not any(parameter.output for parameter in parameters):
        raise TuningError("the function writes none of its parameters")
    return tuple(parameters)


def tolerance(function: PrimFunc) -> float:
    """Return the allowed difference of the results, from their dtypes and reduction lengths."""
    stores = nodes_in(function, NODES.store)
    dtypes = {str(store.buffer.dtype) for store in stores}
    sums = []
    blocks = nodes_in(function, NODES.sblock)
    for block in blocks:
        terms = 1
        for axis in block.iter_vars:
            if axis.iter_type == tirx.IterVar.CommReduce and isinstance(
                axis.dom.extent, tirx.IntImm
            ):
                terms *= int(axis.dom.extent)
        if terms > 1:
            sums.append((written_dtype(block), terms))
    if not any(block.iter_vars for block in blocks):  # loops that an op wrote itself
        steps = math.prod(_fixed(loop.extent) for loop in nodes_in(function, NODES.loop))
        sums += [(dtype, steps) for dtype in dtypes]
    return accumulated_tolerance(dtypes, sums)


def decides(function: PrimFunc) -> bool:
    """Return whether results may jump when a rounded number crosses some threshold."""
    for kind in NODES.comparisons:
        if any(_is_float(node.a) for node in nodes_in(function, kind)):
            return True
    casts = nodes_in(function, NODES.cast)
    if any(_is_float(node.value) and not _is_float(node) for node in casts):
        return True
    calls = nodes_in(function, NODES.call)
    return any(_is_float(node) and _named(node, _STEPS) for node in calls)


def multiplied_dtypes(function: PrimFunc) -> set[str]:
    """Return each floating-point dtype that both factors of some product have.

    A value that is widened before the multiplication counts by its stored dtype, because a tensor
    core reads the stored value.
    """
    found = set()
    products = [node for node in nodes_in(function, tirx.Mul) if _is_float(node)]
    for product in products:
        stored = {str(_narrow(factor).ty) for factor in (product.a, product.b)}
        if len(stored) == 1:
            found |= stored
    return found


def multiplies_tf32(function: PrimFunc) -> bool:
    """Return whether a block is annotated to multiply tf32 factors stored as float32.

    Such a function must only be tested with numbers that are rounded to tf32: with other numbers,
    tensor cores drop bits and other code does not.
    """
    return any(TF32 in block.annotations for block in nodes_in(function, NODES.sblock))


def _narrow(expr: Any) -> Any:
    while isinstance(expr, NODES.cast):
        expr = expr.value
    return expr


def integer_ranges(function: PrimFunc) -> dict[str, tuple[int, int]]:
    """Return, for each integer input, (lowest, highest + 1) of the values that are safe as indices.

    An input used directly as an index may be any position along its axis. An input clamped to the
    axis may also take as many negative values. An input that is used in other computations of an
    index has values 0 and 1, or only 0 if the axis has one position. All integer inputs share one
    range. Returns no ranges if no loaded value is used in an index.
    """
    accesses = nodes_in(function, NODES.load) + nodes_in(function, NODES.store)
    extents: list[int] = []
    forms: set[str] = set()
    for access in accesses:
        buffer = access.source if hasattr(access, "source") else access.buffer
        for index, extent in zip(access.indices, buffer.shape, strict=True):
            if nodes_in(index, NODES.load):
                extents.append(_fixed(extent))
                forms.add(_form(index, _fixed(extent)))
    if not extents:
        return {}
    limit = max(1, min(extents))
    signed, most = (limit if forms == {_CLAMPED} else 0), limit
    if _COMPUTED in forms:
        most = min(limit, 2)
    ranges = {}
    for each in parameters_of(function):
        if not each.output and not is_float(each.dtype):
            kind = np.dtype(each.dtype)
            largest = 1 if kind == np.bool_ else int(ml_dtypes.iinfo(kind).max)
            low = -min(signed, largest) if kind.kind == "i" else 0
            ranges[each.name] = (low, min(most, largest + 1))
    return ranges


def _form(index: Any, extent: int) -> str:
    """Return how an index is derived from a loaded value: plain, clamped or computed."""
    if isinstance(index, tirx.Max) and isinstance(index.a, tirx.Min):
        if _fixed(index.a.b) == extent - 1 and isinstance(index.b, tirx.IntImm):
            return _CLAMPED
    while isinstance(index, NODES.cast):
        index = index.value
    return _PLAIN if isinstance(index, NODES.load) else _COMPUTED


def _fixed(extent: Any) -> int:
    return int(extent) if isinstance(extent, tirx.IntImm) else 1


def _is_float(expr: Any) -> bool:
    return "float" in str(expr.ty)


def _named(call: Any, parts: Sequence[str]) -> bool:
    name = str(getattr(call.op, "name", "")).rpartition(".")[2]
    return name in parts
