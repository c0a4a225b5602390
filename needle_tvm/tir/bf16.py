"""AVX512-BF16's `vdpbf16ps` as an instruction for a schedule to tensorize with.

It adds the products of 16 pairs of bfloat16 to 16 sums in float32. TVM's own types with bfloat16 do
not reach code generation (docs/results/2026-11-21-bf16-cpu.md), so it comes as textual LLVM IR: a
loop around the instruction must be annotated with `PRAGMA`: `SOURCE`.
"""

from __future__ import annotations

import functools

from needle_tvm._tvm.names import TensorIntrin
from needle_tvm._tvm.names import tvmscript as T

FEATURE = "avx512bf16"  # of the target; without it LLVM ends the process
LANES = 16

PRAGMA = "pragma_import_llvm"
SOURCE = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @needle_dot_bf16(<16 x float> %sums, <16 x i32> %x, <16 x i32> %w) alwaysinline {
  %xs = bitcast <16 x i32> %x to <32 x bfloat>
  %ws = bitcast <16 x i32> %w to <32 x bfloat>
  %y = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %xs, <32 x bfloat> %ws)
  ret <16 x float> %y
}
"""  # noqa: E501


@functools.cache
def multiply_add() -> str:
    """The name of: sums[j] += x[0] * w[j, 0] + x[1] * w[j, 1] for 16 j and one pair x."""

    @T.prim_func(s_tir=True)
    def described(x: T.handle, w: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(x, (2,), "bfloat16", offset_factor=1)
        B = T.match_buffer(w, (16, 2), "bfloat16", offset_factor=1)
        C = T.match_buffer(sums, (16,), "float32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2], B[0:16, 0:2])
            T.writes(C[0:16])
            for j, p in T.grid(16, 2):
                with T.sblock("update"):
                    vj, vp = T.axis.remap("SR", [j, p])
                    C[vj] = C[vj] + T.Cast("float32", A[vp]) * T.Cast("float32", B[vj, vp])

    @T.prim_func(s_tir=True)
    def done(x: T.handle, w: T.handle, sums: T.handle) -> None:
        A = T.match_buffer(x, (2,), "bfloat16", offset_factor=1)
        B = T.match_buffer(w, (16, 2), "bfloat16", offset_factor=1)
        C = T.match_buffer(sums, (16,), "float32", offset_factor=1, scope="local")
        with T.sblock("root"):
            T.reads(C[0:16], A[0:2], B[0:16, 0:2])
            T.writes(C[0:16])
            C[T.ramp(T.int32(0), 1, 16)] = T.call_pure_extern(
                "float32x16",
                "needle_dot_bf16",
                C.vload([0], "float32x16"),
                T.broadcast(T.reinterpret("int32", A.vload([0], "bfloat16x2")), 16),
                T.reinterpret("int32x16", B.vload([0, 0], "bfloat16x32")),
            )

    name = "needle.bf16_pairs"
    TensorIntrin.register(name, described, done, override=True)
    return name
