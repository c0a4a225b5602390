"""Predicates and searches for the nodes of AOTAutograd graphs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedError
from .nodes import is_in_place, name_of

# Operators that use only the shape, strides and dtype of a tensor.
_ONLY_LIKE = frozenset(
    "aten.rand_like aten.randn_like aten.randint_like aten.empty_like aten.zeros_like "
    "aten.ones_like aten.uniform aten.normal_functional aten.exponential aten.geometric "
    "aten.cauchy aten.log_normal aten.random aten.new_empty aten.new_zeros".split()
)


def needed(wanted: list[Any], stops: Callable[[Any], bool], only_like: bool = False) -> set[Any]:
    """Return the nodes `wanted` and all nodes that they depend on. The search ends at nodes for
    which `stops` is true and, if `only_like`, at nodes that use a tensor only for its shape and
    dtype."""
    nodes: set[Any] = set()
    while wanted:
        node = wanted.pop()
        if node in nodes:
            continue
        nodes.add(node)
        if stops(node) or (only_like and (takes_only_like(node) or is_number(node))):
            continue
        wanted.extend(node.all_input_nodes)
    return nodes


def takes_only_like(node: Any) -> bool:
    """Return whether a node uses only the shape, strides and dtype of its first tensor."""
    if node.op != "call_function" or isinstance(node.target, str):
        return False
    name = name_of(node.target)
    return name.rpartition(".")[0] in _ONLY_LIKE or name == "aten.bernoulli.p"


def is_number(node: Any) -> bool:
    """Return whether a node computes a number, such as a size."""
    import torch

    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return isinstance(node.meta.get("val"), numbers)


def source_of(node: Any) -> Any:
    """Return the node that created the storage of a tensor."""
    import torch

    storage = _storage(node.meta["val"])
    while node.op == "call_function":
        waiting = list(node.all_input_nodes)
        source = None
        while waiting and source is None:
            candidate = waiting.pop(0)
            value = candidate.meta.get("val")
            if isinstance(value, torch.Tensor):
                source = candidate if _storage(value) == storage else None
            elif isinstance(value, (tuple, list)) and node.target is operator.getitem:
                waiting.extend(candidate.all_input_nodes)
        if source is None:
            return node
        node = source
    return node


def _storage(tensor: Any) -> int:
    storage: int = tensor.untyped_storage()._cdata
    return storage


def is_dense(node: Any) -> bool:
    """Return whether a tensor's elements fill its memory without gaps, in any order of its axes."""
    import torch

    return bool(torch._prims_common.is_non_overlapping_and_dense_or_false(node.meta["val"]))


def check(node: Any) -> None:
    """Raise UnsupportedError for a node with a side effect."""
    schema = getattr(node.target, "_schema", None)
    if schema is None and node.target is not operator.getitem and not is_number(node):
        raise UnsupportedError(f"it calls {name_of(node.target)}, which is not an operator")
    if is_in_place(node.target):
        raise UnsupportedError(f"{name_of(node.target)} writes to a tensor that is not an input")
    if "val" not in node.meta and "assert" not in name_of(node.target):
        raise UnsupportedError(f"{name_of(node.target)} has a result of an unknown kind")
    if name_of(node.target).startswith("aten._assert_async"):
        raise UnsupportedError("it asserts a property of a tensor's values")
