"""Nested arguments and results, described in JSON. Standard library only.

A tree is "*" for an array, {"tuple": [...]}, {"list": [...]}, {"dict": {name: ...}}, or
{"static": value} for an argument that is not an array and was fixed when the model was traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from needle_tvm.errors import InputError

LEAF = "*"


def leaves(tree: Any) -> int:
    """Number of arrays in a tree."""
    if tree == LEAF:
        return 1
    ((kind, parts),) = tree.items()
    if kind == "static":
        return 0
    return sum(leaves(part) for part in (parts.values() if kind == "dict" else parts))


def flatten_arguments(
    arguments: Sequence[Mapping[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arrays among a call's arguments, in order.

    `arguments` describes the arguments the model was traced with, each {"name", "tree"}; a call
    gives them by position or by name. Raises InputError that names an argument that is missing or
    unexpected, or has another structure or static value.
    """
    if len(args) > len(arguments):
        raise InputError(f"takes {len(arguments)} arguments as compiled, was given {len(args)}")
    named = dict(kwargs)
    found: list[Any] = []
    for number, argument in enumerate(arguments):
        name = argument["name"]
        if number < len(args):
            value = args[number]
        elif name in named:
            value = named.pop(name)
        else:
            raise InputError(f"argument {name!r} is missing")
        found += flatten(argument["tree"], value, repr(name))
    if named:
        raise InputError(f"argument {next(iter(named))!r} is not one of the compiled ones")
    return found


def flatten(tree: Any, value: Any, where: str) -> Iterator[Any]:
    """The arrays of `value`; InputError that names `where` if it has another structure."""
    if tree == LEAF:
        yield value
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        if not _is_same(value, parts):
            raise InputError(f"{where} is {value!r}, the model was compiled for {parts!r}")
    elif kind == "dict":
        if not isinstance(value, Mapping) or set(value) != set(parts):
            raise InputError(f"{where} must be a dict with the keys {sorted(parts)}")
        for name, part in parts.items():
            yield from flatten(part, value[name], f"{where}[{name!r}]")
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            raise InputError(f"{where} must be a {kind} of {len(parts)}")
        for number, part in enumerate(parts):
            yield from flatten(part, value[number], f"{where}[{number}]")


def _is_same(value: Any, compiled: Any) -> bool:
    """Whether a static argument is the value the model was compiled for.

    2.0 is not 2, nor is 1 True: the results would have another dtype. NaN equals NaN.
    """
    for kind in (bool, int, float, str):  # NumPy's float64 is a float
        if isinstance(value, kind) != isinstance(compiled, kind):
            return False
    return bool(value == compiled) or (value != value and compiled != compiled)


def unflatten(tree: Any, values: Sequence[Any]) -> Any:
    """`values`, one per array of the tree, in the tree's structure."""
    return _built(tree, iter(values))


# Not a closure, which would be a circle of references and keep the arrays until it is collected.
def _built(tree: Any, remaining: Iterator[Any]) -> Any:
    if tree == LEAF:
        return next(remaining)
    ((kind, parts),) = tree.items()
    if kind == "static":
        return parts
    if kind == "dict":
        return {name: _built(part, remaining) for name, part in parts.items()}
    built = [_built(part, remaining) for part in parts]
    return tuple(built) if kind == "tuple" else built
