"""Dot-product instructions, which add several products to each sum of a vector, for tensorization.

They are written as LLVM IR, because TVM lowers bfloat16 types before code generation
(docs/results/2026-11-21-bf16-cpu.md), and because LLVM 22 gives the 8-bit instruction other types
than TVM's intrinsic does. A loop around an instruction must be annotated with `PRAGMA` and its
`source`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

LANES = 16  # sums of 32 bits in a vector
PRAGMA = "pragma_import_llvm"
_WIDTHS = {"bfloat16": 16, "uint8": 8, "int8": 8}
_LLVM = {"bfloat16": "bfloat", "uint8": "i8", "int8": "i8", "float32": "float", "int32": "i32"}


@dataclass(frozen=True)
class DotInstruction:
    """An AVX-512 instruction: sums[j] += x[0] w[j, 0] + x[1] w[j, 1] + ... for `LANES` values of j.

    `name` is the name of our function, and `intrinsic` that of the LLVM intrinsic. LLVM aborts the
    process if a target lacks the `feature`. `x`, `w` and `sums` are dtypes. For each sum, 32 bits
    of x are multiplied by 32 bits of w.
    """

    name: str
    feature: str
    intrinsic: str
    x: str
    w: str
    sums: str

    @property
    def terms(self) -> int:
        """The number of products that one instruction adds to each sum."""
        return 32 // _WIDTHS[self.x]

    @property
    def source(self) -> str:
        """The LLVM IR of the function."""
        count = LANES * self.terms
        x, w = f"<{count} x {_LLVM[self.x]}>", f"<{count} x {_LLVM[self.w]}>"
        sums, words = f"<{LANES} x {_LLVM[self.sums]}>", f"<{LANES} x i32>"
        return f"""
declare {sums} @{self.intrinsic}({sums}, {x}, {w})
define {sums} @{self.name}({sums} %sums, {words} %x, {words} %w) alwaysinline {{
  %xs = bitcast {words} %x to {x}
  %ws = bitcast {words} %w to {w}
  %y = call {sums} @{self.intrinsic}({sums} %sums, {x} %xs, {w} %ws)
  ret {sums} %y
}}
"""

    @functools.cache  # noqa: B019  (there are few instructions)
    def tensor_intrinsic(self) -> str:
        """Register the instruction for sums in registers ("local"); return its name for
        `Schedule.tensorize`."""
        from needle_tvm._tvm.names import TensorIntrin  # imported here: the lab may run without TVM
        from needle_tvm._tvm.names import tvmscript as T

        function, terms = self.name, self.terms
        x_type, w_type, sum_type = self.x, self.w, self.sums
        few, many = f"{x_type}x{terms}", f"{w_type}x{LANES * terms}"
        sum_vector, words = f"{sum_type}x{LANES}", f"int32x{LANES}"

        @T.prim_func(s_tir=True)
        def described(x: T.handle, w: T.handle, sums: T.handle) -> None:
            A = T.match_buffer(x, (terms,), x_type, offset_factor=1)
            B = T.match_buffer(w, (LANES, terms), w_type, offset_factor=1)
            C = T.match_buffer(sums, (LANES,), sum_type, offset_factor=1, scope="local")
            with T.sblock("root"):
                T.reads(C[0:LANES], A[0:terms], B[0:LANES, 0:terms])
                T.writes(C[0:LANES])
                for j, t in T.grid(LANES, terms):
                    with T.sblock("update"):
                        vj, vt = T.axis.remap("SR", [j, t])
                        C[vj] = C[vj] + T.Cast(sum_type, A[vt]) * T.Cast(sum_type, B[vj, vt])

        @T.prim_func(s_tir=True)
        def done(x: T.handle, w: T.handle, sums: T.handle) -> None:
            A = T.match_buffer(x, (terms,), x_type, offset_factor=1)
            B = T.match_buffer(w, (LANES, terms), w_type, offset_factor=1)
            C = T.match_buffer(sums, (LANES,), sum_type, offset_factor=1, scope="local")
            with T.sblock("root"):
                T.reads(C[0:LANES], A[0:terms], B[0:LANES, 0:terms])
                T.writes(C[0:LANES])
                C[T.ramp(T.int32(0), 1, LANES)] = T.call_pure_extern(
                    sum_vector,
                    function,
                    C.vload([0], sum_vector),
                    T.broadcast(T.reinterpret("int32", A.vload([0], few)), LANES),
                    T.reinterpret(words, B.vload([0, 0], many)),
                )

        TensorIntrin.register(function, described, done, override=True)
        return function


BF16_PAIRS = DotInstruction(
    "needle_dot_bf16",
    "avx512bf16",
    "llvm.x86.avx512bf16.dpbf16ps.512",
    "bfloat16",
    "bfloat16",
    "float32",
)
