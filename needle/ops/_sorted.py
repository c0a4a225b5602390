"""Stable sorts of rows in compiled code. `k` is `emit_te`'s argument; nothing here imports TVM.

Elements are mapped to integers in the same order: all NaN to the largest integer, and both zeros to
the same one. Short rows are sorted by counting how many elements come before each element, without
a branch. Longer rows are sorted by the digits of their integers, the lowest digit first (a radix
sort), in time that does not depend on the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..backend_ndarray.dtypes import is_floating
from ..op.signatures import Expr, Stmt, TeNamespace, TeTensor
from . import _te

_SHORT = 64  # elements; longer rows are sorted by digits
_DIGIT = 8  # bits per digit
_BUCKETS = 1 << _DIGIT


def sorted_rows(k: TeNamespace, x: TeTensor, descending: bool) -> list[TeTensor]:
    """Return (values, int64 positions) of the elements in order along the last axis, for any dtype
    but bool. Threads divide the rows."""
    dtype, n = _te.dtype_of(x), x.shape[-1]
    rows = prod(x.shape[:-1], start=k.tirx.const(1, "int64"))
    length = _te.number(k, n)
    known = getattr(n, "value", None)
    short = known is not None and known <= _SHORT
    bits = int("".join(c for c in dtype if c.isdigit()))
    key_dtype = "int64" if bits == 64 else "int32"
    work = rows * length * (length // 8 if short else 16 * bits // _DIGIT)

    def write(s: Any, ins: Sequence[Any], outs: Sequence[Any]) -> None:
        (source,) = map(s.buffer_proxy, ins)
        values, places, *spare = map(s.buffer_proxy, outs)
        keys = spare[0]
        with _te.tasks(s, rows, work) as row:
            base = row * length
            with s.serial(0, length) as i:
                keys[base + i] = _key(k, source[base + i], dtype, descending)
            if short:
                order = _count(k, s, keys, base, length, places)
            else:
                order = _by_digits(k, s, spare, base, length, bits, not dtype.startswith("u"))
            with s.serial(0, length) as i:
                values[base + i] = source[base + k.tirx.Cast("int64", order[base + i])]
                if not short:
                    places[base + i] = k.tirx.Cast("int64", order[base + i])

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Stmt:
        return k.statements(lambda s: write(s, ins, outs))

    # The spare memory has one axis. With several, TVM drops parts that it considers unwritten.
    spare = [key_dtype] if short else [key_dtype, "int32"] * 2
    shapes = [x.shape, x.shape, *[[rows * length]] * len(spare)]
    return list(k.te.extern(shapes, [x], body, dtype=[dtype, "int64", *spare], name="sort"))[:2]


def _key(k: TeNamespace, x: Expr, dtype: str, descending: bool) -> Expr:
    """Return a signed integer whose order is the sort order of x."""
    if not is_floating(dtype):
        key = k.tirx.Cast("int64" if dtype == "int64" else "int32", x)
    else:
        bits = dtype.removeprefix("float")
        kind = f"int{bits}"
        # The bits of a negative number grow with its magnitude.
        number = k.tirx.reinterpret(kind, k.tirx.Select(x == 0, k.tirx.const(0, dtype), x))
        most = k.tirx.max_value(kind)
        sign = k.tirx.shift_right(number, k.tirx.const(int(bits) - 1, kind))
        key = k.tirx.Select(k.tirx.isnan(x), most, number ^ (sign & most))
    return ~key if descending else key


def _count(k: TeNamespace, s: Any, keys: Any, base: Expr, n: Expr, places: Any) -> Any:
    """Write each element's index at its rank: the number of elements that come before it."""
    rank = s.buffer_proxy(s.alloc_buffer((1,), "int32", scope="local"))
    count = k.tirx.Cast("int32", n)  # so that positions are as wide as most keys
    with s.serial(0, count) as i:
        rank[0] = k.tirx.const(0, "int32")
        with s.serial(0, count) as j:
            own, other = keys[base + i], keys[base + j]
            before = k.tirx.any(other < own, k.tirx.all(other == own, j < i))
            rank[0] = rank[0] + k.tirx.Cast("int32", before)
        places[base + k.tirx.Cast("int64", rank[0])] = k.tirx.Cast("int64", i)
    return places


def _by_digits(
    k: TeNamespace, s: Any, spare: Sequence[Any], base: Expr, n: Expr, bits: int, signed: bool
) -> Any:
    """Sort keys and int32 positions by each digit in turn, from one pair of `spare` buffers to the
    other, and return the buffer of positions in order."""
    with s.serial(0, n) as i:
        spare[1][base + i] = k.tirx.Cast("int32", i)
    count = s.buffer_proxy(s.alloc_buffer((_BUCKETS,), "int32", scope="local"))
    kind = "int64" if bits == 64 else "int32"
    old, new = spare[:2], spare[2:]
    for low in range(0, bits, _DIGIT):

        def digit(i: Expr, low: int = low, keys: Any = old[0]) -> Expr:
            found = k.tirx.shift_right(keys[base + i], k.tirx.const(low, kind))
            found = k.tirx.Cast("int32", found & k.tirx.const(_BUCKETS - 1, kind))
            # The highest bit is the sign, and negative numbers come first.
            top = signed and low + _DIGIT == bits
            return found ^ k.tirx.const(_BUCKETS // 2, "int32") if top else found

        total = s.buffer_proxy(s.alloc_buffer((2,), "int32", scope="local"))
        with s.serial(0, _BUCKETS) as each:
            count[each] = k.tirx.const(0, "int32")
        with s.serial(0, n) as i:
            count[digit(i)] = count[digit(i)] + 1
        total[0] = k.tirx.const(0, "int32")
        with s.serial(0, _BUCKETS) as each:  # compute where each bucket begins
            total[1] = count[each]
            count[each] = total[0]
            total[0] = total[0] + total[1]
        with s.serial(0, n) as i:
            total[0] = digit(i)
            total[1] = count[total[0]]
            to = base + k.tirx.Cast("int64", total[1])
            new[0][to], new[1][to] = old[0][base + i], old[1][base + i]
            count[total[0]] = total[1] + 1
        old, new = new, old
    return old[1]
