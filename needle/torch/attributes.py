"""Restore attributes, other than parameters and buffers, that a PyTorch model's `forward` changes.

An exported program does not contain such attributes, and the values that an export leaves in them
differ from the values after a call of the model. They are therefore restored. A model is allowed to
store tables in attributes at its first call. A model whose next call depends on a changed
attribute, or whose attributes keep values of the inputs, is refused.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .refusals import not_taken
from .silence import no_warnings

_TENSORS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_PLAIN = (bool, int, float, str, type(None))
_MISSING = object()


class Attributes:
    """A snapshot of the attributes of a model's modules. It includes the contents of lists, dicts
    and sets, and the elements of tensors that are attributes or items of these containers."""

    def __init__(self, model: Any) -> None:
        self._modules = [(path, module, dict(vars(module))) for path, module in _modules(model)]
        values = [
            value
            for _, _, attributes in self._modules
            for name, value in attributes.items()
            if name not in _TENSORS
        ]
        containers = [value for value in values if type(value) in (list, dict, set)]
        self._contents = {id(value): (value, value.copy()) for value in containers}
        inside = [x for each in containers for x in (each.values() if type(each) is dict else each)]
        self._elements = [
            (each, each.detach().clone()) for each in (*values, *inside) if _is_plain(each)
        ]

    def changed(self) -> dict[str, Any]:
        """Return the current values of the attributes that have changed, by path."""
        return {
            f"{path}.{name}" if path else name: _copied(now)
            for path, module, attributes in self._modules
            for name in {**attributes, **vars(module)}
            for before, now in [(attributes.get(name, _MISSING), vars(module).get(name, _MISSING))]
            if self._is_other(before, now)
        }

    def _is_other(self, before: Any, now: Any) -> bool:
        if id(before) in self._contents:
            before = self._contents[id(before)][1]
        return now is not before and not _same(before, now, strict=True)

    def put_back(self) -> None:
        """Restore the values of all attributes in the snapshot."""
        import torch

        for _, module, attributes in self._modules:
            for name in [name for name in vars(module) if name not in attributes]:
                del vars(module)[name]
            vars(module).update(attributes)
        for value, contents in self._contents.values():
            if _parts(value) != _parts(contents):
                value.clear()
                if type(value) is list:
                    value.extend(contents)
                else:
                    value.update(contents)
        for tensor, elements in self._elements:
            if not _same(tensor.detach(), elements):
                with torch.inference_mode(tensor.is_inference()):
                    tensor.detach().copy_(elements)


@contextlib.contextmanager
def put_back(model: Any) -> Iterator[Attributes]:
    """Restore the attributes of a `model` when the context exits. The context yields a snapshot of
    the attributes."""
    before = Attributes(model)
    try:
        yield before
    finally:
        before.put_back()


def check_settled(flat: Any, tensors: Sequence[Any]) -> None:
    """Raise UnsupportedError if a call of a `flat` model depends on an attribute that the last call
    changed, or if an attribute keeps values of the inputs. The error names the attribute. The model
    runs on copies of `tensors`."""
    calls = []
    with put_back(flat.module) as before:
        for inputs in (tensors, tensors, [_other(each) for each in tensors]):
            result = _called(flat.module, inputs)
            calls.append((_copied(list(result)), before.changed()))
    (one, first), (two, second), (_, third) = calls
    for path in second:
        goes_on = not _same(first.get(path, _MISSING), second[path])
        if goes_on or not _same(second[path], third.get(path, _MISSING)):
            how = "the next call depends on it" if goes_on else "its value comes from the inputs"
            raise not_taken(
                flat.module,
                f"at each call ({how}) it changes its attribute {path!r}, which is neither a "
                "parameter nor a buffer: register it as a buffer (register_buffer), or return it",
            )
    if not _same(one, two):
        names = ", ".join(map(repr, second))
        raise not_taken(
            flat.module,
            f"it changes attributes ({names}), and the results of its next call differ: keep "
            "the values that the next call needs in buffers (register_buffer)",
        )


def _called(model: Any, inputs: Sequence[Any]) -> Any:
    """Return the result of a model for copies of inputs, with copies of its parameters and
    buffers."""
    import torch

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    copies = {name: each.detach().clone() for name, each in state.items()}
    arguments = tuple(each.detach().clone() for each in inputs)
    # The model has already run on the example and issued its warnings.
    with no_warnings(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        return torch.func.functional_call(model, copies, arguments)


def _other(tensor: Any) -> Any:
    """Return a tensor like this one, but with other values if they are floating-point numbers."""
    return tensor * 0.75 if tensor.is_floating_point() else tensor


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor with elements, of a kind that can be copied and
    compared."""
    import torch

    return type(value) in (torch.Tensor, torch.nn.Parameter) and not (
        value.is_meta or value.is_nested or value.layout != torch.strided
    )


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the paths and modules of a `Flat.module`, with the model itself in place of the
    wrapper."""
    for path, module in model.named_modules():
        yield from ((path, each) for each in getattr(module, "models", [module]))


def _parts(value: Any) -> Any:
    """Return the identities of a container's items, to tell whether it holds the same objects."""
    if isinstance(value, Mapping):
        return [(key, id(each)) for key, each in value.items()]
    return sorted(map(id, value)) if isinstance(value, set) else list(map(id, value))


def _copied(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return [_copied(each) for each in value]
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    return value


def _same(one: Any, other: Any, strict: bool = False) -> bool:
    """Return whether two values are equal. Values that are not tensors, containers or plain values
    count as equal, unless `strict`: then they must be the same object."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if one is other:
        return True
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return (
            isinstance(one, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and not isinstance(one, FakeTensor)
            and not isinstance(other, FakeTensor)
            and one.shape == other.shape
            and one.dtype == other.dtype
            and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_same(a, b, strict) for a, b in pairs)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[k], other[k], strict) for k in one)
    if isinstance(one, _PLAIN) or isinstance(other, _PLAIN):
        return type(one) is type(other) and (one == other or one != one)
    if isinstance(one, set) and isinstance(other, set):
        return len(one) == len(other)
    return not strict or isinstance(one, weakref.ref)
