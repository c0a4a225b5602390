"""A PyTorch model in the front end: its programs, signature, example inputs and weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from needle.graph import positional_names
from needle_tvm.artifact import trees
from needle_tvm.errors import TranslationError
from needle_tvm.frontend.torch import export as torch_export
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.arrays import Array, array
from needle_tvm.frontend.torch.indices import index_ranges

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule


@dataclass(frozen=True)
class Taken:
    """An exported PyTorch model: the exported program, its functional form, the nesting of its
    inputs, the Relax module, the manifest's signature, and example inputs and weights as NumPy
    arrays."""

    exported: Any
    functional: Any
    arguments: list[Any]
    module: IRModule
    signature: dict[str, Any]
    example: list[Array]
    params: dict[str, Array]


def take(model: Any, inputs: tuple[Any, ...]) -> Taken:
    """Export a model in eval mode and translate it. Raises TranslationError if that fails."""
    import torch

    arguments = [_tree(value, torch.Tensor, f"input {i}") for i, value in enumerate(inputs)]
    tensors = [
        (f"input {i}", tensor)
        for i, (value, tree) in enumerate(zip(inputs, arguments, strict=True))
        for tensor in trees.flatten(tree, value, f"input {i}")
    ]
    torch_export.check(model, tensors)
    module, exported, functional = torch_export.translate(model, inputs)
    signature = _signature(model, module, exported, arguments)
    state = exported.state_dict
    names = [entry["name"] for entry in signature["params"]]
    return Taken(
        exported,
        functional,
        arguments,
        module,
        signature,
        [array(tensor) for _, tensor in tensors],
        {name: array(state[name]) for name in names},
    )


def result_types(module: IRModule) -> list[Any]:
    """The types of the tensors that `main` returns."""
    ty = module["main"].ret_ty
    return list(getattr(ty, "fields", [ty]))


def _signature(model: Any, module: IRModule, exported: Any, arguments: list[Any]) -> dict[str, Any]:
    """The inputs, parameters and outputs of `main`, in the form of a manifest."""
    main = module["main"]
    count = int(main.attrs["num_input"])
    names = positional_names(inspect.signature(model.forward), len(arguments))
    parameters = list(exported.graph_signature.inputs_to_parameters.values())
    if count != sum(map(trees.leaves, arguments)) or len(main.params) != count + len(parameters):
        raise TranslationError(f"{type(model).__name__}: takes a parameter that is no weight")
    results = result_types(module)
    leaves = [0 if value is None else value for value in torch_graph.fixed(exported)]
    tree = exported.call_spec.out_spec.unflatten(leaves)
    inputs = [str(variable.name) for variable in main.params[:count]]
    ranges = index_ranges(exported)
    return {
        "inputs": [
            _entry(name, variable.ty) | ({"range": list(ranges[name])} if name in ranges else {})
            for name, variable in zip(inputs, main.params[:count], strict=True)
        ],
        "params": [
            _entry(name, variable.ty)
            for name, variable in zip(parameters, main.params[count:], strict=True)
        ],
        "ties": _ties(model),
        "outputs": [described(result) for result in results],
        "bare_output": len(results) == 1,
        "arguments": [
            {"name": name, "tree": argument}
            for name, argument in zip(names, arguments, strict=True)
        ],
        "output_tree": _tree(tree, int, "output"),
    }


def _ties(model: Any) -> list[list[str]]:
    """Groups of names that belong to one parameter."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _entry(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, **described(type_)}


def described(type_: Any) -> dict[str, Any]:
    return {"shape": [int(extent) for extent in type_.shape.values], "dtype": str(type_.dtype)}


_PLAIN = (bool, int, float, str, type(None))


def _tree(value: Any, leaf: type, where: str) -> Any:
    """The structure of nested values. Raises TranslationError for one that is not a leaf."""
    if isinstance(value, leaf):
        return trees.LEAF
    if isinstance(value, torch_graph.Fixed) and isinstance(value.value, _PLAIN):
        return {"static": value.value}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TranslationError(f"{where} has the key {name!r}: only strings are taken")
        return {"dict": {name: _tree(part, leaf, where) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_tree(part, leaf, where) for part in value]}
    what = "None" if value is None else f"a value of type {type(value).__name__}"
    raise TranslationError(f"{where} is {what}: only tensors are taken")
