"""Modules that hold modules or parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..autograd.tensor import Tensor
from .converting import Found
from .layout import Layout
from .module import Module
from .parameter import Parameter


def check_module(owner: str, what: str, module: Any) -> None:
    """Raise TypeError unless `module` can be called."""
    if not callable(module):
        raise TypeError(f"{owner}: {what} is a {type(module).__name__}, not a Module")


class _Held(tuple[Module, ...]):
    """The modules of the Sequential `owner`. In the course, `modules` is an attribute, which hides
    the method `Module.modules`; calling this tuple calls the method."""

    owner: Sequential

    def __call__(self) -> Found[Module]:
        """Return this Sequential and every module below it."""
        return Module.modules(self.owner)


class Sequential(Module):
    """Modules applied one after the other. An index returns a module, and a slice a Sequential.

    Instead of modules, one dict from names to modules may be given; layout="torch" then uses these
    names.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> model(ndl.zeros(3, 4)).shape, len(model[:2])
    ((3, 2), 2)
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        given: Any = modules
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            given = modules[0].values()
            self._names: tuple[str, ...] | None = tuple(modules[0])
        else:
            self._names = None
        self._set(given, self._names)

    def _set(self, modules: Iterable[Any], names: Iterable[str] | None) -> Sequential:
        modules = tuple(modules)
        for i, module in enumerate(modules):
            check_module("Sequential", f"modules[{i}]", module)
        self.modules = modules
        self._names = None if names is None else tuple(names)
        return self

    @property
    def modules(self) -> Any:
        """The modules, as a tuple. Calling the tuple lists this Sequential and every module below
        it."""
        # Built at each use, because a stored tuple would form a reference cycle with the
        # Sequential.
        held = _Held(vars(self)["modules"])
        held.owner = self
        return held

    @modules.setter
    def modules(self, modules: tuple[Module, ...]) -> None:
        vars(self)["modules"] = modules

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x

    def names(self) -> tuple[str, ...]:
        """Return PyTorch's names of the modules: the names in the dict, otherwise "0", "1" ..."""
        return self._names or tuple(map(str, range(len(self.modules))))

    def torch_layout(self) -> Layout:
        return {f"modules.{i}": name for i, name in enumerate(self.names())}

    def __len__(self) -> int:
        return len(self.modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)

    def __getitem__(self, index: int | slice) -> Any:
        if not isinstance(index, slice):
            return self.modules[index]
        names = None if self._names is None else self._names[index]
        return Sequential()._set(self.modules[index], names)

    def __setitem__(self, index: int, module: Module) -> None:
        modules = list(self.modules)
        modules[index] = module
        self._set(modules, self._names)

    def __delitem__(self, index: int | slice) -> None:
        modules, names = list(self.modules), list(self.names())
        del modules[index], names[index]
        self._set(modules, None if self._names is None else names)

    def append(self, module: Module) -> Sequential:
        """Add a module at the end. Returns self."""
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> Sequential:
        """Add modules at the end. Returns self."""
        for module in modules:
            self.insert(len(self), module)
        return self

    def insert(self, index: int, module: Module) -> Sequential:
        """Insert a module before the module at `index`. If the modules have names, the new module's
        name is the number of modules before the call. Returns self."""
        modules, names = list(self.modules), list(self.names())
        names.insert(index, str(len(modules)))
        modules.insert(index, module)
        return self._set(modules, None if self._names is None else names)


class Residual(Module):
    """y = fn(x) + x."""

    def __init__(self, fn: Module) -> None:
        super().__init__()
        check_module("Residual", "fn", fn)
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class _Numbered(Module):
    """Base class of the lists, whose items are the attributes "0", "1" ..., as in PyTorch."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__()
        self._fill(list(items))

    def _item(self, i: int, item: Any) -> Any:
        raise NotImplementedError

    def _items(self) -> list[Any]:
        return [value for name, value in vars(self).items() if name.isdigit()]

    def _fill(self, items: list[Any]) -> None:
        """Replace the list's items with `items`. Raises TypeError for an item of another kind,
        before any change."""
        items = [self._item(i, item) for i, item in enumerate(items)]
        for i in range(len(self)):
            delattr(self, str(i))
        for i, item in enumerate(items):
            setattr(self, str(i), item)

    def __len__(self) -> int:
        return len(self._items())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def __getitem__(self, index: int | slice) -> Any:
        found = self._items()[index]
        return type(self)(found) if isinstance(index, slice) else found

    def __setitem__(self, index: int, item: Any) -> None:
        position = range(len(self))[index]
        setattr(self, str(position), self._item(position, item))

    def __delitem__(self, index: int | slice) -> None:
        items = self._items()
        del items[index]
        self._fill(items)

    def append(self, item: Any) -> Any:
        """Add an item at the end. Returns self."""
        return self.extend([item])

    def extend(self, items: Iterable[Any]) -> Any:
        """Add items at the end. Returns self."""
        self._fill([*self._items(), *items])
        return self

    def insert(self, index: int, item: Any) -> Any:
        """Insert an item before the item at `index`. Returns self."""
        items = self._items()
        items.insert(index, item)
        self._fill(items)
        return self


class _Named(Module):
    """Base class of the dicts, in which each item is an attribute named by its key."""

    def __init__(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self._keys: tuple[str, ...] = ()
        self.update(items)

    def _item(self, key: Any, item: Any) -> Any:
        raise NotImplementedError

    def update(self, items: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Set items by key; new keys come last. Raises KeyError for a key that cannot be an
        attribute's name, and TypeError for an item of another kind."""
        pairs = items.items() if isinstance(items, Mapping) else items
        for key, item in pairs:
            self[key] = item

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: Any) -> bool:
        return key in self._keys

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(f"{type(self).__name__} has no {key!r}")
        return vars(self)[key]

    def __setitem__(self, key: str, item: Any) -> None:
        item = self._item(key, item)
        if key not in self._keys:
            if not isinstance(key, str) or not key or "." in key or hasattr(self, key):
                raise KeyError(
                    f"{type(self).__name__}: key {key!r} is not allowed: a key is a str without "
                    "'.' that is not an attribute of the class"
                )
            self._keys = (*self._keys, key)
        setattr(self, key, item)

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def pop(self, key: str) -> Any:
        """Remove the item `key` and return it. Raises KeyError if there is no such key."""
        item = self[key]
        self._keys = tuple(each for each in self._keys if each != key)
        delattr(self, key)
        return item

    def keys(self) -> tuple[str, ...]:
        """Return the keys, in the order in which they were added."""
        return self._keys

    def values(self) -> list[Any]:
        """Return the items, in the order of the keys."""
        return [vars(self)[key] for key in self._keys]

    def items(self) -> list[tuple[str, Any]]:
        """Return the pairs (key, item), in the order of the keys."""
        return list(zip(self._keys, self.values(), strict=True))


def _as_module(owner: Module, key: Any, item: Any) -> Module:
    if not isinstance(item, Module):
        name = type(owner).__name__
        raise TypeError(f"{name}: item {key!r} is a {type(item).__name__}, not a Module")
    return item


def _as_parameter(owner: Module, key: Any, item: Any) -> Tensor:
    if not isinstance(item, Tensor):
        name = type(owner).__name__
        raise TypeError(f"{name}: item {key!r} is a {type(item).__name__}, not a Tensor")
    return item if isinstance(item, Parameter) else Parameter(item)


class ModuleList(_Numbered):
    """A list of the modules `items`, named "0", "1" ..., without a forward. Slices are ModuleLists.

    Raises TypeError for an item that is not a Module.

    >>> layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers), len(layers[1:]), len(list(layers.parameters()))
    (3, 2, 6)
    """

    def _item(self, i: int, item: Any) -> Module:
        return _as_module(self, i, item)


class ModuleDict(_Named):
    """A dict `items` from names to modules, without a forward. Iteration is over the keys.

    Raises TypeError for an item that is not a Module. Raises KeyError for a key that is not a str,
    has a "." or is an attribute of every ModuleDict ("keys", "training" ...).
    """

    def _item(self, key: Any, item: Any) -> Module:
        return _as_module(self, key, item)


class ParameterList(_Numbered):
    """A list of the Parameters `items`, named "0", "1" ...; other Tensors become Parameters. Slices
    are ParameterLists. Raises TypeError for an item that is not a Tensor."""

    def _item(self, i: int, item: Any) -> Tensor:
        return _as_parameter(self, i, item)

    def extra_repr(self) -> str:
        return ", ".join(str(item.spec) for item in self)


class ParameterDict(_Named):
    """A dict `items` from names to Parameters; other Tensors become Parameters. Iteration is over
    the keys. Raises TypeError for an item that is not a Tensor. Raises KeyError as in
    ModuleDict."""

    def _item(self, key: Any, item: Any) -> Tensor:
        return _as_parameter(self, key, item)

    def extra_repr(self) -> str:
        return ", ".join(f"{key}: {item.spec}" for key, item in self.items())
