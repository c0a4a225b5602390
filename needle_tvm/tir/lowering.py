"""TVM's own pipeline for functions, with what it needs before and after.

Before, divisions of indices are written so that TVM simplifies them rightly (`divisions`), integers
that are data so that they wrap around and end no process (`integers`), arithmetic of booleans so
that LLVM has it (`booleans`), and repeated numbers of bfloat16 so that TVM has them (`repeats`);
after, the functions that `vector_math` and `integers` call are defined, and loops marked that LLVM
is to leave as they are (`llvm`).
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import module_pass, sequential, tvm
from needle_tvm.tir import integers, llvm, opaque, vector_math
from needle_tvm.tir.booleans import logical_arithmetic
from needle_tvm.tir.divisions import upward_divisions
from needle_tvm.tir.repeats import plain_repeats


def register() -> None:
    """Make this what every module of this process is built by. To be called once."""
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
                upward_divisions,
                integers.of_data,
                logical_arithmetic,
                plain_repeats,
            )
        ]
        return sequential([*first, passes]), finalised(host), device

    def finalised(host: Any) -> Any:
        definitions = (vector_math.with_definitions, integers.with_definitions)
        last = [module_pass(each) for each in (*definitions, llvm.masked_loops)]
        return lambda: sequential([host(), *last])

    pipelines.register_tir_pipeline("s_tir", pipeline)
