"""Nested lists, tuples and dicts of tensors, taken apart and put together again.

A tree describes the nesting: "*" stands for a tensor, list, tuple and dict for themselves, None for
None, and `Static` for any other value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

LEAF = "*"


@dataclasses.dataclass(frozen=True)
class Static:
    """A value that is no tensor: part of the program, not of its inputs."""

    value: Any

    def __repr__(self) -> str:
        text = repr(self.value)
        # The default repr holds an address, which says nothing in another process.
        return f"Static({type(self.value).__qualname__ if ' at 0x' in text else text})"


def flatten(
    value: Any, name: str, is_leaf: Callable[[Any], bool]
) -> tuple[Any, list[tuple[str, Any]]]:
    """(tree, [(name, leaf), ...]); leaves of a container are called name_0, name_key, ..."""
    leaves: list[tuple[str, Any]] = []

    def walk(x: Any, at: str) -> Any:
        if is_leaf(x):
            leaves.append((at, x))
            return LEAF
        if isinstance(x, dict):
            return {key: walk(item, f"{at}_{key}") for key, item in x.items()}
        if isinstance(x, tuple):
            return tuple(walk(item, f"{at}_{i}") for i, item in enumerate(x))
        if isinstance(x, list):
            return [walk(item, f"{at}_{i}") for i, item in enumerate(x)]
        return None if x is None else Static(x)

    return walk(value, name), leaves


def unflatten(tree: Any, leaves: Iterator[Any]) -> Any:
    """The nested value whose tensors are `leaves`, in the order that `flatten` gave them."""
    if isinstance(tree, str):
        return next(leaves)
    if isinstance(tree, dict):
        return {key: unflatten(item, leaves) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(unflatten(item, leaves) for item in tree)
    if isinstance(tree, list):
        return [unflatten(item, leaves) for item in tree]
    return tree.value if isinstance(tree, Static) else None


def difference(expected: Any, got: Any, at: str) -> str | None:
    """What first differs between two trees, in words; None when they are equal."""
    if type(expected) is not type(got):
        return f"{at} is {_kind(got)}, expected {_kind(expected)}"
    if isinstance(expected, dict):
        if list(expected) != list(got):
            return f"{at} has keys {list(got)}, expected {list(expected)}"
        pairs = [(f"{at}[{key!r}]", expected[key], got[key]) for key in expected]
    elif isinstance(expected, (tuple, list)):
        if len(expected) != len(got):
            return f"{at} has {len(got)} items, expected {len(expected)}"
        pairs = [(f"{at}[{i}]", a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))]
    elif isinstance(expected, Static):
        try:
            same = expected.value is got.value or bool(expected.value == got.value)
        except (TypeError, ValueError):
            same = False
        return None if same else f"{at} is {got.value!r}, expected {expected.value!r} as traced"
    else:
        return None
    for where, a, b in pairs:
        found = difference(a, b, where)
        if found:
            return found
    return None


def _kind(tree: Any) -> str:
    if isinstance(tree, str):
        return "a tensor"
    if isinstance(tree, Static):
        return f"a {type(tree.value).__name__}"
    return "None" if tree is None else f"a {type(tree).__name__}"
