"""Find the current weights of a traced function, and detect changes to them.

Weights are found by name. They belong to Modules (the function itself, its arguments, or outer
Modules that it reads) or are outer Parameters that it reads. To detect changes, two counters (of
in-place writes and of replaced values) are compared, and the entries of each list, dict, closure
and plain object that leads to a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.locks import lock_of_one_object
from ..common.state import last_replacement
from ..errors import ChangedError
from ..nn.module import Module, walk
from .captures import PLAIN, Surroundings
from .guards import Contents, subject


class Weights:
    """The weights of a traced function by name, and the tensors that became its constants.

    `find()` searches everything the function can reach, like `found_in`. `names` are the names of
    the used weights; `unfound` are the weights that the search did not reach. `constants` are the
    tensors that became constants. `bake` (see `baked_in`) returns the Python values that are fixed
    in the trace; without it, changes to these values go unnoticed. `same` are further tensors by
    name, which must stay the same objects but may change their values. Writes by other libraries to
    shared memory (DLPack) are not detected. All methods may be called from any thread.
    """

    def __init__(
        self,
        find: Callable[[], Surroundings],
        names: list[str],
        unfound: Mapping[str, Tensor],
        constants: list[Tensor],
        bake: Callable[[Surroundings], Baked] | None = None,
        same: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._same = dict(same or {})
        self._find, self._names, self._unfound, self._constants = find, names, unfound, constants
        self._bake = bake
        around = find()
        self.baked, self._bonds = bake(around) if bake else ({}, [])
        self._aliases = self._other_names(around)
        self._tensors, self._links, reached = self._search(around)
        self._reached = reached  # the constants that the search reached
        watched = (*self._tensors, *constants, *self._same.values())
        devices = {tensor.device for tensor in watched}
        self._writes = [device.kernels.writes for device in devices]
        self._stamp = self._now()
        self._seen = self._versions(self._tensors)
        self._lock = lock_of_one_object()

    def values(self) -> dict[str, NDArray]:
        """Search for the current weights and return them by name."""
        return _values(self._names, self._search(self._find())[0])

    def found(self) -> dict[str, NDArray]:
        """Return the weights that the last search found, by name."""
        return _values(self._names, self._tensors)

    def follow(self, use: Callable[[dict[str, NDArray]], None]) -> None:
        """Call `use` with the weights if a weight was written or replaced since the last call.

        Raises ChangedError if a constant or a fixed Python value has changed, or if a weight is
        gone.
        """
        is_same = not self._links or all([link.holds() for link in self._links])
        if is_same and self._now() == self._stamp:
            return
        with self._lock:  # other threads wait here for the new weights
            stamp = self._now()
            tensors, links = self._tensors, self._links
            if not is_same or stamp >> 64 != self._stamp >> 64:  # otherwise there were only writes
                around = self._find()
                self._check_baked(around)
                tensors, links, reached = self._search(around)
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

    @property
    def stamp(self) -> int:
        """A number that changes with every change that `follow` has processed."""
        return self._stamp

    def advance(self, writes: int, replacements: int) -> None:
        """Count the caller's own `writes` and `replacements`, which do not change these weights. If
        other code also wrote, the next call of `follow` searches again."""
        now = self._now()
        if now == self._stamp + (replacements << 64) + writes:
            self._stamp = now

    def _check_baked(self, around: Surroundings) -> None:
        """Raise ChangedError if a value that is fixed in the trace has changed."""
        if self._bake is not None:
            found, self._bonds = self._bake(around)
            changes = differences(found, self.baked)
            if changes:
                raise ChangedError(f"the function was traced with another value: {changes[0]}")

    def _search(self, around: Surroundings) -> tuple[list[Tensor], list[Any], set[int]]:
        """Return the weights in order, the links that lead to used tensors, and the numbers of the
        constants that were found."""
        names = {*self._names, *self._aliases, *self._same}
        constants = {id(tensor): number for number, tensor in enumerate(self._constants)}
        weights, reached = dict(self._unfound), set()
        links = {subject(link): link for link in self._bonds}
        for name, tensor, link in tensors_of(around):
            number = constants.get(id(tensor))
            if number is not None:
                reached.add(number)
            elif name in names:
                weights.setdefault(name, tensor)
            else:
                continue
            while link is not None and self._bake is None:  # `_bonds` has these as well
                links[subject(link)] = link
                link = link.before
        for name in names:
            if name not in weights:
                raise ChangedError(f"there is no weight {name!r} any more")
        for alias, name in self._aliases.items():
            if weights[alias] is not weights[name]:
                raise ChangedError(
                    f"{alias!r} and {name!r} were one weight when the function was traced, but are "
                    "two now: compile it again"
                )
        for name, tensor in self._same.items():
            if weights[name] is not tensor:
                raise ChangedError(
                    f"{name!r} is no longer the tensor that the function was traced with"
                )
        return [weights[name] for name in self._names], list(links.values()), reached

    def _other_names(self, around: Surroundings) -> dict[str, str]:
        """Return the weights' other names, each mapped to the weight's main name."""
        found: dict[str, Tensor] = {}
        for name, tensor, _ in tensors_of(around):
            found.setdefault(name, tensor)
        known = {id(found[name]): name for name in (*self._names, *self._same) if name in found}
        names = ((name, known.get(id(tensor))) for name, tensor in found.items())
        return {name: first for name, first in names if first not in (None, name)}

    def _changed(self, number: int, how: str) -> ChangedError:
        return ChangedError(
            f"a tensor {self._constants[number].spec} that is not a Parameter or buffer was "
            f"{how} since the function was traced: its values have become constants"
        )

    def _now(self) -> int:
        """Return a number that changes with every replacement and every in-place write."""
        now = last_replacement[0] << 64  # counts of writes only grow, and stay below 2**64
        for writes in self._writes:
            now += writes()
        return now

    def _versions(self, tensors: list[Tensor]) -> list[_Version]:
        data = [tensor.realize_cached_data() for tensor in (*tensors, *self._constants)]
        return [(each, each.view.written) for each in data]


_Version = tuple[NDArray, int]  # a value, and the write counter at its last write
Found = tuple[str, Tensor, Any]  # name, tensor, and the last link on the path to it
Baked = tuple[dict[str, Any], list[Any]]  # values by name, and links that lead to them


def _same(one: _Version, other: _Version) -> bool:
    return one[0] is other[0] and one[1] == other[1]


def _values(names: list[str], tensors: list[Tensor]) -> dict[str, NDArray]:
    data = [tensor.realize_cached_data() for tensor in tensors]
    return dict(zip(names, data, strict=True))


def tensors_of(found: Surroundings) -> Iterator[Found]:
    """Yield the tensors in `found`, a result of `found_in`, with their names and links."""
    for prefix, (item, link) in found.items():
        if isinstance(item, Module):
            for name, value, last in walk(item, link, hidden=True):
                if isinstance(value, Tensor):
                    yield (f"{prefix}.{name}" if prefix else name), value, last
        elif isinstance(item, Tensor):
            yield prefix, item, link


# Values that a trace bakes in


def baked_in(found: Surroundings, written: Collection[Any] = ()) -> Baked:
    """Return the Python values on which a trace may depend, by name, and the links to them. `found`
    is a result of `found_in`. The values are variables, the classes and attributes of Modules, and
    each tensor's shape, dtype and whether it requires a gradient. Attributes of Modules have no
    links, as in `walk`. Values that are reached through a place that the trace itself has `written`
    are left out."""
    values: dict[str, Any] = {}
    links: list[Any] = []
    for prefix, (item, link) in found.items():
        if written and _leads_through(link, written):
            continue
        inside = walk(item, link, hidden=True) if isinstance(item, Module) else [("", item, link)]
        for name, value, last in inside:
            path = f"{prefix}.{name}".strip(".")
            if isinstance(value, Module):
                values[path] = type(value)
                for attribute, each in vars(value).items():
                    if not isinstance(each, (Module, Tensor)):
                        values[f"{path}.{attribute}".strip(".")] = each
            elif isinstance(value, Tensor):
                needs = "with" if value.requires_grad else "without"
                values[path] = f"{value.spec} {needs} gradient"
            else:
                values[path] = value
            _add(links, last)
    return values, links


def _leads_through(link: Any, places: Collection[Any]) -> bool:
    while link is not None:
        if subject(link) in places:
            return True
        link = link.before
    return False


def _add(links: list[Any], link: Any) -> None:
    while link is not None:
        links.append(link)
        link = link.before


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Describe each value that differs between `now` and `before`. Numbers, strings and tuples are
    equal if their reprs are equal (2 and 2.0 differ); other values are equal only if they are the
    same object."""
    return [
        f"{name} is {_shown(name, now)} instead of {_shown(name, before)}"
        for name in {**before, **now}
        if name not in now or name not in before or not _alike(now[name], before[name])
    ]


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, Contents):
        return one == other
    is_plain = isinstance(one, (*PLAIN, tuple))
    return type(one) is type(other) and is_plain and repr(one) == repr(other)


def _shown(name: str, values: Mapping[str, Any]) -> str:
    text = repr(values[name]) if name in values else "absent"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_LONGEST = 60
