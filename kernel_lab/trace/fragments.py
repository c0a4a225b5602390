"""Tensor-core instructions of CUDA's wmma in a trace: fragments of 16 x 16 that a warp holds.

CUDA's warp matrix functions (wmma) are collective: all 32 threads of a warp execute one together,
and CUDA does not specify which thread holds, loads or stores which element. Here a fragment is one
matrix per warp, and a memory access is recorded with the mapping that the PTX ISA does specify for
the instructions that these functions compile to since sm_75:

- a load of an operand, as `ldmatrix.x4` reads it: thread t reads the 8 adjacent elements of row
  t % 16 from column 8 (t // 16) on, 16 bytes in one instruction;
- a load or store of sums, in the layout of `mma.m16n8`'s accumulators: thread t has columns
  2 (t % 4) and 2 (t % 4) + 1 of row t // 4, and the corresponding elements 8 rows and 8 columns
  further on: four instructions of two adjacent elements.

A "row" is a run of adjacent elements in memory, which is a column of the matrix if the layout is
"col_major". Fragments are registers: their own accesses are not recorded.

Products of float16 values are exact in float32, and are summed in float32, in NumPy's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_lab.trace.errors import NotInterpreted, TraceError
from kernel_lab.trace.events import WARP
from kernel_lab.trace.machine import Machine, Storage

if TYPE_CHECKING:
    from kernel_lab.trace.expressions import Expressions, Slot

EDGE = 16
SCOPES = ("wmma.matrix_a", "wmma.matrix_b", "wmma.accumulator")
OPERANDS = SCOPES[:2]

_THREAD = np.arange(WARP)[:, None]
# (rows, columns) that a warp's threads access, of shape (32, elements of a thread).
_OPERAND = [(_THREAD % EDGE + 0 * np.arange(8), _THREAD // EDGE * 8 + np.arange(8))]
_SUMS = [
    (row + _THREAD // 4 + 0 * np.arange(2), column + _THREAD % 4 * 2 + np.arange(2))
    for row in (0, 8)
    for column in (0, 8)
]


def fill(m: Machine, fragment: Storage, number: Any, value: Any, mask: Any) -> None:
    """Set all elements of a fragment."""
    for rows, columns in _SUMS:
        m.store(fragment, -1, _inside(m, number, rows, columns), value, mask)


def load(
    m: Machine,
    steps: list[tuple[np.ndarray, np.ndarray]],
    transposed: bool,
    fragment: tuple[Storage, Any],
    memory: tuple[Storage, int, Any, Any],
    mask: Any,
) -> None:
    """Fill a fragment (storage, number) from memory (storage, site, first element, stride)."""
    storage, site, first, stride = memory
    first, stride = uniform(m, first, "address"), uniform(m, stride, "stride")
    for rows, columns in steps:
        index = first + _all(m, rows) * stride + _all(m, columns)
        values = m.load(storage, site, index, mask)
        place = (columns, rows) if transposed else (rows, columns)
        m.store(fragment[0], -1, _inside(m, fragment[1], *place), values, mask)


def store(
    m: Machine,
    steps: list[tuple[np.ndarray, np.ndarray]],
    transposed: bool,
    fragment: tuple[Storage, Any],
    memory: tuple[Storage, int, Any, Any],
    mask: Any,
) -> None:
    """Write a fragment (storage, number) to memory (storage, site, first element, stride)."""
    storage, site, first, stride = memory
    first, stride = uniform(m, first, "address"), uniform(m, stride, "stride")
    for rows, columns in steps:
        place = (columns, rows) if transposed else (rows, columns)
        values = m.load(fragment[0], -1, _inside(m, fragment[1], *place), mask)
        m.store(storage, site, first + _all(m, rows) * stride + _all(m, columns), values, mask)


def multiply(
    m: Machine,
    result: tuple[Storage, Any],
    left: tuple[Storage, Any],
    right: tuple[Storage, Any],
    addend: tuple[Storage, Any],
    mask: Any,
) -> None:
    """Compute result = left right + addend, for fragments (storage, number)."""
    warps = np.arange(m.width // WARP)
    active = np.broadcast_to(True if mask is None else uniform(m, mask, "predicate"), (m.width, 1))
    active = active[::WARP, 0]
    numbers, matrices = [], []
    for storage, number in (result, left, right, addend):
        each = np.broadcast_to(uniform(m, number, "fragment"), (m.width, 1))[::WARP, 0]
        held = storage.size // EDGE**2
        if active.any() and not (0 <= each[active].min() and each[active].max() < held):
            raise TraceError(
                f"trace: fragment {int(each[active].max())} of {storage.name}, which holds {held}"
            )
        numbers.append(each)
        matrices.append(storage.data.reshape(len(warps), held, EDGE, EDGE))
    chosen = warps[active]
    of = [matrix[chosen, number[active]] for matrix, number in zip(matrices, numbers, strict=True)]
    dtype = matrices[0].dtype
    total = of[3].astype(np.float32) + of[1].astype(np.float32) @ of[2].astype(np.float32)
    matrices[0][chosen, numbers[0][active]] = total.astype(dtype)


def uniform(m: Machine, value: Any, what: str) -> Any:
    """Return the value. Raises TraceError unless it is equal in all threads of a warp."""
    values = np.asarray(value)
    if values.ndim == 0:
        return value
    by_warp = np.broadcast_to(values, (m.width, values.shape[-1])).reshape(m.width // WARP, -1)
    if (by_warp != by_warp[:, :1]).any():
        raise TraceError(f"trace: a tensor-core instruction's {what} differs within a warp")
    return value


def _all(m: Machine, pattern: np.ndarray) -> np.ndarray:
    """Return a warp's pattern, repeated for all warps."""
    return np.tile(pattern, (m.width // WARP, 1))


def _inside(m: Machine, number: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    """Return the indices of the elements that the threads access in fragment `number`."""
    return uniform(m, number, "fragment") * EDGE**2 + _all(m, rows * EDGE + columns)


def is_fragment(scope: str) -> bool:
    """Return whether memory of this scope holds fragments."""
    return scope in SCOPES


def _emit_fill(program: Expressions, name: str, arguments: Any) -> None:
    fragment = _fragment(program, name, arguments[0], arguments[4], arguments[1:4])
    value = program.expr(arguments[5])
    program.emit(f"{_callee(program, fill)}(m, {fragment}, {value.code}, {program.mask})")


def _emit_move(program: Expressions, name: str, arguments: Any) -> None:
    slot = slot_of_data(program, arguments[0])
    fragment = _fragment(program, name, arguments[0], arguments[4], arguments[1:4])
    memory, place = pointed_to(program, name, arguments[5])
    if memory.dtype != slot.dtype:
        raise NotInterpreted(
            f"trace: {name} between {slot.name} and {memory.name} of different types"
        )
    first, stride = program.expr(place), program.expr(arguments[6])
    layout = str(arguments[7].value)
    if layout not in ("row_major", "col_major"):
        raise NotInterpreted(f"trace: {name} with the layout {layout}")
    steps = _OPERAND if program.scopes[slot.buffer] in OPERANDS else _SUMS
    operation = load if name == "tvm_load_matrix_sync" else store
    site = program.site(memory, operation is store, [place])
    if site >= 0:
        program.estimate += program.times * (EDGE**2 // WARP - 1)  # per thread; `site` counted one
    program.emit(
        f"{_callee(program, operation)}(m, {program.constant('steps', steps)},"
        f" {layout == 'col_major'}, ({fragment}), ({memory.storage}, {site}, {first.code},"
        f" {stride.code}), {program.mask})"
    )


def _emit_multiply(program: Expressions, name: str, arguments: Any) -> None:
    parts = [
        _fragment(program, name, arguments[place], arguments[place + 1]) for place in (0, 2, 4, 6)
    ]
    joined = ", ".join(f"({part})" for part in parts)
    program.emit(f"{_callee(program, multiply)}(m, {joined}, {program.mask})")


# The emitters of calls; they raise NotInterpreted, naming the call, for unsupported forms.
CALLS = {
    "tvm_fill_fragment": _emit_fill,
    "tvm_load_matrix_sync": _emit_move,
    "tvm_store_matrix_sync": _emit_move,
    "tvm_mma_sync": _emit_multiply,
}


def _callee(program: Expressions, function: Any) -> str:
    return program.constant(function.__name__, function)


def pointed_to(program: Expressions, name: str, pointer: Any) -> tuple[Slot, Any]:
    """Return the buffer that a pointer points into, and the element it points to."""
    if not hasattr(pointer, "op") or not str(pointer.op.name).endswith("tvm_access_ptr"):
        raise NotInterpreted(f"trace: {name} from or to {pointer}, which is not a tvm_access_ptr")
    return slot_of_data(program, pointer.args[1]), pointer.args[2]


def slot_of_data(program: Expressions, data: Any) -> Slot:
    """Return the slot of a buffer's data pointer."""
    return program.slot_of(data.args[0] if getattr(data, "args", None) else data)


def _fragment(
    program: Expressions, name: str, data: Any, number: Any, shape: Any = (EDGE,) * 3
) -> str:
    """Return a fragment as the text "storage, number"."""
    slot = slot_of_data(program, data)
    scope = program.scopes[slot.buffer]
    if not is_fragment(scope):
        raise NotInterpreted(
            f"trace: {name} of {slot.name}, which is {scope} memory, not a fragment"
        )
    wanted = ("float16",) if scope in OPERANDS else ("float16", "float32")
    if slot.dtype.name not in wanted or any(int(extent) != EDGE for extent in shape):
        extents = " x ".join(str(extent) for extent in shape)
        raise NotInterpreted(
            f"trace: {name} of {extents} fragments of {slot.dtype} in {scope}; only 16 x 16 x 16 of"
            f" {' or '.join(wanted)} is interpreted"
        )
    return f"{slot.storage}, {program.expr(number).code}"
