"""Tensor-core instructions of PTX as TVM's `tensorize` takes them: mma.m16n8k16 and ldmatrix.

Unlike wmma's, their fragments have a layout that the PTX ISA specifies: thread t of a warp holds 8
elements of a 16 x 16 fragment, which `place` numbers. So fragments are ordinary registers (scope
"warp": each thread's part of an array of 32 x 8) and shared memory may lie as it suits the banks.
The same instructions as in TVM's `tvm.s_tir.tensor_intrin.cuda`; see `wmma.py` for why not those.

mma.m16n8k16 of halves needs sm_80. Imports TVM's compiler.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from needle_tvm._tvm import TensorIntrin, ldmatrix, mma, mma_fill
from needle_tvm._tvm import tvmscript as T


def place(i: Any, j: Any) -> tuple[Any, Any]:
    """Thread, and element of the thread, that hold row i and column j of a 16 x 16 fragment.

    Four fragments of 8 x 8 after one another: upper left, lower left, upper right, lower right.
    """
    return 4 * (i % 8) + j % 8 // 2, 4 * (j // 8) + i // 8 * 2 + j % 2


def tiles(i: Any, j: Any) -> tuple[Any, ...]:
    """Where a matrix of fragments keeps row i and column j: which fragment, thread, element."""
    return (i // 16, j // 16, *place(i % 16, j % 16))


@cache
def fill() -> str:
    """The instruction that sets a fragment of sums to zero."""

    @T.prim_func(s_tir=True)
    def zeros(sums: T.handle) -> None:
        C = T.match_buffer(sums, (32, 8), "float32", scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:32, 0:8])
            for i0, j0 in T.grid(16, 16):
                with T.sblock("init"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    thread, element = T.meta_var(place(i, j))
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

    return _registered("lab.mma_fill", zeros, call)


@cache
def load(operand: str) -> str:
    """ldmatrix: loads a fragment of operand "a" or "b" from shared memory, in rows of 16 bytes.

    Operand b is transposed on the way, so that a thread gets neighbours of one column.
    """
    transposed = operand == "b"

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        S = T.match_buffer(source, (16, 16), "float16", align=64, offset_factor=16, scope="shared")
        W = T.match_buffer(target, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:16, 0:16])
            T.writes(W[0:32, 0:8])
            for i0, j0 in T.grid(16, 16):
                with T.sblock("load"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    T.reads(S[i, j])
                    thread, element = T.meta_var(place(i, j))
                    T.writes(W[thread, element])
                    W[thread, element] = S[i, j]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        S = T.match_buffer(
            source,
            (16, 16),
            "float16",
            align=64,
            offset_factor=16,
            scope="shared",
            strides=[s0, s1],
        )
        W = T.match_buffer(target, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
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
                        dtype="float16",
                    )
                )

    return _registered(f"lab.ldmatrix_{operand}", copy, call)


@cache
def multiply() -> str:
    """Two instructions mma.m16n8k16: adds the product of two fragments to a third."""

    @T.prim_func(s_tir=True)
    def product(left: T.handle, right: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(left, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
        B = T.match_buffer(right, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
        C = T.match_buffer(sums, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:32, 0:8], A[0:32, 0:8], B[0:32, 0:8])
            T.writes(C[0:32, 0:8])
            for i0, j0, k0 in T.grid(16, 16, 16):
                with T.sblock("C"):
                    i, j, k = T.axis.remap("SSR", [i0, j0, k0])
                    a_thread, a_element = T.meta_var(place(i, k))
                    b_thread, b_element = T.meta_var(place(k, j))
                    thread, element = T.meta_var(place(i, j))
                    T.reads(C[thread, element], A[a_thread, a_element], B[b_thread, b_element])
                    T.writes(C[thread, element])
                    C[thread, element] = C[thread, element] + T.Cast(
                        "float32", A[a_thread, a_element]
                    ) * T.Cast("float32", B[b_thread, b_element])

    @T.prim_func(s_tir=True)
    def call(left: T.handle, right: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(left, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
        B = T.match_buffer(right, (32, 8), "float16", align=64, offset_factor=16, scope="warp")
        C = T.match_buffer(sums, (32, 8), "float32", align=64, offset_factor=16, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:32, 0:8], A[0:32, 0:8], B[0:32, 0:8])
            T.writes(C[0:32, 0:8])
            for lane in T.thread_binding(0, 32, "threadIdx.x"):
                for half in T.unroll(2):  # columns 0 to 7 of the result, then 8 to 15
                    T.evaluate(
                        mma(
                            "m16n8k16",
                            "row",
                            "col",
                            "fp16",
                            "fp16",
                            "fp32",
                            A.data,
                            A.elem_offset + lane * 8,
                            B.data,
                            B.elem_offset + lane * 8 + half * 4,
                            C.data,
                            C.elem_offset + lane * 8 + half * 4,
                            False,
                            dtype="float32",
                        )
                    )

    return _registered("lab.mma_multiply", product, call)


@cache
def store() -> str:
    """Stores a fragment of sums into global memory, each thread its own eight."""

    @T.prim_func(s_tir=True)
    def copy(source: T.handle, target: T.handle) -> None:
        W = T.match_buffer(source, (32, 8), "float32", scope="warp")
        D = T.match_buffer(target, (16, 16), "float32", scope="global")
        with T.sblock("root"):
            T.reads(W[0:32, 0:8])
            T.writes(D[0:16, 0:16])
            for i0, j0 in T.grid(16, 16):
                with T.sblock("store"):
                    i, j = T.axis.remap("SS", [i0, j0])
                    thread, element = T.meta_var(place(i, j))
                    T.reads(W[thread, element])
                    T.writes(D[i, j])
                    D[i, j] = W[thread, element]

    @T.prim_func(s_tir=True)
    def call(source: T.handle, target: T.handle) -> None:
        s0 = T.int32()
        s1 = T.int32()
        W = T.match_buffer(source, (32, 8), "float32", scope="warp", offset_factor=1)
        D = T.match_buffer(
            target, (16, 16), "float32", scope="global", offset_factor=1, strides=[s0, s1]
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

    return _registered("lab.mma_store", copy, call)


def _registered(name: str, description: Any, implementation: Any) -> str:
    TensorIntrin.register(name, description, implementation)
    return name
