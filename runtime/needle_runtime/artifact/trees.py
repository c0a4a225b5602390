"""Describes nested arguments and results in JSON. This module uses only the standard library.

A tree is "*" for an array, {"tuple": [...]}, {"list": [...]}, {"dict": {name: ...}},
{"numbered": [[key, ...], ...]} for a dict with whole numbers among its keys, {"fields": {name:
...}} for an object whose parts are attributes, or {"static": value} for an argument that is not an
array and whose value was fixed when the model was traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from needle_runtime.errors import InputError

LEAF = "*"


_PLAIN = (bool, int, float, str, type(None))
_NAMED = ("dict", "fields")  # kinds of trees whose parts have names


class Record:
    """The parts of a dataclass or of another object, as attributes such as `record.logits`.
    `record["logits"]` is the same part, and `record[0]` is the first part that is not None."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, (int, slice)):
            return tuple(part for part in vars(self).values() if part is not None)[key]
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={part!r}" for name, part in vars(self).items())
        return f"{type(self).__name__}({fields})"


def leaves(tree: Any) -> int:
    """Return the number of arrays in a tree."""
    if tree == LEAF:
        return 1
    ((kind, parts),) = tree.items()
    if kind == "static":
        return 0
    return sum(leaves(part) for _, part in items(kind, parts))


def items(kind: str, parts: Any) -> Iterable[tuple[Any, Any]]:
    """Return the `parts` of a tree of this `kind`, each with its name, key or number."""
    if kind in _NAMED:
        return parts.items()
    return ((key, part) for key, part in parts) if kind == "numbered" else enumerate(parts)


def flatten_arguments(
    arguments: Sequence[Mapping[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arrays among a call's arguments, in order.

    `arguments` describes the arguments with which the model was traced, each as {"name", "tree"}. A
    call passes them by position (`args`) or by name (`kwargs`). Arguments with "keyword" must be
    passed by name, and arguments without arrays may be left out. Raises InputError, naming the
    argument, if an argument is missing or unexpected, or has another structure or static value.
    """
    most = sum(not argument.get("keyword", False) for argument in arguments)
    if len(args) > most:
        by_name = "" if most == len(arguments) else " by position"
        raise InputError(f"takes {most} arguments{by_name} as compiled, was given {len(args)}")
    named = dict(kwargs)
    arrays: list[Any] = []
    for number, argument in enumerate(arguments):
        name = argument["name"]
        if number < len(args):
            value = args[number]
        elif name in named:
            value = named.pop(name)
        elif leaves(argument["tree"]) == 0:
            continue
        else:
            raise InputError(f"argument {name!r} is missing")
        arrays += flatten(argument["tree"], value, repr(name))
    if named:
        raise InputError(f"argument {next(iter(named))!r} is not one of the compiled ones")
    return arrays


def flatten(tree: Any, value: Any, where: str) -> Iterator[Any]:
    """Yield the arrays in `value`. Raises InputError, naming `where`, if its structure differs."""
    if tree == LEAF:
        yield value
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        if not _is_same(value, parts):
            given = repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
            raise InputError(f"{where} is {given}, but the model was compiled for {parts!r}")
    elif kind in ("dict", "numbered"):
        known = dict(items(kind, parts))
        if not isinstance(value, Mapping) or set(value) != set(known):
            keys = sorted(known, key=lambda key: (isinstance(key, str), key))
            raise InputError(f"{where} must be a dict with the keys {keys}")
        for name, part in known.items():
            yield from flatten(part, value[name], f"{where}[{name!r}]")
    elif kind == "fields":
        for name, part in parts.items():
            yield from flatten(part, _field(value, name, where), f"{where}.{name}")
    else:
        if not isinstance(value, (tuple, list)) or len(value) != len(parts):
            raise InputError(f"{where} must be a {kind} of {len(parts)}")
        for number, part in enumerate(parts):
            yield from flatten(part, value[number], f"{where}[{number}]")


def _field(value: Any, name: str, where: str) -> Any:
    """Return a part of an object by name. Raises InputError if there is none."""
    if isinstance(value, Mapping) and name in value:
        return value[name]
    if not hasattr(value, name):
        raise InputError(f"{where} must have the field {name!r}")
    return getattr(value, name)


def _is_same(value: Any, compiled: Any) -> bool:
    """Return whether a static argument has the value for which the model was compiled.

    2.0 is not 2, and 1 is not True, because results would have another dtype. NaN equals NaN.
    """
    for kind in _PLAIN:  # NumPy's float64 is a float
        if isinstance(value, kind) != isinstance(compiled, kind):
            return False
    return bool(value == compiled) or (value != value and compiled != compiled)


def unflatten(tree: Any, values: Sequence[Any]) -> Any:
    """Put `values`, one per array of the tree, into the tree's structure."""
    return _built(tree, iter(values))


# If this function were a recursive closure, a reference cycle would keep the arrays alive until
# garbage collection.
def _built(tree: Any, remaining: Iterator[Any]) -> Any:
    if tree == LEAF:
        return next(remaining)
    ((kind, parts),) = tree.items()
    if kind == "static":
        return parts
    if kind in ("dict", "numbered"):
        return {key: _built(part, remaining) for key, part in items(kind, parts)}
    if kind == "fields":
        return Record(**{name: _built(part, remaining) for name, part in parts.items()})
    built = [_built(part, remaining) for part in parts]
    return tuple(built) if kind == "tuple" else built
