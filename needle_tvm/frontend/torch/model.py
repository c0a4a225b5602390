"""An exported PyTorch model as a `Source`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from needle_tvm.artifact.tolerance import estimated_tolerances
from needle_tvm.frontend.source import FixedWeights, Source
from needle_tvm.frontend.torch import divergence, reference
from needle_tvm.frontend.torch.lowering import lowered
from needle_tvm.frontend.torch.taken import Taken
from needle_tvm.lower.variant import Variant

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.runtime import Program
    from needle_tvm.target.spec import TargetSpec


def source(taken: Taken, spec: TargetSpec, variant: Variant) -> Source:
    """The `Source` of an exported model."""

    def lower(target: Target) -> tuple[IRModule, dict[str, Any]]:
        return lowered(taken.module, target, variant), taken.signature

    def explain(inputs: list[Any], found: list[Any]) -> str | None:
        return reference.Reference(taken, variant.precision).difference(found)

    def diverges(inputs: list[Any], program: Program, at: str) -> str | None:
        asked = variant if at == variant.stage else Variant(at)
        return divergence.first_divergence(taken, spec, asked)

    outputs, weights = taken.signature["outputs"], taken.signature["params"]
    return Source(
        fingerprint=_fingerprint(taken.module, taken.signature),
        lower=lower,
        weights=FixedWeights(taken.params),
        examples=[taken.example],
        reference=reference.of(taken),
        tolerances=lambda inputs: estimated_tolerances(outputs, weights, variant.precision),
        explain=explain,
        diverges=diverges,
    )


def _fingerprint(module: IRModule, described: dict[str, Any]) -> str:
    from needle_tvm._tvm.names import tvm

    text = tvm.ir.save_json(module) + repr(described)
    return "torch:" + hashlib.sha256(text.encode()).hexdigest()
