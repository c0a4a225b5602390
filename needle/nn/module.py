"""Module: parameters, sub-modules and a forward function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .._state import note_replaced, state
from ..backend_ndarray import Device, NDArray
from ..backend_ndarray.dtypes import dtype_name, is_floating
from ..backend_ndarray.masked import refuse_masked
from ..tensor import Tensor


class Parameter(Tensor):
    """A Tensor that is a learned part of a Module."""

    __slots__ = ()


class Module:
    """Base of all modules: assign parameters and sub-modules in `__init__`, define `forward`.

    Parameters and sub-modules are found in attributes, and in lists, tuples and dicts in them.
    Other Tensors in attributes whose names do not begin with "_" are buffers: saved, not learned.
    """

    training: bool

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = state.trace
        if trace is None:
            return self.forward(*args, **kwargs)
        with trace.entered(self):
            return self.forward(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if state.trace is not None:
            state.trace.refuse_assignment(self, name, value)
        before = self.__dict__.get(name)
        object.__setattr__(self, name, value)
        if value is not before:
            note_replaced()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        note_replaced()

    # Contents

    def named_modules(self) -> list[tuple[str, Module]]:
        """(path, module) of this module ("") and all below it, each once, parents first."""
        return [(path, item) for path, item, _ in walk(self) if isinstance(item, Module)]

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """(path, tensor) of every parameter and buffer; a shared one has several paths."""
        return [(path, item) for path, item, _ in walk(self) if isinstance(item, Tensor)]

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """(path, parameter), each parameter once."""
        return list(_once(self.named_tensors(), Parameter))

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        """(path, buffer), each buffer once: tensors that are saved but not learned."""
        tensors = [(n, t) for n, t in self.named_tensors() if not isinstance(t, Parameter)]
        return list(_once(tensors, Tensor))

    def parameters(self) -> list[Parameter]:
        """Every parameter once."""
        return [parameter for _, parameter in self.named_parameters()]

    def modules_below(self) -> list[Module]:
        """This module and every one below it."""
        return [module for _, module in self.named_modules()]

    # State

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by path, detached; they share memory with the module."""
        return {name: tensor.detach() for name, tensor in self.named_tensors()}

    def load_state_dict(self, values: Mapping[str, Any], strict: bool = True) -> None:
        """Copy `values` (Tensors, NDArrays or NumPy arrays by path) into the module.

        ValueError lists every missing and unexpected name (with strict), every wrong shape and
        dtype, and every pair of names of one tensor whose values differ; TypeError names a masked
        array or a value that is not an array. On an error nothing changes.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"load_state_dict: a {type(values).__name__} is no dict of tensors")
        own = dict(self.named_tensors())
        missing = [f"missing {n!r}" for n in own if n not in values] if strict else []
        extra = [f"unexpected {n!r}" for n in values if n not in own] if strict else []
        wrong = []
        for name, tensor in own.items():
            if name in values:
                value = values[name]
                refuse_masked(value, f"load_state_dict: {name!r}")
                if not hasattr(value, "shape") or not hasattr(value, "dtype"):
                    raise TypeError(
                        f"load_state_dict: {name!r} is a {type(value).__name__}, not a tensor"
                    )
                shape, dtype = tuple(value.shape), dtype_name(value.dtype)
                if shape != tensor.shape:
                    wrong.append(f"{name!r} has shape {shape}, not {tensor.shape}")
                elif dtype != tensor.dtype:
                    wrong.append(f"{name!r} has dtype {dtype}, not {tensor.dtype}")
        self._refuse_state(*missing, *extra, *wrong)
        new: dict[int, tuple[str, NDArray]] = {}  # by the tensor's id; it may have several names
        for name, tensor in own.items():
            if name in values:
                data = _copied(values[name], tensor.device)
                first, kept = new.setdefault(id(tensor), (name, data))
                if kept is not data and kept.numpy().tobytes() != data.numpy().tobytes():
                    wrong.append(f"{first!r} and {name!r} are one tensor and have different values")
        self._refuse_state(*wrong)
        for name, data in new.values():
            own[name]._replace(data)

    def _refuse_state(self, *problems: str) -> None:
        if problems:
            raise ValueError(f"load_state_dict: {type(self).__name__}: {'; '.join(problems)}")

    def train(self, mode: bool = True) -> Module:
        """Put this module and all below it in train mode (or eval mode). Returns self."""
        for module in self.modules_below():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Put this module and all below it in eval mode. Returns self."""
        return self.train(False)

    def to(self, device: Device | None = None, dtype: Any = None) -> Module:
        """Move parameters and buffers to `device`, and floating ones to `dtype`. Returns self."""
        new = []
        for _, tensor in _once(self.named_tensors(), Tensor):
            data = tensor.realize_cached_data()
            data = data if device is None else data.to(device)
            if dtype is not None and is_floating(data.dtype):
                data = data.astype(dtype, copy=False)
            new.append((tensor, data))
        for tensor, data in new:
            tensor._replace(data)
            tensor.grad = None
        return self

    def __repr__(self) -> str:
        inside = [
            f"  ({name}): " + repr(value).replace("\n", "\n  ")
            for name, value in vars(self).items()
            if isinstance(value, (Module, list, tuple)) and value
        ]
        body = "\n" + "\n".join(inside) + "\n" if inside else ""
        return f"{type(self).__name__}({self.extra_repr()}{body})"

    def extra_repr(self) -> str:
        """The text that `repr` shows in parentheses."""
        return ""


def _copied(value: Any, device: Device) -> NDArray:
    data = value.realize_cached_data() if isinstance(value, Tensor) else NDArray(value)
    return data.to(device).copy() if data.device is device else data.to(device)


def _once(items: list[tuple[str, Any]], kind: type) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for name, item in items:
        if isinstance(item, kind) and id(item) not in seen:
            seen.add(id(item))
            yield name, item


class Link(NamedTuple):
    """A record that `holder[key]` was `value` when a search passed through it, after link `before`.

    Attributes of modules have no links: `replaced` counts their replacements.
    """

    holder: Any
    key: Any
    value: Any
    before: Link | None

    def holds(self) -> bool:
        """Whether `holder[key]` is still `value`."""
        try:
            return self.holder[self.key] is self.value
        except (LookupError, ValueError):  # ValueError: an unbound closure variable
            return False


def walk(
    root: Module, link: Link | None = None, hidden: bool = False
) -> Iterator[tuple[str, Any, Link | None]]:
    """(path, item, last link to it) of modules and tensors, in order of assignment, each module
    once. With `hidden`, modules appear under all their names, and tensors that are not part of the
    state appear too."""
    seen: set[int] = set()
    stack: list[tuple[str, Any, Link | None, frozenset[int]]] = [("", root, link, frozenset())]
    while stack:
        path, item, link, above = stack.pop()
        if isinstance(item, Tensor):
            yield path, item, link
            continue
        if id(item) in (above if hidden else seen):
            continue
        seen.add(id(item))
        if hidden:
            above |= {id(item)}
        inside: Iterable[tuple[Any, Any]]
        if isinstance(item, Module):
            yield path, item, link
            inside = [pair for pair in vars(item).items() if hidden or not _hidden(*pair)]
        else:
            inside = item.items() if isinstance(item, dict) else enumerate(item)
        changes = isinstance(item, (dict, list))
        for key, value in reversed([*inside]):
            if isinstance(value, (Module, Tensor, list, tuple, dict)):
                name = f"{path}.{key}" if path else str(key)
                last = Link(item, key, value, link) if changes else link
                stack.append((name, value, last, above))


def _hidden(name: str, value: Any) -> bool:
    """Whether an attribute is a tensor that is not part of the state."""
    return name.startswith("_") and isinstance(value, Tensor) and not isinstance(value, Parameter)
