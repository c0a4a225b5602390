"""Turn a needle model into a `Source`, from which `compile` starts. This module imports TVM only to
lower the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.autograd.shapes import Spec
from needle.errors import DimError
from needle.sizes.dims import bounds_of
from needle.trace import Graph, trace
from needle_runtime.errors import UsageError
from needle_tvm.frontend import bounds, reference
from needle_tvm.frontend.resolved_dims import Sized
from needle_tvm.frontend.source import Source, to_numpy

if TYPE_CHECKING:
    import needle_runtime
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.lower.variant import Variant

_MOST_ELEMENTS = 2**59  # of up to 8 bytes, so that sizes in bytes fit into int64 with some room


def source(
    model: Any,
    inputs: Sequence[Any],
    training: bool,
    variant: Variant,
    dims: Mapping[Any, Any] | None = None,
) -> Source:
    """Return the `Source` of a Module or a function of Tensors, traced on the example `inputs`.

    Raises needle's TraceError, UsageError for `dims` that do not fit the inputs or the example and
    for tensors too large for any memory, ValueError for a model in train mode unless `training`,
    and any error of the model itself. `variant` says how the code is compiled.
    """
    try:
        graph = trace(model, *inputs, training=training, dims=dims)
    except DimError as error:
        raise UsageError(str(error)) from None
    return source_of(graph, variant)


def source_of(graph: Graph, variant: Variant) -> Source:
    """Return the `Source` of a traced `graph`. Raises UsageError for tensors that are too large."""
    _check_extents(graph)
    example = [np.array(to_numpy(leaf.value)) for leaf in graph.inputs]
    precision = variant.precision
    sized = Sized(graph)
    return Source(
        fingerprint=graph.fingerprint(),
        lower=lambda target: _lower(graph, target, variant),
        weights=graph.weights,
        examples=sized.examples(example),
        reference=lambda inputs, params: reference.eager_outputs(sized.of(inputs), inputs, params),
        tolerances=lambda inputs: reference.tolerances(sized.of(inputs), precision),
        explain=lambda inputs, found: _explained(sized.of(inputs), inputs, found, precision),
        diverges=lambda inputs, program, stage: _divergence(graph, inputs, program, stage),
    )


def _check_extents(graph: Graph) -> None:
    """Raise UsageError for a tensor with too many elements for 64-bit sizes."""
    for node in graph.nodes:
        for spec in (node.spec,) if isinstance(node.spec, Spec) else node.spec:
            if bounds_of(prod(spec.shape))[1] > _MOST_ELEMENTS:
                what = "an input" if node.op is None else node.op.name
                raise UsageError(f"{what} is {spec}: at most 2**59 elements are allowed")


def _lower(graph: Graph, target: Target, variant: Variant) -> tuple[IRModule, dict[str, Any]]:
    from needle_tvm.frontend import lowering

    module, signature = lowering.lowered(graph, target, variant), lowering.signature(graph)
    kept = graph.effects.kept
    if not kept:
        return module, signature
    signature["state"] = [slot.name for slot in kept]
    return with_updates(module, signature), signature


def with_updates(module: IRModule, signature: Mapping[str, Any]) -> IRModule:
    """Return a stateful function's module, changed so that its last results replace the state."""
    from needle_tvm.lower.in_place import updating

    count, inputs = len(signature.get("state", ())), len(signature["inputs"])
    first = len(signature["outputs"]) - count
    return updating(module, [(first + i, inputs - count + i) for i in range(count)])


def _explained(graph: Graph, inputs: list[Any], found: list[Any], precision: str) -> str | None:
    params = {name: to_numpy(value) for name, value in graph.weights.values().items()}
    return bounds.Evaluation(graph, inputs, params, precision).difference(found)


def _divergence(
    graph: Graph, inputs: list[Any], program: needle_runtime.Program, stage: str
) -> str | None:
    from needle_tvm.frontend.divergence import first_divergence
    from needle_tvm.frontend.float64_values import evaluate

    return first_divergence(graph, inputs, evaluate(graph, inputs), stage, program)
