"""Describes CUDA's warp matrix functions (wmma), which use tensor cores, for TVM's `tensorize`.

Each instruction is a pair: its computation as loops over one fragment, and the call that performs
it. TVM's own `tvm.s_tir.tensor_intrin.cuda` has such intrinsics, but importing it registers every
instruction of every processor, which takes twelve seconds, and it has neither bfloat16 nor tf32.
Sums are float32; all 32 threads of a warp execute a call together (CUDA C++ Programming Guide,
"Warp Matrix Functions").

An operand may be transposed in shared memory: `b` as (columns, terms), `a` as (terms, rows). TVM's
code generator does not support wmma fragments in tf32; tf32 is in `mma.py`.

This module imports TVM's compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from needle_tvm._tvm.names import TensorIntrin
from needle_tvm._tvm.names import tvmscript as T


@dataclass(frozen=True)
class Fragments:
    """The instructions for one shape and dtype of fragments; the methods return their names.

    `shape` is rows, columns and terms: (16, 16, 16) or, for few rows, (8, 32, 16). `dtype` is the
    dtype of the operands, float16 or bfloat16. `left` and `right` say whether the operand on that
    side is transposed. `scope` is the storage scope of the shared memory that holds operands and
    results.
    """

    shape: tuple[int, int, int] = (16, 16, 16)
    dtype: str = "float16"
    left: bool = False
    right: bool = False
    scope: str = "shared"

    def memory(self, operand: str) -> str:
        """Return the storage scope for fragments of "a", "b" or the sums "c"."""
        return "wmma.accumulator" if operand == "c" else f"wmma.matrix_{operand}"

    def fill(self) -> str:
        """Return the name of the instruction that sets a fragment of sums to zero."""
        return _fill(self.shape)

    def load(self, operand: str) -> str:
        """Return the name of the instruction that loads a fragment of "a" or "b" from shared
        memory."""
        transposed = self.left if operand == "a" else self.right
        return _load(operand, self.shape, self.dtype, transposed, self.scope)

    def multiply(self) -> str:
        """Return the name of the instruction that adds the matmul of two fragments to a third."""
        return _multiply(self.shape, self.dtype, self.left, self.right)

    def store(self, scope: str | None = None) -> str:
        """Return the name of the instruction that stores sums to memory of `scope` (default: the
        shared memory)."""
        return _store(self.shape, scope or self.scope)

    def edges(self, operand: str) -> tuple[int, int]:
        """Return the rows and columns in memory of a fragment of "a", "b" or the sums "c"."""
        rows, columns, terms = self.shape
        if operand == "c":
            return rows, columns
        if operand == "a":
            return (terms, rows) if self.left else (rows, terms)
        return (columns, terms) if self.right else (terms, columns)


@cache
def _fill(shape: tuple[int, int, int]) -> str:
    m, n, k = shape

    @T.prim_func(s_tir=True)
    def zeros(sums: T.handle) -> None:
        C = matched(sums, (m, n), "float32", "wmma.accumulator", 16)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:m, 0:n])
            for i, j in T.grid(m, n):
                with T.sblock("init"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    C[vi, vj] = T.float32(0)

    @T.prim_func(s_tir=True)
    def call(sums: T.handle) -> None:
        c1 = T.int32()
        c0 = T.int32()
        C = matched(sums, (m, n), "float32", "wmma.accumulator", 16, [c1, c0])
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:m, 0:n])
            T.evaluate(
                T.tvm_fill_fragment(
                    C.data, m, n, k, _number(C, c1, m, n), T.float32(0), dtype="void"
                )
            )

    return _registered(f"needle.wmma_fill_{m}_{n}_{k}", zeros, call)


@cache
def _load(
    operand: str, shape: tuple[int, int, int], dtype: str, transposed: bool, place: str
) -> str:
    m, n, k = shape
    scope = f"wmma.matrix_{operand}"
    order = "col_major" if transposed else "row_major"
    rows, columns = (m, k) if operand == "a" else (k, n)
    if transposed:
        rows, columns = columns, rows

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        S = matched(source, (rows, columns), dtype, place, 8)
        F = matched(target, (rows, columns), dtype, scope, 16)
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(F[0:rows, 0:columns])
            for i, j in T.grid(rows, columns):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    F[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        f1 = T.int32()
        f0 = T.int32()
        S = matched(source, (rows, columns), dtype, place, 8, [s1, s0])
        F = matched(target, (rows, columns), dtype, scope, 16, [f1, f0])
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(F[0:rows, 0:columns])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    F.data,
                    m,
                    n,
                    k,
                    _number(F, f1, rows, columns),
                    S.access_ptr("r", ptr_type=dtype),
                    s1,
                    order,
                    dtype="void",
                )
            )

    name = f"needle.wmma_load_{operand}_{m}_{n}_{k}_{dtype}_{order}_{place}"
    return _registered(name, copy, call)


@cache
def _multiply(shape: tuple[int, int, int], dtype: str, left: bool, right: bool) -> str:
    m, n, k = shape
    a_rows, a_columns = (k, m) if left else (m, k)
    b_rows, b_columns = (n, k) if right else (k, n)

    @T.prim_func(s_tir=True)
    def product(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = matched(a, (a_rows, a_columns), dtype, "wmma.matrix_a", 16)
        B = matched(b, (b_rows, b_columns), dtype, "wmma.matrix_b", 16)
        C = matched(sums, (m, n), "float32", "wmma.accumulator", 16)
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:a_rows, 0:a_columns], B[0:b_rows, 0:b_columns])
            T.writes(C[0:m, 0:n])
            for i, j, r in T.grid(m, n, k):
                with T.sblock(""):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, r])
                    C[vi, vj] = C[vi, vj] + _wide(A, vi, vk, left) * _wide(B, vk, vj, right)

    @T.prim_func(s_tir=True)
    def call(a: T.handle, b: T.handle, sums: T.handle) -> None:
        a1 = T.int32()
        a0 = T.int32()
        b1 = T.int32()
        b0 = T.int32()
        c1 = T.int32()
        c0 = T.int32()
        A = matched(a, (a_rows, a_columns), dtype, "wmma.matrix_a", 16, [a1, a0])
        B = matched(b, (b_rows, b_columns), dtype, "wmma.matrix_b", 16, [b1, b0])
        C = matched(sums, (m, n), "float32", "wmma.accumulator", 16, [c1, c0])
        with T.sblock("root"):
            T.reads(C[0:m, 0:n], A[0:a_rows, 0:a_columns], B[0:b_rows, 0:b_columns])
            T.writes(C[0:m, 0:n])
            T.evaluate(
                T.tvm_mma_sync(
                    C.data,
                    _number(C, c1, m, n),
                    A.data,
                    _number(A, a1, a_rows, a_columns),
                    B.data,
                    _number(B, b1, b_rows, b_columns),
                    C.data,
                    _number(C, c1, m, n),
                    dtype="void",
                )
            )

    orders = f"{'t' if left else 'n'}{'t' if right else 'n'}"
    return _registered(f"needle.wmma_multiply_{m}_{n}_{k}_{dtype}_{orders}", product, call)


@cache
def _store(shape: tuple[int, int, int], place: str) -> str:
    """Register the instruction that stores a fragment of sums; return its name.

    Shared memory is passed as an address: TVM may store the sums in an operand's buffer, and then
    rejects a pointer of another dtype into this buffer. TVM inserts no barriers around writes that
    it does not see, so the barriers are part of the instruction.
    """
    m, n, k = shape
    shared = place.startswith("shared")

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        F = matched(source, (m, n), "float32", "wmma.accumulator", 16)
        D = matched(target, (m, n), "float32", place, 4)
        with T.sblock("root"):
            T.reads(F[0:m, 0:n])
            T.writes(D[0:m, 0:n])
            for i, j in T.grid(m, n):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = F[vi, vj]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        d1 = T.int32()
        d0 = T.int32()
        f1 = T.int32()
        f0 = T.int32()
        F = matched(source, (m, n), "float32", "wmma.accumulator", 16, [f1, f0])
        D = matched(target, (m, n), "float32", place, 4, [d1, d0])
        with T.sblock("root"):
            T.reads(F[0:m, 0:n])
            T.writes(D[0:m, 0:n])
            if shared:
                T.evaluate(T.tvm_storage_sync("shared"))
            T.evaluate(
                T.tvm_store_matrix_sync(
                    F.data,
                    m,
                    n,
                    k,
                    _number(F, f1, m, n),
                    _pointer(D, shared),
                    d1,
                    "row_major",
                    dtype="void",
                )
            )
            if shared:
                T.evaluate(T.tvm_storage_sync("shared"))

    return _registered(f"needle.wmma_store_{m}_{n}_{k}_{place}", copy, call)


def matched(
    handle: Any,
    shape: tuple[int, int],
    dtype: str,
    scope: str,
    multiple: int,
    strides: list[Any] | None = None,
) -> Any:
    """Return a buffer of an instruction; its offset is a multiple of `multiple` elements."""
    return T.match_buffer(
        handle, shape, dtype, align=64, offset_factor=multiple, scope=scope, strides=strides
    )


def _pointer(buffer: Any, shared: bool) -> Any:
    """Return the pointer to which results are stored: see `_store`."""
    return T.address_of(buffer[0, 0]) if shared else buffer.access_ptr("w", ptr_type="float32")


def _wide(buffer: Any, row: Any, column: Any, transposed: bool) -> Any:
    """Return an operand's element in float32."""
    return T.Cast("float32", buffer[column, row] if transposed else buffer[row, column])


def _registered(name: str, description: Any, implementation: Any) -> str:
    TensorIntrin.register(name, description, implementation)
    return name


def _number(buffer: Any, stride: Any, rows: int, columns: int) -> Any:
    """Return the row-major index of the fragment that begins at a buffer's offset."""
    row = buffer.elem_offset // stride // rows
    return row * (stride // columns) + buffer.elem_offset % stride // columns
