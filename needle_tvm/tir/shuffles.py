"""Turns gathers of elements that are near each other into vector loads and shuffles.

    y[i * 16 + (0 .. 15)] = x[i * 8 + (0 .. 15) // 2]

repeats each element, and LLVM would read and insert 16 single elements. It becomes

    y[i * 16 + (0 .. 15)] = shuffle(x[i * 8 + (0 .. 7)], 0, 0, 1, 1, ..)

Elements at a stride, in reverse order, and at remainders of a position are read in the same way. No
element before the first or after the last one is read. The pass runs after TVM's own passes, which
create the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from needle_tvm._tvm.names import IRModule, PrimFunc, tirx, tvm, tvm_ffi
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import NODES, nodes_in

_MOST = 4  # the most vectors that one shuffle combines
_ELEMENTS = ("float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64")
_ARITHMETIC: Any = (tirx.Add, tirx.Sub, tirx.Mul, *NODES.division)

Split = tuple[Any, list[int]]  # a vector of integers, as a scalar and an offset for each lane


def shuffled_reads(module: IRModule) -> IRModule:
    """Rewrite gathers in a lowered module's functions for CPUs."""
    for variable, function in list(module.functions_items()):
        if isinstance(function, PrimFunc) and target_info(function.attrs["target"]).is_cpu:
            if any(map(_is_gathered, nodes_in(function.body, NODES.load))):
                module.update_func(variable, function.with_body(_shuffled(function.body)))
    return module


def _is_gathered(load: Any) -> bool:
    """Return whether a load reads a vector whose elements are not contiguous."""
    if not load.indices:
        return False
    index = load.indices[-1]
    neighbours = isinstance(index, tirx.Ramp) and _constant(index.stride) == 1
    return _lanes(index) > 1 and not neighbours and not isinstance(index, tirx.Broadcast)


def _shuffled(body: Any) -> Any:
    splitting = _Splitting(body)

    def changed(load: Any) -> Any:
        element = str(load.source.dtype)
        if not _is_gathered(load) or len(load.indices) != 1 or element not in _ELEMENTS:
            return load
        found = splitting.of(load.indices[0])
        return load if found is None else _from_vectors(load, *found)

    return tvm_ffi.structural_map(body, (NODES.load, changed))


def _from_vectors(load: Any, start: Any, added: Sequence[int]) -> Any:
    """Return a shuffle of the fewest vectors that cover the elements of a load, or the load itself
    if it needs too many vectors."""
    lanes, first, last = len(added), min(added), max(added)
    width = min(lanes, last - first + 1)
    begins = [*range(first, last + 2 - width, width)]
    if begins[-1] + width <= last:
        begins.append(last + 1 - width)  # the last vector ends with the last element
    if width == 1 or len(begins) > _MOST:
        return load
    vectors = [
        tirx.BufferLoad(load.source, [tirx.Ramp(start + _like(start, begin), 1, width)])
        for begin in begins
    ]
    places = []
    for each in added:
        number = max(i for i, begin in enumerate(begins) if begin <= each)
        places.append(tirx.const(number * width + each - begins[number], "int32"))
    # TVM accepts no more indices than there are elements in the vectors, so the vectors may be
    # passed several times; each is still read only once.
    return tirx.Shuffle(vectors * -(-lanes // (width * len(vectors))), places)


class _Splitting:
    """Splits vectors of integers in a statement that binds each variable once."""

    def __init__(self, body: Any) -> None:
        self._analyzer = tvm.sym.Analyzer()
        self._vectors: dict[Any, Any] = {}
        for bind in nodes_in(body, tirx.Bind):
            kind = str(bind.var.ty)
            if kind.startswith("int") and "x" in kind:
                self._vectors[bind.var] = bind.value
            elif kind in ("int32", "int64"):
                self._analyzer.bind(bind.var, bind.value)

    def of(self, vector: Any) -> Split | None:
        lanes = _lanes(vector)
        if isinstance(vector, tirx.Ramp):
            stride = _constant(vector.stride)
            return None if stride is None else (vector.base, [stride * i for i in range(lanes)])
        if isinstance(vector, tirx.Broadcast):
            return vector.value, [0] * lanes
        if vector in self._vectors:
            return self.of(self._vectors[vector])
        if isinstance(vector, NODES.cast):
            inner = self.of(vector.value) if str(vector.value.ty).startswith("int") else None
            element = str(vector.ty).partition("x")[0]
            return inner and (tirx.Cast(element, inner[0]), inner[1])
        if isinstance(vector, _ARITHMETIC):
            a, b = self.of(vector.a), self.of(vector.b)
            return a and b and self._combined(vector, a, b)
        return None

    def _combined(self, vector: Any, a: Split, b: Split) -> Split | None:
        if isinstance(vector, tirx.Add):
            return a[0] + b[0], [x + y for x, y in zip(a[1], b[1], strict=True)]
        if isinstance(vector, tirx.Sub):
            return a[0] - b[0], [x - y for x, y in zip(a[1], b[1], strict=True)]
        number = _constant(b[0])
        if number is None or any(b[1]) or number <= 0:
            return None
        if isinstance(vector, tirx.Mul):
            return a[0] * _like(a[0], number), [x * number for x in a[1]]
        # a[0] must be a known base plus a multiple of the divisor; otherwise its remainder varies.
        modular = self._analyzer.modular_set(a[0])
        if int(modular.coeff) % number:
            return None
        base = int(modular.base) % number
        if isinstance(vector, tirx.FloorMod):
            return _like(a[0], 0), [(base + x) % number for x in a[1]]
        quotient = tirx.floordiv(a[0], _like(a[0], number))
        return quotient, [(base + x) // number for x in a[1]]


def _lanes(expr: Any) -> int:
    return int(str(expr.ty).partition("x")[2] or 1)


def _constant(expr: Any) -> int | None:
    return int(expr) if isinstance(expr, tirx.IntImm) else None


def _like(expr: Any, number: int) -> Any:
    return tirx.const(number, str(expr.ty))
