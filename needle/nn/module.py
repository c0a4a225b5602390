"""Module: parameters, sub-modules and a forward function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .._state import state
from ..autograd import Tensor
from ..backend_ndarray import Device, NDArray
from ..backend_ndarray.dtypes import dtype_name, is_floating


class Parameter(Tensor):
    """A Tensor that a Module learns."""

    __slots__ = ()


class Module:
    """Base of all modules: assign parameters and sub-modules in `__init__`, define `forward`.

    Parameters and sub-modules are found in attributes, and in lists, tuples and dicts there. Other
    Tensors in attributes whose names do not begin with "_" are buffers: saved, not learned.
    """

    training: bool

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
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
        object.__setattr__(self, name, value)

    # What is inside

    def named_modules(self) -> list[tuple[str, Module]]:
        """(path, module) of this module ("") and all below, each once, parents first."""
        return [(path, item) for path, item in _walk(self) if isinstance(item, Module)]

    def named_tensors(self) -> list[tuple[str, Tensor]]:
        """(path, tensor) of every parameter and buffer; a shared one under each of its paths."""
        return [(path, item) for path, item in _walk(self) if isinstance(item, Tensor)]

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
        """Copies `values` (Tensors, NDArrays or NumPy arrays by path) into the module.

        ValueError lists every missing and unexpected name (with strict) and every wrong shape and
        dtype; then nothing has been changed.
        """
        own = dict(self.named_tensors())
        missing = [f"missing {n!r}" for n in own if n not in values] if strict else []
        extra = [f"unexpected {n!r}" for n in values if n not in own] if strict else []
        wrong = []
        for name, tensor in own.items():
            if name in values:
                value = values[name]
                shape, dtype = tuple(value.shape), dtype_name(value.dtype)
                if shape != tensor.shape:
                    wrong.append(f"{name!r} has shape {shape}, not {tensor.shape}")
                elif dtype != tensor.dtype:
                    wrong.append(f"{name!r} has dtype {dtype}, not {tensor.dtype}")
        if missing or extra or wrong:
            text = "; ".join((*missing, *extra, *wrong))
            raise ValueError(f"load_state_dict: {type(self).__name__}: {text}")
        new = {
            name: _copied(values[name], tensor.device)
            for name, tensor in own.items()
            if name in values
        }
        for name, data in new.items():
            own[name]._replace(data)

    def train(self, mode: bool = True) -> Module:
        """Puts this module and all below in train mode (or eval mode). Returns self."""
        for module in self.modules_below():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Puts this module and all below in eval mode. Returns self."""
        return self.train(False)

    def to(self, device: Device | None = None, dtype: Any = None) -> Module:
        """Moves parameters and buffers to `device`, floating ones to `dtype`. Returns self."""
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
        """What `repr` shows in parentheses."""
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


def _walk(root: Module) -> Iterator[tuple[str, Any]]:
    """(path, item) of modules (once each) and tensors, in the order of assignment."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, Tensor):
            yield path, item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Module):
            yield path, item
            inside = [pair for pair in vars(item).items() if not _hidden(*pair)]
        elif isinstance(item, dict):
            inside = [(str(key), value) for key, value in item.items()]
        else:
            inside = [(str(i), value) for i, value in enumerate(item)]
        for name, value in reversed(inside):
            if isinstance(value, (Module, Tensor, list, tuple, dict)):
                stack.append((f"{path}.{name}" if path else name, value))


def _hidden(name: str, value: Any) -> bool:
    """Whether an attribute is a tensor that is no part of the state."""
    return name.startswith("_") and isinstance(value, Tensor) and not isinstance(value, Parameter)
