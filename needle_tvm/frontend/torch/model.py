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

    module, signature = taken.translated.module, taken.signature

    def lower(target: Target) -> tuple[IRModule, dict[str, Any]]:
        return lowered(module, target, variant), signature

    def tolerances(inputs: list[Any]) -> list[float]:
        outputs = taken.outputs(inputs)
        return estimated_tolerances(outputs, signature["params"], variant.precision)

    def explain(inputs: list[Any], found: list[Any]) -> str | None:
        return reference.Reference(taken, inputs, variant.precision).difference(found)

    def diverges(inputs: list[Any], program: Program, at: str) -> str | None:
        asked = variant if at == variant.stage else Variant(at)
        return divergence.first_divergence(taken, inputs, spec, asked)

    return Source(
        fingerprint=_fingerprint(module, signature),
        lower=lower,
        weights=FixedWeights(taken.params),
        examples=taken.examples,
        reference=reference.of(taken),
        tolerances=tolerances,
        explain=explain,
        diverges=diverges,
    )


def _fingerprint(module: IRModule, described: dict[str, Any]) -> str:
    from needle_tvm._tvm.names import tvm

    text = tvm.ir.save_json(module) + repr(described)
    return "torch:" + hashlib.sha256(text.encode()).hexdigest()
