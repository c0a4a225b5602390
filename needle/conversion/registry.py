"""The registry of functions that convert the operators of a foreign format.

A converter is a function `(node, *inputs) -> value | tuple of values`. An input that a node omits
is None. A *value* is a Tensor, or a NumPy array that is known while tracing (see `values.py`).
Converters run while tracing, so Python control flow may depend on shapes and known values.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Converter(NamedTuple):
    """A registered converter.

    `required` are the positions of inputs that a node must have. `known` are the positions of
    inputs whose values must be known while tracing; initialisers at these positions stay NumPy
    arrays and do not become weights. `kinds` are the annotations of the inputs; the last one
    applies to all further inputs. A `scoped` converter gets, after the node, the `Scope` in which
    its subgraphs run.
    """

    function: Callable[..., Any]
    since: int
    required: tuple[int, ...]
    known: frozenset[int]
    scoped: bool
    kinds: tuple[str, ...]

    @property
    def takes(self) -> int | None:
        """The number of inputs; None for any number."""
        return None if any(each.startswith("*") for each in self.kinds) else len(self.kinds)

    def kind(self, position: int) -> str:
        """Return the kind of the input at a position: "Carried" means any kind, "Items" a sequence,
        and any other word a tensor."""
        kind = self.kinds[min(position, len(self.kinds) - 1)] if self.kinds else ""
        return kind.removeprefix("*").partition(" ")[0]


class Registry:
    """The converters of a format. The modules of a package register them when they are imported.

    `package` is the dotted name of the package; its modules are imported at the first search.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._converters: dict[tuple[str, str], list[Converter]] = {}
        self._twins: dict[tuple[str, str], Callable[..., Any]] = {}

    def converter(
        self,
        *names: str,
        since: int = 1,
        domain: str = "",
        known: tuple[int, ...] = (),
        scoped: bool = False,
    ) -> Callable[[F], F]:
        """Return a decorator that registers a function for operators of these names.

        `since` is the first version whose definition of the operator the function follows. If a
        name has several functions, a model gets the one with the greatest `since` that is not above
        the model's version.
        """

        def registered(function: F) -> F:
            for name in names:
                found = self._converters.setdefault((domain, name), [])
                if any(each.since == since for each in found):
                    raise ValueError(f"{name} of version {since} has two converters")
                required = _required(function, scoped)
                parameters = [*inspect.signature(function).parameters.values()][1 + scoped :]
                kinds = tuple(map(_kind, parameters))
                found.append(Converter(function, since, required, frozenset(known), scoped, kinds))
                found.sort(key=lambda each: each.since)
            return function

        return registered

    def twin(self, *names: str, domain: str = "") -> Callable[[F], F]:
        """Return a decorator that registers a NumPy function that computes operators whose inputs
        are all known.

        The function has a converter's signature and serves all versions of the operator. It takes
        and returns NumPy arrays, which may have the dtype object and contain ints and expressions
        of dims.
        """

        def registered(function: F) -> F:
            for name in names:
                self._twins[domain, name] = function
            return function

        return registered

    def find(self, name: str, domain: str = "", version: int = 1) -> Converter | None:
        """Return the converter of an operator for a version of its domain, or None."""
        self._load()
        fitting = [e for e in self._converters.get((domain, name), ()) if e.since <= version]
        return fitting[-1] if fitting else None

    def find_twin(self, name: str, domain: str = "") -> Callable[..., Any] | None:
        """Return the NumPy function of an operator, or None."""
        self._load()
        return self._twins.get((domain, name))

    def names(self, domain: str = "") -> list[str]:
        """Return the operators of a domain that have a converter."""
        self._load()
        return sorted(name for where, name in self._converters if where == domain)

    @functools.cache  # noqa: B019 - there is one registry for each format, and it is never freed
    def _load(self) -> None:
        package = importlib.import_module(self._package)  # imported late: it imports this module
        for each in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{each.name}")


def _kind(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    return star + str(parameter.annotation)


def _required(function: Callable[..., Any], scoped: bool) -> tuple[int, ...]:
    """Return the positions of inputs that must not be None: their parameters have no default, and
    their annotations do not allow None."""
    parameters = [*inspect.signature(function).parameters.values()][1 + scoped :]
    return tuple(
        i
        for i, each in enumerate(parameters)
        if each.kind is each.POSITIONAL_OR_KEYWORD
        and each.default is each.empty
        and "None" not in str(each.annotation)
    )
