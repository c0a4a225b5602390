"""Make numbers in buffers, and constants, known to a PyTorch model's Python code during export.

`torch.export` does not know the values of buffers. It refuses a model that pads by a number in a
buffer (EnCodec) or branches on one. Buffers are constants of the compiled code, so while such a
model is recorded, its one-element integer and boolean buffers become plain attributes, and each use
of one is a constant that PyTorch propagates through computations. Tensors that the model creates
from constants can be propagated in the same way, such as the mask that Longformer creates if the
caller passes none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UnsupportedError

# The (module, name) pairs under which a buffer is registered, by the buffer's id. The modules'
# entries keep the buffers alive, so the ids stay valid.
Numbers = Mapping[int, Sequence[tuple[Any, str]]]

_MOST = 1 << 16  # most elements of a constant that is propagated
_FILLED = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}

_ASKING = frozenset("item tolist __bool__ __int__ __float__ __index__ __complex__".split())

_IN_PLACE = frozenset(
    f"__i{name}__"
    for name in "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or".split()
)


def numbers_of(model: Any) -> Numbers:
    """Return the buffers of a `Flat.module` (`model`) that hold one integer or boolean."""
    own, *inner = model.modules()
    found: dict[int, list[tuple[Any, str]]] = {}
    for module in (*getattr(own, "models", (own,)), *inner):
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.numel() == 1 and _is_whole(buffer):
                found.setdefault(id(buffer), []).append((module, name))
    return found


def _is_whole(tensor: Any) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def decides(program: Any) -> bool:
    """Return whether a program converts a tensor to a Python number."""
    import torch

    asked = torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default
    return any(node.target in asked for node in program.graph.nodes)


@contextlib.contextmanager
def knowing(numbers: Numbers) -> Iterator[None]:
    """Make the `numbers` constants with known values inside the context.

    Raises UnsupportedError if the model writes to one of them.
    """
    import torch

    def constant(tensor: Any) -> Any:
        known = id(tensor) in numbers
        return torch.ops.aten.lift_fresh_copy.default(tensor) if known else tensor

    class Knowing(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            for changed in _changed(function, args, kwargs):
                if id(changed) in numbers:
                    raise _written(*numbers[id(changed)][0])
            each = torch.utils._pytree.tree_map_only(torch.Tensor, constant, (args, kwargs))
            return function(*each[0], **each[1])

    places = [place for known in numbers.values() for place in known]
    before = {module: dict(module._buffers) for module, _ in places}
    for module, name in places:
        module.__dict__[name] = module._buffers.pop(name)
    try:
        with Knowing():
            yield
        for module, name in places:
            if module.__dict__.get(name) is not before[module][name]:
                raise _written(module, name)
    finally:
        for module, name in places:
            module.__dict__.pop(name, None)
        for module, buffers in before.items():  # restores the order, which `state_dict` shows
            module._buffers.clear()
            module._buffers.update(buffers)


@contextlib.contextmanager
def following() -> Iterator[list[Any]]:
    """Let PyTorch propagate constants (`torch.ones`, `torch.arange` and the like) of up to 65536
    elements through computations inside the context. By default it propagates only one-element
    constants that were numbers. The context yields a list of the numbers that PyTorch read from a
    former constant after other values were written to it. If the list is not empty, the program is
    wrong.
    """
    import torch
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import proxy_tensor

    outdated: list[Any] = []
    symbols = torch.SymInt, torch.SymFloat, torch.SymBool

    class Following(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(function, "__name__", "")
            if name == "where":  # PyTorch does not propagate its numbers
                args = [torch.tensor(x) if isinstance(x, (int, float)) else x for x in args]
            unknown = name in _ASKING and getattr(args[0], "constant", None) is None
            result = function(*args, **(kwargs or {}))
            if unknown and not isinstance(result, symbols):
                outdated.append(result)
            known = _made_of_nothing(function, result, args, kwargs or {})
            return result if known is None else torch.ops.aten.lift_fresh_copy.default(known)

    holders: list[Any] = [fake_tensor, proxy_tensor]
    before = [each.CONSTANT_NUMEL_LIMIT for each in holders]
    for each in holders:
        each.CONSTANT_NUMEL_LIMIT = _MOST
    try:
        with Following():
            yield outdated
    finally:
        for each, limit in zip(holders, before, strict=True):
            each.CONSTANT_NUMEL_LIMIT = limit


def _made_of_nothing(function: Any, result: Any, args: Any, kwargs: Any) -> Any:
    """Return the value of a constant that a PyTorch call creates; None for other calls."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    name = getattr(function, "__name__", "")
    if name not in _FILLED and function not in (torch.full, torch.full_like, torch.arange):
        return None
    if any(type(extent) is not int for extent in result.shape) or result.numel() > _MOST:
        return None
    with unset_fake_temporarily():
        if function is torch.arange:
            return torch.arange(*args, **kwargs).to(result.dtype)
        value = _FILLED[name] if name in _FILLED else kwargs.get("fill_value", [*args, None][1])
        if type(value) not in (bool, int, float):
            return None
        return torch.full(result.shape, value, dtype=result.dtype)


def _changed(function: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors that a PyTorch call writes to."""
    out = kwargs.get("out")
    written = list(out) if isinstance(out, (tuple, list)) else [out]
    return [*written, *args[:1]] if _writes(getattr(function, "__name__", "")) else written


def _writes(name: str) -> bool:
    """Return whether the PyTorch function of this name changes its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or name in _IN_PLACE
    return name.endswith("_")


def _written(module: Any, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{type(module).__name__} writes to its buffer {name!r}, but compiled code changes "
        "nothing: return the new value instead"
    )
