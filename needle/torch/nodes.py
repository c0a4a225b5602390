"""Properties of nodes in PyTorch's graphs (`torch.fx`). Imports PyTorch when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def name_of(target: Any) -> str:
    """Return an operator's name: "aten.add.Tensor", or "operator.add.default" for Python's
    functions."""
    import torch

    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order.{target.name()}.default"
    schema = getattr(target, "_schema", None)
    if schema is None:
        return f"operator.{getattr(target, '__name__', target)}.default"
    namespace, _, name = schema.name.partition("::")
    return f"{namespace}.{name}.{schema.overload_name or 'default'}"


def path_of(node: Any) -> str:
    """Return the path of the module that a node comes from."""
    stack = node.meta.get("nn_module_stack") or {}
    found = [path for path, _ in stack.values()]
    return found[-1].removeprefix("L['self'].") if found else ""


def extents_of(value: Any) -> list[Any]:
    """Return the extents of a tensor, or of all tensors in a tuple."""
    parts = value if isinstance(value, (tuple, list)) else [value]
    return [n for part in parts for n in getattr(part, "shape", ())]


def is_number(node: Any) -> bool:
    """Return whether a node is or computes a Python number."""
    import torch

    value = node.meta.get("val")
    return node.op in ("call_function", "placeholder") and isinstance(
        value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    )


def number_dtype(value: Any) -> str:
    """Return the dtype of the tensor that replaces a Python number computed from values."""
    import torch

    if isinstance(value, torch.SymInt):
        return "int64"
    return "bool" if isinstance(value, torch.SymBool) else "float64"


def is_in_place(target: Any) -> bool:
    """Return whether an operator writes to one of its arguments."""
    return bool(getattr(getattr(target, "_schema", None), "is_mutable", False))


def is_random(target: Any) -> bool:
    """Return whether an operator may draw random numbers."""
    import torch

    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def is_draw(node: Any) -> bool:
    """Return whether a node draws random numbers."""
    return (
        node.op == "call_function"
        and is_random(node.target)
        and draws(node.target, node.args, node.kwargs)
    )


def draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the operator `target`, which may draw random numbers, draws with `args` and
    `kwargs`."""
    names = [each.name for each in target._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for argument in target._schema.arguments:
        value = given.get(argument.name, argument.default_value)
        if argument.name in ("train", "training") and value is False:
            return False
        if argument.name in ("dropout", "dropout_p") and value == 0:
            return False
    return True


def is_complex(node: Any) -> bool:
    """Return whether a node takes or returns complex numbers."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(
        (node.args, node.kwargs, [each.meta.get("val") for each in (node, *node.all_input_nodes)])
    )
    return any(
        isinstance(each, complex)
        or (isinstance(each, (torch.Tensor, torch.dtype)) and _dtype_of(each).is_complex)
        for each in leaves
    )


def _dtype_of(value: Any) -> Any:
    return getattr(value, "dtype", value)


def is_constant(node: Any) -> bool:
    """Return whether a node returns the same tensor at each call, because it has no tensor
    inputs."""
    return not node.all_input_nodes and not is_random(node.target)


def live_nodes(graph: Any) -> list[Any]:
    """Return the placeholders of a graph and the nodes that its results depend on. Assertions are
    left out: guards on sizes are checked elsewhere, and compiled code does not check values.
    """
    used: set[Any] = set()
    found = []
    for node in reversed(graph.nodes):
        if node in used or node.op in ("output", "placeholder"):
            found.append(node)
            used.update(node.all_input_nodes)
    return found[::-1]
