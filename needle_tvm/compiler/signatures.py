"""Arguments of a jit function: traced inputs, fixed values, and the key of a call.

Tensors and arrays become inputs. Numbers, strings, None, Modules, the values of static arguments
and the structure around all of these are fixed: a different value gives a different signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from needle import Tensor, default_device
from needle.backend_ndarray import Device
from needle.backend_ndarray.dtypes import DTYPES
from needle.common import tree
from needle.nn import Module
from needle.trace.graph import is_tensor
from needle.trace.tracer import as_tensor
from needle_runtime.errors import InputError, UsageError

Key = tuple[Any, ...]
Args = tuple[Any, ...]
Kwargs = Mapping[str, Any]


class Signature:
    """The parameters of a function: the form of its calls, and which arguments are static.

    `owner` says whether the first argument, `self`, is the object that a method is called on. This
    object is fixed; its identity is part of the key. `dims` names axes of inputs whose extents are
    not part of a signature: {input: {axis: dim}}, by name or by position (without `self`). Raises
    UsageError for static names that are not parameters.
    """

    def __init__(
        self, function: Callable[..., Any], static: Collection[str], dims: Mapping[Any, Any]
    ) -> None:
        self.name = _name(function)
        called = function.forward if isinstance(function, Module) else function
        try:
            self._signature = inspect.signature(called)
        except (TypeError, ValueError) as error:
            raise UsageError(f"jit: {self.name}: its parameters are not known ({error})") from None
        parameters = self._signature.parameters
        various = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for name in static:
            if name not in parameters or parameters[name].kind in various:
                raise UsageError(f"jit: static={name!r}: {self.name} has no such argument")
        self._static = frozenset(static)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [each for each in parameters.values() if each.kind in kinds]
        self._positional = [each.name for each in positional]
        self._defaults = tuple(e.default for e in positional if e.default is not e.empty)
        self._is_plain = len(positional) == len(parameters)
        self._static_at = frozenset(
            number for number, each in enumerate(self._positional) if each in self._static
        )
        self._rest = next((e.name for e in parameters.values() if e.kind is e.VAR_POSITIONAL), "")
        self.owner = self._positional[:1] == ["self"]
        self.positions = self._positional[int(self.owner) :]
        # The open axes by input. A key that names no input stays here, because tracing a call
        # checks `dims`.
        self._open = {
            self.positions[key] if type(key) is int and key < len(self.positions) else key: axes
            for key, axes in dims.items()
        }

    def spelled(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Return the same call in one form: arguments by position if possible, defaults filled in.

        Raises TypeError for arguments that the function does not take.
        """
        if not kwargs and self._is_plain:
            missing = len(self._positional) - len(args)
            if not missing:
                return args, kwargs
            if 0 < missing <= len(self._defaults):
                return args + self._defaults[-missing:], kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def key(self, args: Args, kwargs: Kwargs, leaves: list[Any]) -> Key:
        """Return a hashable key, shared by all `spelled` calls that one compiled function serves.
        Appends the inputs to `leaves`. Raises InputError for an argument that is neither traced nor
        fixed.
        """
        parts: list[Any] = []
        names, static = self._positional, self._static_at
        for number, value in enumerate(args):
            if number == 0 and self.owner:
                parts.append(id(value))
            else:
                name = names[number] if number < len(names) else self._rest
                self._take(name, value, number in static, parts, leaves)
        for name, value in kwargs.items():
            parts.append(name)
            self._take(name, value, name in self._static, parts, leaves)
        return self._opened(args, kwargs, parts) if self._open else tuple(parts)

    def _take(
        self, name: str, value: Any, is_static: bool, parts: list[Any], leaves: list[Any]
    ) -> None:
        try:
            if is_static:
                parts.append(_static(value))
            else:
                _take(value, parts, leaves)
        except _Unfit as error:
            raise InputError(f"{self.name}: argument {name!r} {error}") from None

    def _opened(self, args: Args, kwargs: Kwargs, parts: list[Any]) -> Key:
        """Return the key with None for extents that `dims` leaves open."""
        names = iter(self.trees(args, kwargs)[1])
        for number, part in enumerate(parts):
            if type(part) is _Input:
                shape = list(part.shape)
                for axis in self._open.get(next(names), ()):
                    if type(axis) is int and -len(shape) <= axis < len(shape):
                        shape[axis] = None
                parts[number] = part._replace(shape=tuple(shape))
        return tuple(parts)

    def named(self, args: Args, kwargs: Kwargs) -> list[tuple[str, Any]]:
        """Return a call's arguments with their names, such as xs_0, xs_1, ... for *xs."""
        count = len(self._positional)
        rest = [f"{self._rest}_{number}" for number in range(len(args) - count)]
        return [*zip([*self._positional, *rest], args, strict=False), *kwargs.items()]

    def trees(self, args: Args, kwargs: Kwargs) -> tuple[list[Any], list[str]]:
        """Return the structure (`needle.common.tree`) of each argument, and the inputs' names."""
        trees, names = [], []
        for number, (name, value) in enumerate(self.named(args, kwargs)):
            if name in self._static or (number == 0 and self.owner):
                trees.append({"static": value})
            else:
                found, inputs = tree.flatten(value, name, is_tensor)
                trees.append(found)
                names += [each for each, _ in inputs]
        return trees, names

    def modules(self, args: Args, kwargs: Kwargs) -> dict[str, Module]:
        """Return the Modules among the arguments by name, without the object of a method."""
        named = self.named(args, kwargs)[int(self.owner) :]
        inside = [tree.flatten(value, name, _is_module)[1] for name, value in named]
        return {name: module for found in inside for name, module in found}

    def objects(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Return, by name, the static arguments that compare by identity, not by content."""
        named = self.named(args, kwargs)
        static = [(name, value) for name, value in named if name in self._static]
        return {name: each for name, each in static if type(each).__eq__ is object.__eq__}

    def facts(self, args: Args, kwargs: Kwargs) -> dict[str, Any]:
        """Return the parts of a key by name, to report the differences between two signatures."""
        found: dict[str, Any] = {}
        for number, (name, value) in enumerate(self.named(args, kwargs)):
            if name in self._static or (number == 0 and self.owner):
                found[f"argument {name}"] = value
            else:
                found.update(_facts(f"argument {name}", value))
        return found


def rebuilt(
    trees: Sequence[Any], tensors: Iterator[Any], count: int, keywords: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments with these structures that hold the inputs `tensors`: `count` by position,
    the others by keyword."""
    values = [tree.unflatten(each, tensors) for each in trees]
    return values[:count], dict(zip(keywords, values[count:], strict=True))


class _Input(NamedTuple):
    """An input in a key."""

    shape: tuple[int | None, ...]
    dtype: str
    device: Device
    requires_grad: bool


class _Unfit(Exception):
    """An argument that is neither traced nor fixed; the message is appended to the argument's
    name."""


def _take(value: Any, parts: list[Any], leaves: list[Any]) -> None:
    """Add a value to a key, and its tensors to `leaves`. Tensors and NumPy arrays are not
    converted."""
    kind = type(value)
    if isinstance(value, Tensor):
        data = value.realize_cached_data()
        parts.append(_Input(data.shape, data.dtype, data.device, value.requires_grad))
        leaves.append(value)
    elif kind is np.ndarray and value.dtype in _STORED:
        parts.append(_Input(value.shape, _STORED[value.dtype], default_device(), False))
        leaves.append(value)
    elif kind is list or kind is tuple:
        parts.append((kind, len(value)))
        for each in value:
            _take(each, parts, leaves)
    elif kind is dict:
        parts.append((kind, *value))
        for each in value.values():
            _take(each, parts, leaves)
    elif kind in _PLAIN or isinstance(value, np.generic):
        parts.append(_static(value))
    elif isinstance(value, Module):
        parts.append(id(value))
    elif is_tensor(value):
        _take(as_tensor(value), parts, leaves)
    else:
        raise _Unfit(
            f"is a {kind.__name__}: must be a tensor, array, number, string, None or Module, or a "
            "list, tuple or dict of these; name a fixed, hashable argument in static=(...)"
        )


_STORED = {np.dtype(name): name for name in DTYPES}  # other arrays are converted, as by Tensor()
_PLAIN = frozenset([bool, int, float, complex, str, bytes, type(None)])


def _static(value: Any) -> Any:
    """Return a hashable stand-in for a fixed value. Stand-ins are equal if the values are equal and
    have the same type and sign."""
    kind = type(value)
    if isinstance(value, (float, complex)):
        return kind, repr(value)
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if kind is tuple:
        return kind, *map(_static, value)
    if isinstance(value, Module):
        return id(value)
    if is_tensor(value):
        raise _Unfit(f"is a {kind.__name__}, which is an input: do not name it in static")
    try:
        hash(value)
    except TypeError:
        raise _Unfit(
            f"is a {kind.__name__}, named in static but not hashable: give a tuple, a frozen "
            "dataclass or another value that never changes"
        ) from None
    return kind, value


def _is_module(value: Any) -> bool:
    return isinstance(value, Module)


def _facts(where: str, value: Any) -> dict[str, Any]:
    if is_tensor(value):
        tensor = as_tensor(value)
        needs = "with" if tensor.requires_grad else "without"
        return {
            f"{where}: shape": tensor.shape,
            f"{where}: dtype": tensor.dtype,
            f"{where}: device": tensor.device,
            where: f"a tensor {needs} gradient",
        }
    if not isinstance(value, (list, tuple, dict)):
        return {where: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {where: f"a {type(value).__name__} of {len(value)}"}
    for key, each in items:
        found.update(_facts(f"{where}[{key!r}]", each))
    return found


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2]
