"""Queries about `torch.export` programs: their outputs, writes and random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from needle_tvm.frontend.torch.symbols import Symbols


def outputs(program: Any) -> list[Any]:
    """The nodes of the tensors that a functional program returns."""
    nodes = {node.name: node for node in program.graph.nodes}
    return [nodes[argument.name] for argument in _returned(program) if _is_computed(argument)]


def returned_size(program: Any) -> bool:
    """Whether a model returns a size that dims leave open."""
    return any(type(argument).__name__ == "SymIntArgument" for argument in _returned(program))


def _returned(program: Any) -> list[Any]:
    specs = program.graph_signature.output_specs
    return [spec.arg for spec in specs if spec.kind.name == "USER_OUTPUT"]


def _is_computed(argument: Any) -> bool:
    return type(argument).__name__ == "TensorArgument"


def changed(program: Any) -> str | None:
    """The first buffer or input that a functional program writes to, in words, or None."""
    signature = program.graph_signature
    for what, names in (
        ("buffer", signature.buffers_to_mutate),
        ("input", signature.user_inputs_to_mutate),
    ):
        for name in names.values():
            return f"{what} {name!r}"
    return None


def of_unknown_shape(program: Any, symbols: Symbols) -> Any:
    """The first node of a functional program with a shape that depends on values, or None."""
    for node in program.graph.nodes:
        extents = getattr(node.meta.get("val"), "shape", ())
        if node.op == "call_function" and not all(map(symbols.knows, extents)):
            return node.args[0] if node.target is getitem else node  # one of several results
    return None


def random(program: Any) -> Any:
    """The first node of a functional program that draws random numbers, or None."""
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    return next((node for node in nodes if draws(node.target, node.args, node.kwargs)), None)


def draws(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of an operator draws random numbers: dropout may not be training, or drop
    nothing."""
    import torch

    if torch.Tag.nondeterministic_seeded not in getattr(operator, "tags", ()):
        return False
    given = bound(operator, args, kwargs)
    trains = given.get("train", given.get("training", True))
    nothing = any(given.get(name) == 0 for name in ("p", "dropout_p", "dropout"))
    return trains is not False and not nothing


def depends_on_values(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the shape of a call's result depends on values."""
    import torch

    tagged = torch.Tag.dynamic_output_shape in getattr(operator, "tags", ())
    if not tagged or not str(operator).startswith("aten.index"):
        return tagged
    return any(
        str(each.dtype) in ("torch.bool", "torch.uint8") for each in args[1] if each is not None
    )


def bound(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """A PyTorch operator's arguments by name, including defaults."""
    arguments = operator._schema.arguments
    given = dict(zip((argument.name for argument in arguments), args, strict=False))
    return {argument.name: argument.default_value for argument in arguments} | given | {**kwargs}


def returning(program: Any, nodes: Sequence[Any]) -> Any:
    """A functional program that returns the values of these nodes. Imports PyTorch."""
    import torch
    from torch.export import graph_signature as signatures

    graph = torch.fx.Graph()
    copies: dict[Any, Any] = {}
    graph.graph_copy(program.graph, copies)
    graph.output(tuple(copies[node] for node in nodes))

    def named(node: Any) -> Any:  # a copy may have another name
        return signatures.TensorArgument(name=copies[node].name)

    holders = [node for node in program.graph.nodes if node.op == "placeholder"]
    inputs = [
        dataclasses.replace(spec, arg=named(node))
        for spec, node in zip(program.graph_signature.input_specs, holders, strict=True)
    ]
    kind = signatures.OutputKind.USER_OUTPUT
    results = [signatures.OutputSpec(kind, named(node), None) for node in nodes]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signatures.ExportGraphSignature(inputs, results),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants=program.constants,
        verifiers=program.verifiers,
    )
