"""The stages a model is compiled through, as named lists of passes.

| stage  | translated by | passes |
|--------|---------------|--------|
| noopt  | emit_te       | none: unfused, unscheduled |
| fused  | emit          | TVM's legalisation and operator fusion; unscheduled |
| tuned  | emit          | weights packed, fused, packing lifted out of `main`, scheduled |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from needle_tvm._tvm import IRModule, Target, transform
from needle_tvm.passes.pack_weights import pack_weights
from needle_tvm.schedule import cpu

Pass = Callable[[IRModule, Target], IRModule]


def _plain(tvm_pass: Callable[[], Callable[[IRModule], IRModule]]) -> Pass:
    """One of TVM's passes that does not look at the target."""
    return lambda module, target: tvm_pass()(module)


def _lift_parameter_work(module: IRModule, target: Target) -> IRModule:
    """Move what depends on parameters alone into `main_transform_params`, run once at load."""
    return transform.LiftTransformParams()(module)


_FUSE = (
    _plain(transform.CanonicalizeBindings),  # a variable that only renames another stops fusion
    _plain(transform.LegalizeOps),
    _plain(transform.AnnotateTIROpPattern),
    _plain(transform.FoldConstant),
    _plain(transform.FuseOps),
    _plain(transform.FuseTIR),
    _plain(transform.DeadCodeElimination),
)


@dataclass(frozen=True)
class Pipeline:
    """How one stage is made: how ops are translated, what runs on the graph, what on its loops.

    `schedule` is apart from `graph` because tuning takes its tasks between the two.
    """

    prefer_emit: bool
    graph: tuple[Pass, ...] = ()
    schedule: tuple[Pass, ...] = ()
    lifts_parameters: bool = False


PIPELINES: dict[str, Pipeline] = {
    "noopt": Pipeline(prefer_emit=False),
    "fused": Pipeline(prefer_emit=True, graph=_FUSE),
    "tuned": Pipeline(
        prefer_emit=True,
        graph=(pack_weights, *_FUSE, _lift_parameter_work),
        schedule=(cpu.schedule,),
        lifts_parameters=True,
    ),
}


def run(passes: tuple[Pass, ...], module: IRModule, target: Target) -> IRModule:
    """The module after `passes`, in order, under the target."""
    with target:
        for apply in passes:
            module = apply(module, target)
    return module
