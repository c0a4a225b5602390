"""A PyTorch model as a function of a flat list of tensors that returns a flat list of tensors.

`torch.export` accepts and returns only values that PyTorch can flatten. Dataclasses and the caches
of `transformers` models are among them only if they are registered. needle therefore takes
arguments and results apart itself, into trees of these kinds:

- tuples, lists and mappings;
- dataclasses (`ModelOutput`), by their fields;
- other objects that hold tensors (a cache of keys and values), by their public attributes that hold
  tensors; an object inside such an object that holds no tensors (a cache layer that is still
  empty), by its plain attributes (numbers, strings, None);
- None, numbers and strings, whose values are fixed when the model is compiled.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..common import tree as trees
from ..errors import UnsupportedError
from ..trace.graph import positional_names

_PLAIN = (bool, int, float, str, type(None))
_ONLY = "only tensors, numbers, strings, None and containers of them are accepted"


class Flat:
    """A model bound to example arguments. Its `module` takes the arguments' tensors and returns the
    tensors of the results.

    `arguments` and, once the module has run, `output_tree` have the form in which a manifest
    describes a function. `names` and `values` are the arguments' names and values, with containers
    in place of objects. `tensors` has the (name, tensor) pairs in the values; `placed` has the same
    tensors with the names that error messages use. `module` shares the model's parameters, buffers
    and modules under their names.
    """

    def __init__(self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        import torch

        self._model, self._is_leaf = model, torch.Tensor
        args, named = _by_position(model, args, kwargs)
        self._given = [*args, *named.values()]
        self._keywords = [*named]
        self.names = [*positional_names(_signature(model), len(args)), *named]
        places = _places(self.names, named)
        parts = [
            _taken_apart(value, torch.Tensor, place)
            for place, value in zip(places, self._given, strict=True)
        ]
        self.values = [value for _, value in parts]
        self.arguments = [
            {"name": name, "tree": tree, **({"keyword": True} if name in named else {})}
            for name, (tree, _) in zip(self.names, parts, strict=True)
        ]
        self.tensors = [
            leaf
            for name, (tree, value) in zip(self.names, parts, strict=True)
            for leaf in _named(tree, value, name)
        ]
        self.placed = [
            (place, tensor)
            for place, (tree, value) in zip(places, parts, strict=True)
            for _, tensor in _named(tree, value, place)
        ]
        self.output_tree: Any = None
        self.module = self._module()

    @property
    def model(self) -> Any:
        """The model itself."""
        return self._model

    def _module(self) -> Any:
        """Return the module. Its class has the name of the model's class."""
        import torch

        def forward(_: Any, *tensors: Any) -> Any:
            return self._call(tensors)

        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("self", *_identifiers(name for name, _ in self.tensors))
        ]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        kind = type(type(self._model).__name__, (torch.nn.Module,), {"forward": forward})
        module: Any = kind()
        for held in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            module.__dict__[held] = self._model.__dict__[held]
        module.__dict__["models"] = (
            self._model,
        )  # in a tuple, so that PyTorch does not register it as a submodule
        module.training = False  # its submodules are the model's and keep their modes
        return module

    def _call(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        remaining = iter(tensors)
        values = [
            _rebuilt(argument["tree"], given, remaining)
            for argument, given in zip(self.arguments, self._given, strict=True)
        ]
        count = len(values) - len(self._keywords)
        named = dict(zip(self._keywords, values[count:], strict=True))
        self.output_tree, leaves = of_result(self._model(*values[:count], **named))
        return leaves


def of_result(result: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the tree of a model's `result` and its tensors. Sizes that dims leave open are among
    the tensors; such sizes are refused later."""
    import torch

    tree, value = _taken_apart(result, (torch.Tensor, torch.SymInt), "output")
    return tree, tuple(leaf for _, leaf in _named(tree, value, "output"))


def _signature(model: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):
        return None


def _by_position(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, with leading keyword arguments of the signature made positional."""
    found, named = list(args), dict(kwargs)
    signature = _signature(model)
    parameters = list(signature.parameters.values()) if signature else []
    for parameter in parameters[len(args) :]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.name not in named:
            break
        found.append(named.pop(parameter.name))
    return found, named


def _places(names: Sequence[str], named: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments in error messages."""
    return [f"argument {n!r}" if n in named else f"input {i}" for i, n in enumerate(names)]


def _identifiers(names: Iterator[str]) -> Iterator[str]:
    """Yield distinct names that Python parameters can have."""
    taken = {"self"}
    for name in names:
        found = base = re.sub(r"\W", "_", name)
        if keyword.iskeyword(base) or base in taken:
            found = next(each for i in range(1, 10**9) if (each := f"{base}_{i}") not in taken)
        taken.add(found)
        yield found


def _taken_apart(
    value: Any, leaf: Any, where: str, within: tuple[int, ...] = (), held: bool = False
) -> Any:
    """Return (tree, value), with dicts in place of objects that have named parts.

    Raises UnsupportedError for a value that is not a tensor and holds none, unless the value is
    `held` by an object that holds tensors.
    """
    if isinstance(value, leaf):
        return trees.LEAF, value
    if isinstance(value, _PLAIN):
        return {"static": value}, value
    if id(value) in within:
        raise UnsupportedError(f"{where} holds itself: {_ONLY}")
    within = (*within, id(value))
    if isinstance(value, (tuple, list)):
        parts = [
            _taken_apart(part, leaf, f"{where}[{i}]", within, held) for i, part in enumerate(value)
        ]
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [tree for tree, _ in parts]}, [part for _, part in parts]
    named = _fields(value, leaf)
    kind = "dict" if isinstance(value, Mapping) and not _is_record(value) else "fields"
    if held and kind == "fields" and named is not None and not named:
        named = {name: part for name, part in _attributes(value) if isinstance(part, _PLAIN)}
    if named is None or (not named and kind == "fields"):
        raise UnsupportedError(f"{where} is a value of type {type(value).__name__}: {_ONLY}")
    for name in named:
        if type(name) not in (str, int):
            raise UnsupportedError(
                f"{where} has the key {name!r}: only strings and integers are accepted"
            )
    held = held or (kind == "fields" and not _is_record(value))
    found = {
        name: _taken_apart(part, leaf, f"{where}[{name!r}]", within, held)
        for name, part in named.items()
    }
    described: Any = {name: tree for name, (tree, _) in found.items()}
    if any(type(name) is int for name in named):  # JSON would turn the keys into strings
        kind, described = "numbered", [[name, tree] for name, tree in described.items()]
    return {kind: described}, {name: part for name, (_, part) in found.items()}


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any, leaf: Any) -> Mapping[Any, Any] | None:
    """Return the named parts of a value, or None if it is of a type that has none."""
    if _is_record(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return value
    if not hasattr(value, "__dict__") or isinstance(value, type) or callable(value):
        return None
    return {name: part for name, part in _attributes(value) if _holds(part, leaf, (id(value),))}


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the public attributes of an object."""
    return [each for each in vars(value).items() if not each[0].startswith("_")]


def _holds(value: Any, leaf: Any, within: tuple[int, ...]) -> bool:
    """Return whether a value is a tensor or holds one."""
    if isinstance(value, leaf):
        return True
    if isinstance(value, _PLAIN) or id(value) in within:
        return False
    within = (*within, id(value))
    if isinstance(value, (tuple, list)):
        return any(_holds(part, leaf, within) for part in value)
    if isinstance(value, Mapping):
        return any(_holds(part, leaf, within) for part in value.values())
    if callable(value) or not hasattr(value, "__dict__"):
        return False
    return any(_holds(part, leaf, within) for part in vars(value).values())


def _named(tree: Any, value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a value, named as by `needle.common.tree.flatten`."""
    if tree == trees.LEAF:
        yield name, value
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        return
    for key, part in _items(kind, parts):
        yield from _named(part, value[key], f"{name}_{key}")


def _rebuilt(tree: Any, given: Any, remaining: Iterator[Any]) -> Any:
    """Return an argument like `given`, with its tensors replaced by the next `remaining` ones."""
    if tree == trees.LEAF:
        return next(remaining)
    ((kind, parts),) = tree.items()
    if kind == "static":
        return given
    if kind in ("tuple", "list"):
        items = [_rebuilt(part, x, remaining) for part, x in zip(parts, given, strict=True)]
        if isinstance(given, tuple) and hasattr(given, "_fields"):
            return type(given)(*items)
        return tuple(items) if kind == "tuple" else items
    named, by_key = {}, kind != "fields"
    for name, part in _items(kind, parts):
        before = given[name] if by_key else getattr(given, name)
        named[name] = _rebuilt(part, before, remaining)
    if by_key and type(given) is dict:
        return named
    made = copy.copy(given)  # keeps the class
    for name, part in named.items():
        if by_key:
            made[name] = part
        else:
            setattr(made, name, part)
    return made


def _items(kind: str, parts: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a tree with their names, keys or numbers."""
    if kind in ("dict", "fields"):
        yield from parts.items()
    elif kind == "numbered":
        yield from ((key, part) for key, part in parts)
    else:
        yield from enumerate(parts)


def flattened(
    arguments: Sequence[Mapping[str, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the tensors of a call's `args` and `kwargs`, in order. `arguments` describes the
    arguments, as in `Flat`. Arguments without tensors may be omitted. Raises TypeError, which names
    the argument, if an argument is missing, unexpected, or of another structure."""
    positional = [each for each in arguments if not each.get("keyword")]
    if len(args) > len(positional):
        raise TypeError(f"takes {len(positional)} arguments by position, was given {len(args)}")
    named = dict(kwargs)
    found: list[Any] = []
    for number, argument in enumerate(arguments):
        name = argument["name"]
        if number < len(args):
            value = args[number]
            if name in named:
                raise TypeError(f"more than one value for argument {name!r}")
        elif name in named:
            value = named.pop(name)
        elif _has_leaf(argument["tree"]):
            raise TypeError(f"argument {name!r} is missing")
        else:
            continue
        found += _tensors(argument["tree"], value, name)
    for name in named:
        raise TypeError(f"argument {name!r} is not one of the exported model's")
    return found


def _has_leaf(tree: Any) -> bool:
    if tree == trees.LEAF:
        return True
    ((kind, parts),) = tree.items()
    return kind != "static" and any(_has_leaf(part) for _, part in _items(kind, parts))


def _tensors(tree: Any, value: Any, where: str) -> Iterator[Any]:
    """Yield the tensors of a value that has the structure of a tree."""
    if tree == trees.LEAF:
        yield value
        return
    ((kind, parts),) = tree.items()
    if kind == "static":
        if type(value) is not type(parts) or (value != parts and value == value):
            shown = repr(value) if isinstance(value, _PLAIN) else f"a {type(value).__name__}"
            raise TypeError(f"{where} is {shown}, but was {parts!r} when the model was exported")
        return
    named = [*_items(kind, parts)]
    if kind in ("tuple", "list"):
        if not isinstance(value, (tuple, list)) or len(value) != len(named):
            raise TypeError(f"{where} must be a {kind} of {len(named)}")
    elif isinstance(value, Mapping):
        for key in value:
            if key not in dict(named):
                raise TypeError(
                    f"{where} has {key!r}, which was not there when the model was exported"
                )
    for key, part in named:
        inner = f"{where}[{key!r}]"
        if isinstance(value, (tuple, list, Mapping)):
            if isinstance(value, Mapping) and key not in value:
                raise TypeError(f"{where} has no {key!r}")
            yield from _tensors(part, value[key], inner)
        elif kind == "fields" and hasattr(value, key):
            yield from _tensors(part, getattr(value, key), inner)
        else:
            raise TypeError(f"{where} has no {key!r}")
