"""The stages a model is compiled through, as named lists of passes.

| stage  | translated by | passes |
|--------|---------------|--------|
| noopt  | emit_te       | none that changes the computation: unfused, unscheduled |
| fused  | emit          | TVM's legalisation and operator fusion; unscheduled |
| tuned  | emit          | scales folded, weights packed, that work lifted, fused, scheduled |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from needle_tvm._tvm import IRModule, Target, transform
from needle_tvm.passes.drop_broadcasts import drop_broadcasts
from needle_tvm.passes.fold_scale import fold_scale
from needle_tvm.passes.own_outputs import own_outputs
from needle_tvm.passes.pack_weights import pack_weights
from needle_tvm.passes.sink_views import sink_permutes, sink_reshapes
from needle_tvm.schedule import cpu

Pass = Callable[[IRModule, Target], IRModule]


def _plain(tvm_pass: Callable[[], Callable[[IRModule], IRModule]]) -> Pass:
    """One of TVM's passes that does not look at the target."""
    return lambda module, target: tvm_pass()(module)


def _lift_parameter_work(module: IRModule, target: Target) -> IRModule:
    """Move what depends on parameters alone into `main_transform_params`, run once at load."""
    return transform.LiftTransformParams()(module)


# A variable that only renames another stops fusion, and lets a result that is a reshaped input be
# handed out as a view of that input.
_CLEAN = _plain(transform.CanonicalizeBindings)

# What a pass left behind still counts as a reader to the next one.
_DROP_DEAD = _plain(transform.DeadCodeElimination)

_FUSE = (
    _CLEAN,
    _plain(transform.LegalizeOps),
    _plain(transform.AnnotateTIROpPattern),
    _plain(transform.FoldConstant),
    _plain(transform.FuseOps),
    _plain(transform.FuseTIR),
    _DROP_DEAD,
    _CLEAN,
)


@dataclass(frozen=True)
class Pipeline:
    """How one stage is made: how ops are translated, what runs on the graph, what on its loops.

    `schedule` is apart from `graph` because tuning takes its tasks between the two.
    """

    prefer_emit: bool
    graph: tuple[Pass, ...] = ()
    schedule: tuple[Pass, ...] = ()


PIPELINES: dict[str, Pipeline] = {
    "noopt": Pipeline(prefer_emit=False, graph=(_CLEAN, own_outputs)),
    "fused": Pipeline(prefer_emit=True, graph=(*_FUSE, own_outputs)),
    "tuned": Pipeline(
        prefer_emit=True,
        graph=(
            _CLEAN,
            own_outputs,
            drop_broadcasts,
            sink_permutes,
            _CLEAN,
            _DROP_DEAD,
            fold_scale,
            pack_weights,
            sink_reshapes,
            _CLEAN,
            _DROP_DEAD,
            _lift_parameter_work,
            *_FUSE,
            own_outputs,
        ),
        schedule=(cpu.schedule,),
    ),
}


def run(passes: tuple[Pass, ...], module: IRModule, target: Target) -> IRModule:
    """The module after `passes`, in order, under the target."""
    with target:
        for apply in passes:
            module = apply(module, target)
    return module
