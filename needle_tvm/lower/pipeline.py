"""The stages through which a model is compiled, as named lists of passes.

| stage  | translated by | passes |
|--------|---------------|--------|
| noopt  | emit_te       | none that changes the computation: unfused, unscheduled |
| fused  | emit          | TVM's legalisation and operator fusion; unscheduled |
| tuned  | emit          | scales folded, weights packed and lifted, fused, scheduled, merged |

A GPU cannot run unscheduled code. There, `noopt` computes each result in its own thread, the
simplest possible schedule, and `fused` uses the default schedules of TVM's dlight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from needle_runtime.target.kind import CPU, GPU
from needle_runtime.target.precision import FLOAT32
from needle_tvm._tvm.names import IRModule, PassContext, Target, transform
from needle_tvm.errors import StageError
from needle_tvm.faults import blamed_on
from needle_tvm.graph import legalize
from needle_tvm.graph.passes.drop_broadcasts import drop_broadcasts
from needle_tvm.graph.passes.empty_constants import empty_constants
from needle_tvm.graph.passes.fold_scale import fold_scale
from needle_tvm.graph.passes.fold_shift import fold_shift
from needle_tvm.graph.passes.fuse_into_sums import fuse_into_sums
from needle_tvm.graph.passes.keep_arithmetic import keep_arithmetic
from needle_tvm.graph.passes.merge_branches import merge_branches
from needle_tvm.graph.passes.merge_products import merge_products
from needle_tvm.graph.passes.own_outputs import own_outputs
from needle_tvm.graph.passes.recompute import recompute
from needle_tvm.graph.passes.reduce_as_stored import reduce_as_stored
from needle_tvm.graph.passes.round_bfloat16 import round_bfloat16
from needle_tvm.graph.passes.share_norms import share_norms
from needle_tvm.graph.passes.sink_views import (
    reshape_permutes,
    sink_images,
    sink_permutes,
    sink_reshapes,
)
from needle_tvm.graph.passes.view_reshapes import view_reshapes
from needle_tvm.graph.passes.wrap_integers import wrap_integers
from needle_tvm.kernels import cpu, gpu
from needle_tvm.kernels.attention.fuse_attention import fuse_attention
from needle_tvm.kernels.conv.conv_as_matmul import conv_as_matmul
from needle_tvm.kernels.conv.flatten_pixels import flatten_pixels
from needle_tvm.kernels.conv.fold_pad import fold_pad
from needle_tvm.kernels.conv.merge_groups import merge_groups
from needle_tvm.kernels.conv.pack_conv import pack_conv
from needle_tvm.kernels.conv.split_taps import split_taps
from needle_tvm.kernels.conv.trim_taps import trim_taps
from needle_tvm.kernels.conv.weight_gradients import weight_gradients
from needle_tvm.kernels.conv.winograd import winograd
from needle_tvm.kernels.conv.write_planes import fuse_planes, write_planes
from needle_tvm.kernels.dense.gpu.library_products import Product, library_products
from needle_tvm.kernels.dense.narrow_products import narrow_products
from needle_tvm.kernels.dense.pack_pairs import pack_pairs
from needle_tvm.kernels.dense.pack_weights import pack_weights
from needle_tvm.lower.cuda_graph import cuda_graph
from needle_tvm.lower.in_place import share_memory
from needle_tvm.lower.merge_kernels import merge_kernels
from needle_tvm.lower.separate_tuple_fields import separate_tuple_fields
from needle_tvm.lower.sizes_in_shapes import sizes_in_shapes
from needle_tvm.target.info import target_info

Pass = Callable[[IRModule, Target], IRModule]


def _plain(tvm_pass: Callable[[], Callable[[IRModule], IRModule]]) -> Pass:
    """Wrap one of TVM's passes that ignore the target as a Pass with the same name."""

    def apply(module: IRModule, target: Target) -> IRModule:
        return tvm_pass()(module)

    apply.__name__ = tvm_pass.__name__
    return apply


def _lift_parameter_work(module: IRModule, target: Target) -> IRModule:
    """Move all work that depends only on parameters into `main_transform_params`, which runs once
    at load."""
    return transform.LiftTransformParams()(module)


def _legalize_ops(module: IRModule, target: Target) -> IRModule:
    """Lower TVM's operators to loops: by our rules if there are any, else by TVM's."""
    return transform.LegalizeOps(legalize.RULES)(module)


# No layer fuses more operators than this into one kernel. TVM's default is 256, but the time to
# schedule a kernel grows with the square of this number.
_MOST_FUSED = 64


def _fuse_ops(module: IRModule, target: Target) -> IRModule:
    with PassContext(config={"relax.FuseOps.max_depth": _MOST_FUSED}):
        return transform.FuseOps()(module)


_fuse_ops.__name__ = "FuseOps"

# Remove variables that only rename others. They would stop fusion, and a reshaped input might be
# returned as a view of that input.
_CLEAN = _plain(transform.CanonicalizeBindings)

# A pass may leave dead bindings, which the next pass would count as readers.
_DROP_DEAD = _plain(transform.DeadCodeElimination)

_PATTERNS = (_CLEAN, _legalize_ops, _plain(transform.AnnotateTIROpPattern), fuse_planes)
_JOIN = (
    _plain(transform.FoldConstant),
    separate_tuple_fields,
    _fuse_ops,
    _CLEAN,
    sizes_in_shapes,
    _plain(transform.FuseTIR),
    _DROP_DEAD,
    _CLEAN,
)

_FUSE = {CPU: (*_PATTERNS, recompute, fuse_into_sums, *_JOIN), GPU: (*_PATTERNS, *_JOIN)}


@dataclass(frozen=True)
class Pipeline:
    """One stage: how ops are translated, and the passes over the graph and over its loops.

    Tuning extracts its tasks after `graph` and before `schedule`, so the two are separate.
    """

    prefer_emit: bool
    graph: tuple[Pass, ...] = ()
    schedule: tuple[Pass, ...] = ()


# Passes of every tuned stage: the first ones, those that fold scales, and the last ones.
_SHARE = (
    _CLEAN,
    own_outputs,
    drop_broadcasts,
    share_norms,
    _DROP_DEAD,
    merge_products,
    _DROP_DEAD,
)
_FOLD = (fold_scale, fold_shift, _DROP_DEAD, trim_taps)
_LOWER = {
    kind: (
        sink_reshapes,
        _CLEAN,
        _DROP_DEAD,
        _lift_parameter_work,
        *fuse,
        view_reshapes,
        _DROP_DEAD,
        own_outputs,
        empty_constants,
    )
    for kind, fuse in _FUSE.items()
}

# By kind of TVM target (its code generator), then by stage.
PIPELINES: dict[str, dict[str, Pipeline]] = {
    CPU: {
        "noopt": Pipeline(
            prefer_emit=False,
            graph=(_CLEAN, own_outputs, empty_constants),
            schedule=(wrap_integers, keep_arithmetic, round_bfloat16, share_memory),
        ),
        "fused": Pipeline(
            prefer_emit=True,
            graph=(*_FUSE[CPU], own_outputs, empty_constants),
            schedule=(wrap_integers, keep_arithmetic, round_bfloat16, share_memory),
        ),
        "tuned": Pipeline(
            prefer_emit=True,
            graph=(
                *_SHARE,
                weight_gradients,
                fuse_attention,
                _DROP_DEAD,
                fold_pad,
                _DROP_DEAD,
                sink_permutes,
                _CLEAN,
                flatten_pixels,
                sink_images,
                _CLEAN,
                reduce_as_stored,
                _DROP_DEAD,
                fold_scale,
                merge_branches,
                _DROP_DEAD,
                *_FOLD,
                narrow_products,
                split_taps,
                merge_groups,
                conv_as_matmul,
                winograd,
                pack_conv,
                write_planes,
                pack_pairs,
                pack_weights,
                *_LOWER[CPU],
            ),
            schedule=(
                cpu.schedule,
                wrap_integers,
                keep_arithmetic,
                round_bfloat16,
                share_memory,
                merge_kernels,
            ),
        ),
    },
    GPU: {
        "noopt": Pipeline(
            prefer_emit=False,
            graph=(_CLEAN, own_outputs, empty_constants),
            schedule=(gpu.one_thread_each, keep_arithmetic, cuda_graph),
        ),
        "fused": Pipeline(
            prefer_emit=True,
            graph=(*_FUSE[GPU], own_outputs, empty_constants),
            schedule=(gpu.by_default, keep_arithmetic, cuda_graph),
        ),
        "tuned": Pipeline(
            prefer_emit=True,
            graph=(
                *_SHARE,
                fuse_attention,
                _DROP_DEAD,
                sink_permutes,
                reshape_permutes,
                _CLEAN,
                *_FOLD,
                narrow_products,
                _DROP_DEAD,
                *_LOWER[GPU],
            ),
            schedule=(gpu.schedule, keep_arithmetic, cuda_graph),
        ),
    },
}


def of(target: Target, stage: str) -> Pipeline:
    """Return the pipeline of a stage for the target's kind."""
    return PIPELINES[target_info(target).kind][stage]


def run(passes: tuple[Pass, ...], module: IRModule, target: Target) -> IRModule:
    """Run `passes` on a module, in order, under the target."""
    with target:
        for apply in passes:
            with blamed_on(f"pass {_name(apply)!r}"):
                module = apply(module, target)
    return module


def switches(stage: str, kind: str = CPU) -> tuple[str, ...]:
    """Return the names that `without` accepts for a stage: its passes and its schedule rules."""
    pipeline = PIPELINES[kind][stage]
    passes = [_name(apply) for apply in (*pipeline.graph, *pipeline.schedule)]
    rules = [names() for apply, names in _RULES.items() if apply in pipeline.schedule]
    return tuple(dict.fromkeys([*passes, *chain(*rules)]))


def by_library(
    pipeline: Pipeline, chosen: Callable[[Product], bool] | None, precision: str = FLOAT32
) -> Pipeline:
    """Add cuBLAS to a GPU's tuned pipeline for the matmuls that `chosen` selects (None: for none).

    The choice is made after the passes that change matmuls and before our own rules rewrite them.
    Operands are rounded to `precision`.
    """
    if chosen is None:
        return pipeline
    place = pipeline.graph.index(trim_taps) + 1
    choose = partial(library_products, chosen=chosen, precision=precision)
    return replace(pipeline, graph=(*pipeline.graph[:place], choose, *pipeline.graph[place:]))


def in_precision(pipeline: Pipeline, precision: str) -> Pipeline:
    """Return the pipeline with matmul operands rounded to a `precision` (`target.precision`).

    On a CPU, attention is then not fused into one kernel, since its matmuls could not be narrowed.
    On a GPU it is fused, in float32, because keeping the scores on the chip saves more time than
    narrow matmuls do.
    """
    if precision == FLOAT32:
        return pipeline
    narrow = partial(narrow_products, precision=precision)
    if narrow_products not in pipeline.graph:  # a stage without passes of ours
        return replace(pipeline, graph=(_CLEAN, narrow, _DROP_DEAD, *pipeline.graph))
    left_out = fuse_attention if cpu.schedule in pipeline.schedule else None
    return replace(
        pipeline,
        graph=tuple(
            narrow if apply is narrow_products else apply
            for apply in pipeline.graph
            if apply is not left_out
        ),
    )


def without(target: Target, stage: str, names: Collection[str]) -> Pipeline:
    """Return the stage's pipeline without some of its `switches`, to measure the gain from each.

    A pass is removed wherever it occurs. If a rule is removed, the next rule that fits, or the
    default, schedules its functions; without `schedule`, loops stay as written. Some passes are
    indispensable: without them the module fails to compile or computes wrong results. This is not
    checked, but an unknown name raises StageError.
    """
    pipeline = of(target, stage)
    if not names:
        return pipeline
    known = switches(stage, target_info(target).kind)
    for name in names:
        if name not in known:
            raise StageError(f"disable: {name!r}: stage {stage!r} has only {', '.join(known)}")
    return replace(
        pipeline,
        graph=tuple(apply for apply in pipeline.graph if _name(apply) not in names),
        schedule=tuple(
            _leaving_out(apply, names) if apply in _RULES else apply
            for apply in pipeline.schedule
            if _name(apply) not in names
        ),
    )


# The passes that schedule by rules, and functions that return the names of their rules.
_RULES: dict[Any, Callable[[], tuple[str, ...]]] = {
    cpu.schedule: cpu.names,
    gpu.schedule: gpu.names,
}


def _leaving_out(schedule: Any, names: Collection[str]) -> Pass:
    return partial(schedule, without=names)


def _name(apply: Pass) -> str:
    return getattr(apply, "func", apply).__name__.lstrip("_")
