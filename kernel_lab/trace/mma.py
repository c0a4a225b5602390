"""PTX's tensor-core instructions in a trace: ldmatrix.x4 and mma.m16n8k16, for float16.

All 32 threads of a warp execute an instruction together, and the PTX ISA ("Matrix fragments for
mma.m16n8k16 with floating point type", "ldmatrix") says which thread has which element. Fragments
are memory of scope "warp": each thread holds a part of the array in its registers, so accesses to
the array are not recorded. The 16 bytes at each thread's address for ldmatrix are recorded as one
access of 8 elements by that thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab.trace.errors import NotInterpreted
from kernel_lab.trace.events import WARP
from kernel_lab.trace.fragments import pointed_to, slot_of_data, uniform
from kernel_lab.trace.machine import Machine, Storage

if TYPE_CHECKING:
    from kernel_lab.trace.expressions import Expressions, Slot

SCOPE = "warp"
EACH = 8  # elements of a 16 x 16 fragment that a thread holds

_THREAD, _ELEMENT = np.arange(WARP)[:, None], np.arange(EACH)
_GROUP, _PAIR = _THREAD // 4, _THREAD % 4 * 2
# (row, column) of the elements that a thread holds, of shape (32, its elements).
_LEFT = (_GROUP + _ELEMENT % 4 // 2 * 8, _PAIR + _ELEMENT % 2 + _ELEMENT // 4 * 8)
_RIGHT = (_PAIR + _ELEMENT[:4] % 2 + _ELEMENT[:4] // 2 * 8, _GROUP + 0 * _ELEMENT[:4])
_SUMS = (_GROUP + _ELEMENT[:4] // 2 * 8, _PAIR + _ELEMENT[:4] % 2)
# (8 x 8 matrix, row, column) of the elements that ldmatrix.x4 gives a thread.
_LOADED = (_ELEMENT // 2 + 0 * _THREAD, _GROUP + 0 * _ELEMENT, _PAIR + _ELEMENT % 2)


def fill(m: Machine, fragment: Storage, first: Any, mask: Any) -> None:
    """Zero a fragment of sums."""
    own = np.tile(_THREAD * EACH + _ELEMENT, (m.width // WARP, 1))
    m.store(fragment, -1, uniform(m, first, "fragment") + own, 0, mask)


def load(
    m: Machine,
    transposed: bool,
    fragment: tuple[Storage, Any],
    memory: tuple[Storage, int, Any],
    mask: Any,
) -> None:
    """Load four 8 x 8 matrices: thread t of the warp points to row t % 8 of matrix t // 8."""
    if mask is not None:
        uniform(m, mask, "predicate")
    storage, site, first = memory
    rows = m.load(storage, site, first + _ELEMENT, mask)
    matrices = rows.reshape(-1, 4, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(2, 3)
    matrix, row, column = _LOADED
    values = matrices[:, matrix, row, column].reshape(m.width, EACH)
    m.store(fragment[0], -1, fragment[1] + _ELEMENT, values, mask)


def multiply(
    m: Machine,
    left: tuple[Storage, Any],
    right: tuple[Storage, Any],
    sums: tuple[Storage, Any],
    mask: Any,
) -> None:
    """Compute sums += left right; each is a storage and the thread's first element in it."""
    if mask is not None:
        uniform(m, mask, "predicate")
    a = _gathered(m, left, _LEFT, (16, 16), mask)
    b = _gathered(m, right, _RIGHT, (16, 8), mask)
    c = _gathered(m, sums, _SUMS, (16, 8), mask) + a @ b
    rows, columns = _SUMS
    own = c[:, rows, columns].reshape(m.width, -1)
    m.store(sums[0], -1, sums[1] + _ELEMENT[:4], own, mask)


def _gathered(
    m: Machine,
    fragment: tuple[Storage, Any],
    places: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, int],
    mask: Any,
) -> np.ndarray:
    """Return the float32 matrix of each warp, assembled from its threads' elements."""
    rows, columns = places
    count = rows.shape[1]
    values = m.load(fragment[0], -1, fragment[1] + _ELEMENT[:count], mask)
    matrices = np.empty((m.width // WARP, *shape), np.float32)
    matrices[:, rows, columns] = values.reshape(-1, WARP, count)
    return matrices


def _emit_fill(program: Expressions, name: str, arguments: Any) -> None:
    if int(arguments[0]) != EACH:
        raise NotInterpreted(
            f"trace: {name} of {arguments[0]} elements; only {EACH} are interpreted"
        )
    slot = _fragment(program, name, arguments[1], "float32")
    first = program.expr(arguments[2])
    callee = program.constant("fill", fill)
    program.emit(f"{callee}(m, {slot.storage}, {first.code}, {program.mask})")


def _emit_load(program: Expressions, name: str, arguments: Any) -> None:
    transposed, count, kind, data, own, pointer, offset = arguments
    if int(count) != 4 or str(kind.value) != ".b16":
        raise NotInterpreted(f"trace: {name} x{count} {kind}; only x4 .b16 is interpreted")
    slot = _fragment(program, name, data, "float16")
    memory, first = pointed_to(program, name, pointer)
    base, beyond, own_first = program.expr(first), program.expr(offset), program.expr(own)
    site = program.site(memory, False, [first + offset])
    if site >= 0:
        program.estimate += program.times * (EACH - 1)  # `site` counted one
    callee = program.constant("load", load)
    program.emit(
        f"{callee}(m, {bool(transposed)}, ({slot.storage}, {own_first.code}),"
        f" ({memory.storage}, {site}, {base.code} + {beyond.code}), {program.mask})"
    )


def _emit_multiply(program: Expressions, name: str, arguments: Any) -> None:
    form = tuple(str(argument.value) for argument in arguments[:6])
    if form != ("m16n8k16", "row", "col", "fp16", "fp16", "fp32"):
        raise NotInterpreted(
            f"trace: {name} {' '.join(form)}; only m16n8k16 row col fp16 fp16 fp32 is interpreted"
        )
    parts = []
    for place, dtype in ((6, "float16"), (8, "float16"), (10, "float32")):
        slot = _fragment(program, name, arguments[place], dtype)
        parts.append(f"({slot.storage}, {program.expr(arguments[place + 1]).code})")
    callee = program.constant("multiply", multiply)
    program.emit(f"{callee}(m, {', '.join(parts)}, {program.mask})")


def _fragment(program: Expressions, name: str, data: Any, dtype: str) -> Slot:
    """Return the slot of a fragment in the threads' registers."""
    slot = slot_of_data(program, data)
    scope = program.scopes[slot.buffer]
    if scope != SCOPE or slot.dtype.name != dtype:
        raise NotInterpreted(
            f"trace: {name} of {slot.name}, which is {slot.dtype} in {scope!r} memory; only {dtype}"
            f" in {SCOPE!r} memory is interpreted"
        )
    return slot


CALLS = {
    "mma_fill_legacy": _emit_fill,
    "ptx_legacy.ldmatrix": _emit_load,
    "ptx_legacy.mma": _emit_multiply,
}
