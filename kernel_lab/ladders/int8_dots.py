"""AVX512-VNNI's `vpdpbusd` as an instruction for a schedule to tensorize with.

It adds four products of an unsigned and a signed 8-bit number to each of 16 sums in int32. It comes
as textual LLVM IR, since LLVM 22 has other types for it than TVM's own intrinsic: a loop around the
instruction must be annotated with `PRAGMA`: `SOURCE`.
"""

from __future__ import annotations

import functools

FEATURE = "avx512vnni"  # of the target; without it LLVM ends the process
LANES, TERMS = 16, 4
NAME = "kernel_lab_dots"

PRAGMA = "pragma_import_llvm"
SOURCE = f"""
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
define <16 x i32> @{NAME}(<16 x i32> %sums, <16 x i32> %x, <16 x i32> %w) alwaysinline {{
  %xs = bitcast <16 x i32> %x to <64 x i8>
  %ws = bitcast <16 x i32> %w to <64 x i8>
  %y = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %sums, <64 x i8> %xs, <64 x i8> %ws)
  ret <16 x i32> %y
}}
"""


@functools.cache
def multiply_add() -> str:
    """The name of: sums[j] += x[0] w[j, 0] + ... + x[3] w[j, 3] for 16 j and four unsigned x."""
    from needle_tvm._tvm.names import TensorIntrin
    from needle_tvm._tvm.names import tvmscript as T

    @T.prim_func(s_tir=True)
    def described(x: T.handle, w: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(x, (4,), "uint8", offset_factor=1)
        B = T.match_buffer(w, (16, 4), "int8", offset_factor=1)
        C = T.match_buffer(sums, (16,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:4], B[0:16, 0:4])
            T.writes(C[0:16])
            for j, t in T.grid(16, 4):
                with T.sblock("update"):
                    vj, vt = T.axis.remap("SR", [j, t])
                    C[vj] = C[vj] + T.Cast("int32", A[vt]) * T.Cast("int32", B[vj, vt])

    @T.prim_func(s_tir=True)
    def done(x: T.handle, w: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(x, (4,), "uint8", offset_factor=1)
        B = T.match_buffer(w, (16, 4), "int8", offset_factor=1)
        C = T.match_buffer(sums, (16,), "int32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:4], B[0:16, 0:4])
            T.writes(C[0:16])
            C[T.ramp(T.int32(0), 1, 16)] = T.call_pure_extern(
                "int32x16",
                "kernel_lab_dots",
                C.vload([0], "int32x16"),
                T.broadcast(T.reinterpret("int32", A.vload([0], "uint8x4")), 16),
                T.reinterpret("int32x16", B.vload([0, 0], "int8x64")),
            )

    name = "kernel_lab.int8_dots"
    TensorIntrin.register(name, described, done, override=True)
    return name
