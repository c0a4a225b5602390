"""Models made by `needle.torch.load`: their graphs, signatures and state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.autograd.tensor import Tensor
from needle.errors import DimError
from needle.trace import Graph, trace_flat
from needle.trace.captures import found_in
from needle_runtime.artifact.arrays import as_numpy
from needle_runtime.artifact.function import digest_of
from needle_runtime.errors import UsageError
from needle_tvm.frontend.model import source_of, with_updates
from needle_tvm.frontend.shapes import described_shape
from needle_tvm.frontend.source import Source

if TYPE_CHECKING:
    from needle.torch.model import TorchModel
    from needle_tvm.lower.variant import Variant


def graph_of(module: TorchModel, examples: Sequence[Any], dims: Mapping[Any, Any]) -> Graph:
    """Return the graph of a module as a function of a list of tensors like `examples`. Its state
    follows the inputs, and the new state follows the outputs."""
    count, written = len(examples), module.written
    names = [name for name, _ in module.program.inputs]
    state = [(name, module.weight_named(name).realize_cached_data()) for name in written]
    given = [*zip(names, examples, strict=True), *state]
    positions = [argument["name"] for argument in module.arguments]

    def call(tensors: Sequence[Any]) -> Any:
        outputs, new = module.functional(
            tensors[:count], dict(zip(written, tensors[count:], strict=True))
        )
        return [*outputs, *new]

    return trace_flat(
        call, given, lambda: found_in(module, {}), dims=dims or None, positions=positions
    )


def described(module: TorchModel, graph: Graph, state_dict: Iterable[str]) -> dict[str, Any]:
    """Return the parts of a manifest's function that the module knows. `state_dict` has the names
    under which a caller may give weights."""
    unsaved = [leaf.name for leaf in graph.params if module.is_unsaved(leaf.name)]
    names = {name for leaf in graph.params for name in (leaf.name, *leaf.others)}
    known = module.program.fixed
    fixed = {
        name: None if known.get(name) is None else digest_of(known[name])
        for name in state_dict
        if name not in names and name not in module.written
    }
    return {
        "arguments": module.arguments,
        "output_tree": module.output_tree,
        **({"state": module.written} if module.written else {}),
        **({"unsaved": unsaved} if unsaved else {}),
        **({"fixed": fixed} if fixed else {}),
    }


def with_ranges(module: TorchModel, signature: dict[str, Any]) -> dict[str, Any]:
    """Return a signature with the ranges that PyTorch allows for inputs that are indices."""
    from needle.torch.indices import index_ranges

    program = module.program
    shapes = {name: module.weight_named(name).shape for name in program.weights.values()}
    ranges = index_ranges(program, shapes)
    inputs = list(signature["inputs"])
    for number, (name, _) in enumerate(program.inputs):
        if name in ranges:
            inputs[number] = {**inputs[number], "range": described_shape(ranges[name])}
    return {**signature, "inputs": inputs}


def source(
    module: TorchModel, inputs: Sequence[Any], variant: Variant, dims: Mapping[Any, Any] | None
) -> Source:
    """Return the `Source` of a module that writes its parameters or buffers."""
    from needle.torch.structure import flattened

    examples = flattened(module.arguments, inputs, {})
    try:
        graph = graph_of(module, examples, dims or {})
    except DimError as error:
        raise UsageError(str(error)) from None
    plain, parts = source_of(graph, variant), described(module, graph, module.state_dict())

    def lower(target: Any) -> tuple[Any, dict[str, Any]]:
        lowered, signature = plain.lower(target)
        signature = {**with_ranges(module, signature), **parts}
        return with_updates(lowered, signature), signature

    return replace(
        plain,
        fingerprint=plain.fingerprint_with("loaded", repr(parts)),
        lower=lower,
        state=ModuleState(module),
    )


class ModuleState:
    """State that is kept in a module's own tensors, the ones that its calls write."""

    in_place = False  # other Tensors may share their memory

    def __init__(self, module: TorchModel) -> None:
        self._module = module

    @property
    def key(self) -> object:
        """The module's identity."""
        return "state of a module", id(self._module)

    def values(self) -> list[Tensor]:
        """Return the current tensors."""
        return [self._module.weight_named(name).detach() for name in self._module.written]

    def write(self, values: Sequence[Any]) -> None:
        """Replace the tensors' data by copies of new values."""
        for name, value in zip(self._module.written, values, strict=True):
            array = np.array(as_numpy(value, name))
            self._module.weight_named(name).data = Tensor(array, requires_grad=False)
