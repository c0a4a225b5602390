"""Tensor-core instructions as TVM's `tensorize` takes them: CUDA's warp matrix functions (wmma).

Each is a pair: what it computes as loops over a 16 x 16 fragment, and the call that does it. They
are the ones of TVM's own `tvm.s_tir.tensor_intrin.cuda`, whose import describes every instruction
of every processor and takes twelve seconds. Operands are float16, sums float32; all 32 threads of
a warp carry out a call together (CUDA C++ Programming Guide, "Warp Matrix Functions").

Imports TVM's compiler.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from needle_tvm._tvm import TensorIntrin
from needle_tvm._tvm import tvmscript as T

EDGE = 16  # rows, columns and terms of a fragment
FILL, MULTIPLY = "lab.wmma_fill", "lab.wmma_multiply"


@cache
def fill() -> str:
    """The instruction that sets a fragment of sums to zero."""
    _register(FILL, _zeros, _fill)
    return FILL


@cache
def multiply() -> str:
    """The instruction that adds the product of two fragments to a third."""
    _register(MULTIPLY, _product, _multiply)
    return MULTIPLY


@cache
def load(operand: str) -> str:
    """The instruction that loads a fragment of operand "a" or "b" from shared memory."""
    name, scope = f"lab.wmma_load_{operand}", f"wmma.matrix_{operand}"

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        S = T.match_buffer(source, (16, 16), "float16", align=64, offset_factor=16, scope="shared")
        F = T.match_buffer(target, (16, 16), "float16", align=64, offset_factor=16, scope=scope)
        with T.sblock("root"):
            T.reads(S[0:16, 0:16])
            T.writes(F[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    F[vi, vj] = S[vi, vj]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s1 = T.int32()
        s0 = T.int32()
        f1 = T.int32()
        f0 = T.int32()
        S = T.match_buffer(
            source,
            (16, 16),
            "float16",
            align=64,
            offset_factor=16,
            scope="shared",
            strides=[s1, s0],
        )
        F = T.match_buffer(
            target,
            (16, 16),
            "float16",
            align=64,
            offset_factor=16,
            scope=scope,
            strides=[f1, f0],
        )
        with T.sblock("root"):
            T.reads(S[0:16, 0:16])
            T.writes(F[0:16, 0:16])
            T.evaluate(
                T.tvm_load_matrix_sync(
                    F.data,
                    16,
                    16,
                    16,
                    _number(F, f1),
                    S.access_ptr("r", ptr_type="float16"),
                    s1,
                    "row_major",
                    dtype="void",
                )
            )

    _register(name, copy, call)
    return name


@cache
def store(scope: str) -> str:
    """The instruction that stores a fragment of sums into memory of that scope."""
    name = f"lab.wmma_store_{scope}"

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        F = T.match_buffer(
            source, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator"
        )
        D = T.match_buffer(target, (16, 16), "float32", align=64, offset_factor=16, scope=scope)
        with T.sblock("root"):
            T.reads(F[0:16, 0:16])
            T.writes(D[0:16, 0:16])
            for i, j in T.grid(16, 16):
                with T.sblock("store"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    D[vi, vj] = F[vi, vj]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        d1 = T.int32()
        d0 = T.int32()
        f1 = T.int32()
        f0 = T.int32()
        F = T.match_buffer(
            source,
            (16, 16),
            "float32",
            align=64,
            offset_factor=16,
            scope="wmma.accumulator",
            strides=[f1, f0],
        )
        D = T.match_buffer(
            target,
            (16, 16),
            "float32",
            align=64,
            offset_factor=16,
            scope=scope,
            strides=[d1, d0],
        )
        with T.sblock("root"):
            T.reads(F[0:16, 0:16])
            T.writes(D[0:16, 0:16])
            T.evaluate(
                T.tvm_store_matrix_sync(
                    F.data,
                    16,
                    16,
                    16,
                    _number(F, f1),
                    D.access_ptr("w", ptr_type="float32"),
                    d1,
                    "row_major",
                    dtype="void",
                )
            )

    _register(name, copy, call)
    return name


def _register(name: str, description: Any, implementation: Any) -> None:
    TensorIntrin.register(name, description, implementation)


def _number(buffer: Any, stride: Any) -> Any:
    """Which fragment of a buffer of fragments begins at its offset, counted row by row."""
    row, column = buffer.elem_offset // stride // EDGE, buffer.elem_offset % stride // EDGE
    return row * (stride // EDGE) + column


@T.prim_func(s_tir=True)
def _zeros(sums: T.handle) -> None:
    C = T.match_buffer(
        sums, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator"
    )
    with T.sblock("root"):
        T.reads()
        T.writes(C[0:16, 0:16])
        for i, j in T.grid(16, 16):
            with T.sblock("init"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.float32(0)


@T.prim_func(s_tir=True)
def _fill(sums: T.handle) -> None:
    c1 = T.int32()
    c0 = T.int32()
    C = T.match_buffer(
        sums,
        (16, 16),
        "float32",
        align=64,
        offset_factor=16,
        scope="wmma.accumulator",
        strides=[c1, c0],
    )
    with T.sblock("root"):
        T.reads()
        T.writes(C[0:16, 0:16])
        T.evaluate(
            T.tvm_fill_fragment(C.data, 16, 16, 16, _number(C, c1), T.float32(0), dtype="void")
        )


@T.prim_func(s_tir=True)
def _product(left: T.handle, right: T.handle, sums: T.handle) -> None:
    A = T.match_buffer(left, (16, 16), "float16", align=64, offset_factor=16, scope="wmma.matrix_a")
    B = T.match_buffer(
        right, (16, 16), "float16", align=64, offset_factor=16, scope="wmma.matrix_b"
    )
    C = T.match_buffer(
        sums, (16, 16), "float32", align=64, offset_factor=16, scope="wmma.accumulator"
    )
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        for i, j, k in T.grid(16, 16, 16):
            with T.sblock(""):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + T.Cast("float32", A[vi, vk]) * T.Cast("float32", B[vk, vj])


@T.prim_func(s_tir=True)
def _multiply(left: T.handle, right: T.handle, sums: T.handle) -> None:
    a1 = T.int32()
    a0 = T.int32()
    b1 = T.int32()
    b0 = T.int32()
    c1 = T.int32()
    c0 = T.int32()
    A = T.match_buffer(
        left,
        (16, 16),
        "float16",
        align=64,
        offset_factor=16,
        scope="wmma.matrix_a",
        strides=[a1, a0],
    )
    B = T.match_buffer(
        right,
        (16, 16),
        "float16",
        align=64,
        offset_factor=16,
        scope="wmma.matrix_b",
        strides=[b1, b0],
    )
    C = T.match_buffer(
        sums,
        (16, 16),
        "float32",
        align=64,
        offset_factor=16,
        scope="wmma.accumulator",
        strides=[c1, c0],
    )
    with T.sblock("root"):
        T.reads(C[0:16, 0:16], A[0:16, 0:16], B[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        T.evaluate(
            T.tvm_mma_sync(
                C.data,
                _number(C, c1),
                A.data,
                _number(A, a1),
                B.data,
                _number(B, b1),
                C.data,
                _number(C, c1),
                dtype="void",
            )
        )
