"""Tensor-core instructions of PTX as intrinsics for TVM's `tensorize`: mma.sync and ldmatrix.

Unlike wmma's fragments, the fragments of these instructions have a layout that the PTX ISA
specifies ("Matrix fragments for mma.m16n8k16" and "for mma.m16n8k8"): `Registers.at` says which
thread of a warp holds which elements. So fragments are ordinary registers (scope "warp": an array
of shape (32, elements), of which each thread holds one row), and shared memory can be laid out to
avoid bank conflicts. The instructions for float16 and bfloat16 are like the intrinsics in TVM's
`tvm.s_tir.tensor_intrin.cuda`; `wmma.py` says why TVM's are not used. tf32 is not a dtype: its
operands are float32, and the instruction reads 11 of their significant bits, so they must be
rounded beforehand.

All instructions need sm_80. This module imports TVM's compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from needle_tvm._tvm.names import TensorIntrin, ldmatrix, mma, mma_fill
from needle_tvm._tvm.names import tvmscript as T
from needle_tvm.kernels.dense.gpu.wmma import matched

Place = tuple[Any, Any]  # (thread of the warp, index among its elements)

_PTX = {"float16": "fp16", "bfloat16": "bf16", "float32": "tf32"}


@dataclass(frozen=True)
class Registers:
    """The instructions for operands of the same dtype ("float32" means tf32). The methods `fill`,
    `load`, `multiply` and `store` return names of instructions. A fragment of sums is 16 x 16, the
    size of two of mma's own fragments.

    `left` and `right` say whether an operand is transposed in shared memory: with `left`, `a` is
    (terms, rows); with `right`, `b` is (columns, terms). Raises ValueError if a float16 or bfloat16
    operand is transposed.
    """

    dtype: str = "float16"
    left: bool = False
    right: bool = False
    scope: str = "shared"

    def __post_init__(self) -> None:
        if self.dtype != "float32" and (self.left or self.right):
            raise ValueError(
                f"mma of {self.dtype}: operands must not be transposed; only tf32 operands may be"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and terms of a fragment."""
        return 16, 16, 8 if self.dtype == "float32" else 16

    def edges(self, operand: str) -> tuple[int, int]:
        """Return the extents in memory of a fragment of "a", "b" or the sums "c"."""
        rows, columns, terms = self.shape
        if operand == "c":
            return rows, columns
        if operand == "a":
            return (terms, rows) if self.left else (rows, terms)
        return (columns, terms) if self.right else (terms, columns)

    def memory(self, operand: str) -> str:
        """Return the scope of fragments of "a", "b" or the sums "c"."""
        return "warp"

    def at(self, operand: str, row: Any, column: Any) -> Place:
        """Return the Place of an element in a fragment of "a", "b" or "c"; `row` and `column` are
        its position in memory.

        A half-precision operand consists of four 8 x 8 fragments in sequence: upper left, lower
        left, upper right, lower right. Each thread holds two neighbours of a row. ldmatrix
        transposes `b` as it loads it. Sums are laid out the same way.
        """
        if self.dtype != "float32" or operand == "c":
            return 4 * (row % 8) + column % 8 // 2, 4 * (column // 8) + row // 8 * 2 + column % 2
        if operand == "a":
            row, column = (column, row) if self.left else (row, column)
            return 4 * (row % 8) + column % 4, column // 4 * 2 + row // 8
        row, column = (column, row) if self.right else (row, column)
        return 4 * (column % 8) + row % 4, column // 8 * 2 + row // 4

    def tiles(self, operand: str, *at: Any) -> tuple[Any, ...]:
        """Return the position of an element in an array of fragments: (fragment, thread, index)."""
        *outer, row, column = at
        high, wide = self.edges(operand)
        place = self.at(operand, row % high, column % wide)
        return (*outer, row // high, column // wide, *place)

    def fill(self) -> str:
        """Return the name of the instruction that sets a fragment of sums to zero."""
        return _fill(self)

    def load(self, operand: str) -> str:
        """Return the name of the instruction that loads a fragment of "a" or "b" from shared
        memory: for half precision, ldmatrix, in rows of 16 bytes."""
        return (_load_words if self.dtype == "float32" else _load_matrix)(self, operand)

    def multiply(self) -> str:
        """Return the name of the intrinsic whose two mma instructions add the matmul of two
        fragments to a third."""
        return _multiply(self)

    def store(self, scope: str | None = None) -> str:
        """Return the name of the instruction that stores a fragment of sums to memory of `scope`
        (default: the shared memory); each thread stores its own eight sums."""
        return _store(self, scope or self.scope)


@cache
def _fill(kind: Registers) -> str:
    @T.prim_func(s_tir=True)
    def zeros(sums: T.handle) -> None:
        C = T.match_buffer(sums, (32, 8), "float32", scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:32, 0:8])
            for i0, j0 in T.grid(16, 16):
                with T.sblock("init"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    thread, element = T.meta_var(kind.at("c", i, j))
                    T.reads()
                    T.writes(C[thread, element])
                    C[thread, element] = T.float32(0)

    @T.prim_func(s_tir=True)
    def call(sums: T.handle) -> None:
        C = T.match_buffer(sums, (32, 8), "float32", scope="warp", offset_factor=1)
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:32, 0:8])
            for _lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(mma_fill(8, C.data, C.elem_offset, dtype="float32"))

    return _registered("needle.mma_fill", zeros, call)


def _copied(kind: Registers, operand: str, elements: int) -> Any:
    """Return the load of a fragment, as loops."""
    rows, columns = kind.edges(operand)
    dtype, scope = kind.dtype, kind.scope

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        S = matched(source, (rows, columns), dtype, scope, 8)
        W = matched(target, (32, elements), dtype, "warp", 4)
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(W[0:32, 0:elements])
            for i0, j0 in T.grid(rows, columns):
                with T.sblock("load"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    T.reads(S[i, j])
                    thread, element = T.meta_var(kind.at(operand, i, j))
                    T.writes(W[thread, element])
                    W[thread, element] = S[i, j]

    return copy


@cache
def _load_matrix(kind: Registers, operand: str) -> str:
    transposed, dtype, scope = operand == "b", kind.dtype, kind.scope

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        S = matched(source, (16, 16), dtype, scope, 8, [s0, s1])
        W = matched(target, (32, 8), dtype, "warp", 4)
        with T.sblock("root"):
            T.reads(S[0:16, 0:16])
            T.writes(W[0:32, 0:8])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                T.evaluate(
                    ldmatrix(
                        transposed,
                        4,
                        ".b16",
                        W.data,
                        W.elem_offset + 8 * lane,
                        S.access_ptr("r"),
                        s0 * (lane % 16) + 8 * (lane // 16),
                        dtype=dtype,
                    )
                )

    name = f"needle.ldmatrix_{operand}_{dtype}_{scope}"
    return _registered(name, _copied(kind, operand, 8), call)


@cache
def _load_words(kind: Registers, operand: str) -> str:
    rows, columns = kind.edges(operand)
    dtype, scope, transposed = kind.dtype, kind.scope, kind.left if operand == "a" else kind.right
    of_rows = operand == "a"

    def row(lane: Any, element: Any) -> Any:
        """Return the row of a thread's element: rows of "a" 8 apart (and columns 4 apart), or terms
        of "b" 4 apart (and columns 8 apart)."""
        return lane // 4 + element % 2 * 8 if of_rows else lane % 4 + element % 2 * 4

    def column(lane: Any, element: Any) -> Any:
        return lane % 4 + element // 2 * 4 if of_rows else lane // 4 + element // 2 * 8

    first, second = (column, row) if transposed else (row, column)

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        S = matched(source, (rows, columns), dtype, scope, 8, [s0, s1])
        W = matched(target, (32, 4), dtype, "warp", 4)
        with T.sblock("root"):
            T.reads(S[0:rows, 0:columns])
            T.writes(W[0:32, 0:4])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                for element in T.unroll(4):
                    W[lane, element] = S[first(lane, element), second(lane, element)]

    order = "t" if transposed else "n"
    return _registered(
        f"needle.mma_load_{operand}_{order}_{scope}", _copied(kind, operand, 4), call
    )


@cache
def _multiply(kind: Registers) -> str:
    m, n, k = kind.shape
    per_lane, dtype, ptx = k // 2, kind.dtype, _PTX[kind.dtype]
    size = f"m16n8k{k}"

    def operand(buffer: Any, name: str, row: Any, column: Any) -> Any:
        return buffer[kind.at(name, row, column)]

    def left(buffer: Any, i: Any, r: Any) -> Any:
        return _wide(operand(buffer, "a", *((r, i) if kind.left else (i, r))))

    def right(buffer: Any, r: Any, j: Any) -> Any:
        return _wide(operand(buffer, "b", *((j, r) if kind.right else (r, j))))

    @T.prim_func(s_tir=True)
    def product(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = matched(a, (32, per_lane), dtype, "warp", 4)
        B = matched(b, (32, per_lane), dtype, "warp", 4)
        C = matched(sums, (32, 8), "float32", "warp", 4)
        with T.sblock("root"):
            T.reads(C[0:32, 0:8], A[0:32, 0:per_lane], B[0:32, 0:per_lane])
            T.writes(C[0:32, 0:8])
            for i0, j0, k0 in T.grid(m, n, k):
                with T.sblock("C"):
                    i, j, r = T.axis.remap("SSR", [i0, j0, k0])
                    thread, element = T.meta_var(kind.at("c", i, j))
                    C[thread, element] = C[thread, element] + left(A, i, r) * right(B, r, j)

    @T.prim_func(s_tir=True)
    def call(a: T.handle, b: T.handle, sums: T.handle) -> None:
        A = matched(a, (32, per_lane), dtype, "warp", 4)
        B = matched(b, (32, per_lane), dtype, "warp", 4)
        C = matched(sums, (32, 8), "float32", "warp", 4)
        with T.sblock("root"):
            T.reads(C[0:32, 0:8], A[0:32, 0:per_lane], B[0:32, 0:per_lane])
            T.writes(C[0:32, 0:8])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                for half in T.unroll(2):  # columns 0 to 7 of the result, then 8 to 15
                    T.evaluate(
                        mma(
                            size,
                            "row",
                            "col",
                            ptx,
                            ptx,
                            "fp32",
                            A.data,
                            A.elem_offset + lane * per_lane,
                            B.data,
                            B.elem_offset + lane * per_lane + half * (per_lane // 2),
                            C.data,
                            C.elem_offset + lane * 8 + half * 4,
                            False,
                            dtype="float32",
                        )
                    )

    orders = f"{'t' if kind.left else 'n'}{'t' if kind.right else 'n'}"
    return _registered(f"needle.mma_multiply_{ptx}_{orders}", product, call)


@cache
def _store(kind: Registers, scope: str) -> str:
    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        W = T.match_buffer(source, (32, 8), "float32", scope="warp")
        D = T.match_buffer(target, (16, 16), "float32", scope=scope)
        with T.sblock("root"):
            T.reads(W[0:32, 0:8])
            T.writes(D[0:16, 0:16])
            for i0, j0 in T.grid(16, 16):
                with T.sblock("store"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    thread, element = T.meta_var(kind.at("c", i, j))
                    T.reads(W[thread, element])
                    T.writes(D[i, j])
                    D[i, j] = W[thread, element]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        W = T.match_buffer(source, (32, 8), "float32", scope="warp", offset_factor=1)
        D = T.match_buffer(
            target, (16, 16), "float32", scope=scope, offset_factor=1, strides=[s0, s1]
        )
        with T.sblock("root"):
            T.reads(W[0:32, 0:8])
            T.writes(D[0:16, 0:16])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                for element in T.unroll(8):
                    D[
                        lane // 4 + element % 4 // 2 * 8,
                        element // 4 * 8 + lane % 4 * 2 + element % 2,
                    ] = W[lane, element]

    return _registered(f"needle.mma_store_{scope}", copy, call)


def _wide(value: Any) -> Any:
    return value if str(value.ty) == "float32" else T.Cast("float32", value)


def _registered(name: str, description: Any, implementation: Any) -> str:
    # Several kinds may share an instruction that does not depend on their difference.
    TensorIntrin.register(name, description, implementation, override=True)
    return name
