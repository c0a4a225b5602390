"""Flatten and rebuild nested lists, tuples and dicts of tensors.

A tree describes the nesting as JSON values: "*" for a tensor, {"tuple": [...]}, {"list": [...]},
{"dict": {key: ...}}, and {"static": value} for anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

LEAF = "*"

Named = tuple[str, Any]


def flatten(value: Any, name: str, is_leaf: Callable[[Any], bool]) -> tuple[Any, list[Named]]:
    """Return (tree, [(name, leaf), ...]). The name of a leaf in a container ends with its index or
    key: name_0, name_key."""
    leaves: list[Named] = []

    def walk(x: Any, at: str) -> Any:
        if is_leaf(x):
            leaves.append((at, x))
            return LEAF
        if isinstance(x, dict):
            return {"dict": {key: walk(item, f"{at}_{key}") for key, item in x.items()}}
        if isinstance(x, (tuple, list)):
            kind = "tuple" if isinstance(x, tuple) else "list"
            return {kind: [walk(item, f"{at}_{i}") for i, item in enumerate(x)]}
        return {"static": x}

    return walk(value, name), leaves


def unflatten(tree: Any, leaves: Iterator[Any]) -> Any:
    """Return the nested value of `tree`, with `leaves` as its tensors in the order of `flatten`."""
    if tree == LEAF:
        return next(leaves)
    ((kind, inside),) = tree.items()
    if kind == "dict":
        return {key: unflatten(item, leaves) for key, item in inside.items()}
    if kind == "static":
        return inside
    items = [unflatten(item, leaves) for item in inside]
    return tuple(items) if kind == "tuple" else items


def difference(expected: Any, got: Any, at: str) -> str | None:
    """Return a description of the first difference between two trees, or None if they are equal."""
    kind, inside = _parts(expected)
    other, found = _parts(got)
    if kind != other:
        one, two = (
            repr(value) if name == "static" else f"a {name}"
            for name, value in ((other, found), (kind, inside))
        )
        return f"{at} is {one}, expected {two}"
    if kind == "static":
        return None if _same(inside, found) else f"{at} is {found!r}, traced with {inside!r}"
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if kind == "dict":
        if list(inside) != list(found):
            return f"{at} has keys {list(found)}, expected {list(inside)}"
        pairs = [(f"{at}[{key!r}]", inside[key], found[key]) for key in inside]
    elif kind != "tensor":
        if len(inside) != len(found):
            return f"{at} has {len(found)} items, expected {len(inside)}"
        both = enumerate(zip(inside, found, strict=True))
        pairs = [(f"{at}[{i}]", a, b) for i, (a, b) in both]
    return next((text for where, a, b in pairs if (text := difference(a, b, where))), None)


def text(tree: Any) -> str:
    """Return one line of text that describes the tree and is the same in every process."""
    kind, inside = _parts(tree)
    if kind == "tensor":
        return LEAF
    if kind == "static":
        shown = repr(inside)
        # The default repr contains an address.
        return f"static {type(inside).__qualname__ if ' at 0x' in shown else shown}"
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {text(item)}" for key, item in inside.items()) + "}"
    return f"{kind}({', '.join(text(item) for item in inside)})"


def _parts(tree: Any) -> tuple[str, Any]:
    if tree == LEAF:
        return "tensor", None
    ((kind, inside),) = tree.items()
    return kind, inside


def _same(a: Any, b: Any) -> bool:
    """Return whether two static values are equal. 2 and 2.0 are not equal, because they lead to
    different dtypes. NaN equals NaN."""
    if type(a) is not type(b):
        return False
    try:
        return a is b or bool(a == b) or bool(a != a and b != b)
    except (TypeError, ValueError):
        return False
