"""The current weights of a traced function, and whether they have changed.

Weights are found by name: those of Modules that are the function itself, its arguments, or read
from its surroundings, and Parameters that it reads from there. To find that nothing has changed,
two counters are compared (of writes in place and of replaced values), and the entries of each list,
dict, closure and plain object that leads to a weight.
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ._state import last_replacement
from .backend_ndarray import NDArray
from .errors import ChangedError
from .nn.module import Link, Module, walk
from .tensor import Tensor


class Weights:
    """The weights of a traced function by name, and the tensors that became its constants.

    `find()` searches everything the function can reach, as `found_in` does; `names` are the used
    weights, `unfound` those of them that the search did not reach. Writes of other libraries to
    shared memory (DLPack) are not seen. Safe to call from any thread.
    """

    def __init__(
        self,
        find: Callable[[], Iterable[Found]],
        names: list[str],
        unfound: Mapping[str, Tensor],
        constants: list[Tensor],
    ) -> None:
        self._find, self._names, self._unfound, self._constants = find, names, unfound, constants
        self._aliases = self._other_names()
        self._tensors, self._links, reached = self._search()
        self._reached = reached  # the constants that the search reached
        devices = {tensor.device for tensor in (*self._tensors, *constants)}
        self._writes = [device.kernels.writes for device in devices]
        self._stamp = self._now()
        self._seen = self._versions(self._tensors)
        self._lock = threading.Lock()

    def values(self) -> dict[str, NDArray]:
        """The current weights."""
        return _values(self._names, self._search()[0])

    def follow(self, use: Callable[[dict[str, NDArray]], None]) -> None:
        """Call `use` with the weights if one was written or replaced since the last call.

        Raises ChangedError if a constant was, or if a weight is gone.
        """
        if self._now() == self._stamp and (
            not self._links or all([link.holds() for link in self._links])
        ):
            return
        with self._lock:  # other threads wait here for the new weights
            stamp = self._now()
            tensors, links, reached = self._search()
            for number in self._reached - reached:
                raise self._changed(number, "replaced")
            seen, count = self._versions(tensors), len(self._names)
            pairs = zip(seen[count:], self._seen[count:], strict=True)
            for number, (now, then) in enumerate(pairs):
                if not _same(now, then):
                    raise self._changed(number, "written")
            if not all(map(_same, seen, self._seen)):
                use(_values(self._names, tensors))
            self._tensors, self._links, self._seen, self._stamp = tensors, links, seen, stamp

    def _search(self) -> tuple[list[Tensor], list[Link], set[int]]:
        """The weights in order, the links that lead to used tensors, and the numbers of the
        constants among these."""
        wanted = {*self._names, *self._aliases}
        constants = {id(tensor): number for number, tensor in enumerate(self._constants)}
        found, links, reached = dict(self._unfound), {}, set()
        for name, tensor, link in self._find():
            number = constants.get(id(tensor))
            if number is not None:
                reached.add(number)
            elif name in wanted:
                found.setdefault(name, tensor)
            else:
                continue
            while link is not None:
                links[id(link.holder), link.key] = link
                link = link.before
        for name in wanted:
            if name not in found:
                raise ChangedError(f"there is no weight {name!r} any more")
        for alias, name in self._aliases.items():
            if found[alias] is not found[name]:
                raise ChangedError(
                    f"{alias!r} and {name!r} were one weight when the function was traced, and are "
                    "two now: compile it again"
                )
        return [found[name] for name in self._names], list(links.values()), reached

    def _other_names(self) -> dict[str, str]:
        """Further names of the weights, each with the weight's own name."""
        found: dict[str, Tensor] = {}
        for name, tensor, _ in self._find():
            found.setdefault(name, tensor)
        known = {id(found[name]): name for name in self._names if name in found}
        names = ((name, known.get(id(tensor))) for name, tensor in found.items())
        return {name: first for name, first in names if first not in (None, name)}

    def _changed(self, number: int, how: str) -> ChangedError:
        return ChangedError(
            f"a tensor {self._constants[number].spec} that is no Parameter or buffer has been "
            f"{how} since the function was traced: its values have become constants"
        )

    def _now(self) -> int:
        """A number that differs after every replacement and every write in place."""
        now = last_replacement[0] << 64  # the counts of writes never fall, nor do they come so far
        for writes in self._writes:
            now += writes()
        return now

    def _versions(self, tensors: list[Tensor]) -> list[_Version]:
        data = [tensor.realize_cached_data() for tensor in (*tensors, *self._constants)]
        return [(each, each.view.written) for each in data]


_Version = tuple[NDArray, int]  # a value, and the write count of its last write
Found = tuple[str, Tensor, "Link | None"]  # name, tensor, and the last link that leads to it


def _same(one: _Version, other: _Version) -> bool:
    return one[0] is other[0] and one[1] == other[1]


def _values(names: list[str], tensors: list[Tensor]) -> dict[str, NDArray]:
    data = [tensor.realize_cached_data() for tensor in tensors]
    return dict(zip(names, data, strict=True))


def found_in(
    fn: Any, arguments: Mapping[str, Any]
) -> dict[str, tuple[Module | Tensor, Link | None]]:
    """The Modules and Tensors that a call of `fn` with these named arguments can read, by name
    prefix, and the links that lead to them. A Module `fn` has no prefix; an argument has its name,
    and a variable of the function's surroundings has the variable's name."""
    owner = fn if isinstance(fn, Module) else getattr(fn, "__self__", None)
    found: dict[str, Any] = {}
    if isinstance(owner, Module):
        found[""] = owner, None
    for name, value in arguments.items():
        if isinstance(value, Module):
            found[name] = value, None
    if not isinstance(fn, Module):
        for name, value, link in _around(fn):
            for path, item, last in _inside(name, value, link):
                found.setdefault(path, (item, last))
    return found


def tensors_of(found: Mapping[str, tuple[Module | Tensor, Link | None]]) -> Iterator[Found]:
    """The tensors in the result of `found_in`, by name."""
    for prefix, (item, link) in found.items():
        if isinstance(item, Module):
            for name, value, last in walk(item, link, hidden=True):
                if isinstance(value, Tensor):
                    yield (f"{prefix}.{name}" if prefix else name), value, last
        else:
            yield prefix, item, link


class _Cell:
    """A closure's variable as the holder of a Link."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, _: str) -> Any:
        return self._cell.cell_contents


def _around(fn: Any) -> Iterator[tuple[str, Any, Link | None]]:
    """Names and values that a function reads from around it: closure, globals, bound object."""
    while isinstance(fn, partial):
        yield from ((f"args.{i}", value, None) for i, value in enumerate(fn.args))
        keywords = fn.keywords
        yield from ((n, value, Link(keywords, n, value, None)) for n, value in keywords.items())
        fn = fn.func
    fn = inspect.unwrap(fn) if callable(fn) else fn
    if isinstance(fn, types.MethodType):
        yield "self", fn.__self__, None
        fn = fn.__func__
    if not isinstance(fn, types.FunctionType):
        call = inspect.getattr_static(type(fn), "__call__", None)
        if isinstance(call, types.FunctionType):
            yield "self", fn, None
            fn = call
        else:
            return
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # an unbound variable
            continue
        yield name, value, Link(_Cell(cell), name, value, None)
    pending, names = [fn.__code__], fn.__globals__
    while pending:
        code = pending.pop()
        pending += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for name in code.co_names:
            if name in names:
                yield name, names[name], Link(names, name, names[name], None)


_MOST_DEEP = 4  # lists in dicts in objects ...


def _inside(
    path: str, value: Any, link: Link | None, depth: int = 0
) -> Iterator[tuple[str, Any, Link | None]]:
    """The Modules and Tensors in a value: itself, or in containers, in attributes of plain objects,
    or read in turn by a function."""
    if isinstance(value, (Module, Tensor)):
        yield path, value, link
        return
    if depth == _MOST_DEEP:
        return
    if isinstance(value, (types.FunctionType, partial, types.MethodType)):
        for name, item, own in _around(value):
            yield from _inside(name, item, own or link, depth + 1)
        return
    holder: Any = None
    if isinstance(value, (dict, list, tuple)):
        holder = value
    elif type(value).__module__.partition(".")[0] not in _OTHERS and hasattr(value, "__dict__"):
        if not isinstance(value, (type, types.ModuleType)):
            holder = vars(value)
    if holder is not None:
        for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            yield from _inside(f"{path}.{key}", item, Link(holder, key, item, link), depth + 1)


_OTHERS = ("builtins", "needle", "numpy", "types", "functools")
