"""Checks for ops, eager and compiled: `check_op(MyOp)`. `needle.testing` needs no TVM."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from needle import ops, testing
from needle.backend_ndarray import DTYPES, Device
from needle.op import Op
from needle.testing import Compiled, OpCheckError
from needle.trace import trace
from needle_tvm._tvm.names import relax, tvm
from needle_tvm.artifact import bfloat16
from needle_tvm.errors import StageError, TranslationError, UsageError
from needle_tvm.frontend import lowering
from needle_tvm.lower import build
from needle_tvm.runtime.memory import aligned_copy
from needle_tvm.stages import STAGES
from needle_tvm.target.spec import resolve
from needle_tvm.tune.options import Options

__all__ = ["OpCheckError", "check_op", "compiled"]


def check_op(
    op_class: type[Op],
    *,
    stages: Sequence[str] = STAGES,
    devices: Sequence[Device] | None = None,
    dtypes: Sequence[str] = DTYPES,
) -> None:
    """Check every rule of an op against its samples, as `needle.testing.check_op` does, and its
    compiled code at each stage against its NumPy reference in all `dtypes`.

    Raises OpCheckError if a check fails, and whatever compiling raises. Raises UsageError for an
    argument that is not an op, a list of devices or one of dtypes, and StageError if `stages` is
    not a list of stages.
    """
    try:
        testing.checked_arguments(op_class, devices, dtypes)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if isinstance(stages, str) or not isinstance(stages, Collection) or not stages:
        raise StageError(f"stages={stages!r}: must be a list of {', '.join(STAGES)}")
    hooks = {stage: compiled(stage) for stage in stages}
    testing.check_op(op_class, devices=devices, dtypes=dtypes, compiled=hooks)


def compiled(stage: str) -> Compiled:
    """The `compiled` argument of `needle.testing.check_op`: runs ops at a stage on this processor.

    Ops are compiled in memory; nothing is linked, cached or exported. Raises StageError for an
    unknown stage. Calling the result raises OpCheckError for an op that cannot be translated.
    """
    Options().check(stage)
    target = resolve("cpu").to_tvm()
    kept: dict[tuple[str, str], Any] = {}

    def run(op: Op, inputs: list[Any]) -> Any:
        key = repr(op), str([_described(value) for value in inputs])
        if key not in kept:
            graph = trace(lambda *values: op(*map(_grouped, values)), *inputs)
            try:
                module = build.schedule(lowering.lower(graph, target, stage), target, stage)
            except TranslationError as error:
                raise OpCheckError(f"stage {stage!r}: {error}") from error
            machine = relax.VirtualMachine(relax.build(module, target=target), tvm.cpu())
            kept[key] = graph, machine["main"]
        graph, main = kept[key]
        copies = [
            aligned_copy(np.asarray(leaf)) for leaf in graph.flatten_inputs(tuple(inputs), {})
        ]
        result = main(*[bfloat16.to_tensor(tvm.runtime, array) for array in copies])
        parts = [result] if hasattr(result, "numpy") else list(result)
        return graph.unflatten_outputs([bfloat16.to_array(part) for part in parts])

    return run


def _grouped(value: Any) -> Any:
    return ops.make_tuple(*value) if isinstance(value, tuple) else value


def _described(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_described(part) for part in value)
    return value.shape, str(value.dtype)
