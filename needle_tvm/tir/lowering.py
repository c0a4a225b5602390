"""Adds our passes before and after TVM's own pipeline for functions.

The passes before it rewrite divisions of indices so that TVM simplifies them correctly
(`divisions`), arithmetic on integer data so that it wraps around and never crashes the process
(`integers`), arithmetic on booleans so that LLVM supports it (`booleans`), and repeated bfloat16
numbers so that TVM supports them (`repeats`). The passes after it turn gathers of neighbouring
elements into vector loads and shuffles (`shuffles`), put tiles on the stack (`stack`), define the
functions that `vector_math` and `integers` call, and keep LLVM from vectorising some loops
(`llvm`).
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import module_pass, sequential, tvm
from needle_tvm.tir import integers, llvm, opaque, tasks, vector_math
from needle_tvm.tir.booleans import logical_arithmetic
from needle_tvm.tir.divisions import plain_divisions
from needle_tvm.tir.repeats import plain_repeats
from needle_tvm.tir.shuffles import shuffled_reads
from needle_tvm.tir.stack import on_the_stack


def register() -> None:
    """Make every build in this process use this pipeline. Call once."""
    vector_math.register()
    opaque.register()
    integers.register()
    pipelines = tvm.tirx.compilation_pipeline
    before = pipelines.PIPELINE_MAP["s_tir"]

    def pipeline(**options: Any) -> Any:
        passes, host, device = before(**options)
        first = [
            module_pass(each)
            for each in (
                plain_divisions,
                integers.of_data,
                logical_arithmetic,
                plain_repeats,
                vector_math.of_vectors,
            )
        ]
        return sequential([*first, passes]), finalised(host), device

    def finalised(host: Any) -> Any:
        definitions = (vector_math.with_definitions, integers.with_definitions)
        last = [module_pass(each) for each in (*definitions, llvm.masked_loops)]
        first = map(module_pass, (tasks.apart_again, shuffled_reads, on_the_stack))
        return lambda: sequential([*first, host(), *last])

    pipelines.register_tir_pipeline("s_tir", pipeline)
