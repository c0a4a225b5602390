"""Make a batch from samples, by the rules of PyTorch's default_collate and default_convert."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor, from_dlpack, make_const
from ..backend_ndarray.masked import as_numpy

Made = Callable[[np.ndarray[Any, Any]], Any]

_TEXT = "SaUO"  # kinds of arrays that cannot become Tensors: strings and objects


def default_collate(batch: Sequence[Any]) -> Any:
    """Return the samples in the list `batch` as one batch. Arrays, numbers, and Tensors of needle
    or other libraries are stacked along a new first axis into Tensors without gradient. Dicts,
    lists and namedtuples become a dict, list or namedtuple of batches, and tuples become a list of
    batches. Strings and bytes stay a list.

    Python floats become float64 and ints int64. Raises RuntimeError if arrays differ in shape or
    lists in length, and TypeError for samples of another type.

    >>> batch = ndl.data.default_collate([{"x": 1.5, "name": "a"}, {"x": 2.5, "name": "b"}])
    >>> batch["x"].tolist(), batch["name"]
    ([1.5, 2.5], ['a', 'b'])
    """
    return collated(batch, make_const)


def default_convert(data: Any) -> Any:
    """Convert the arrays in `data`, including those in dicts, lists, namedtuples and tuples (which
    become lists), to Tensors without gradient. Everything else is unchanged."""
    return converted(data, lambda x: x if isinstance(x, Tensor) else make_const(x))


def collated(batch: Sequence[Any], made: Made) -> Any:
    """Collate `batch` by the rules of `default_collate`; `made` converts each stacked array."""
    first = batch[0]
    if _is_foreign(first):
        batch = [from_dlpack(x) for x in batch]
        first = batch[0]
    if isinstance(first, Tensor):
        stacked = _stacked([x.numpy() for x in batch])
        return Tensor(stacked, device=first.device, requires_grad=False)
    if isinstance(first, np.ndarray):
        if first.dtype.kind in _TEXT:
            raise _refusal(first.dtype)
        return made(_stacked([as_numpy(x, "default_collate") for x in batch]))
    if isinstance(first, float):
        return made(np.array(batch, np.float64))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, (np.generic, int)):  # np.number would exclude bfloat16
        return made(np.asarray(batch))
    if isinstance(first, Mapping):
        columns = {key: collated([sample[key] for sample in batch], made) for key in first}
        return _rebuilt(first, columns)
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError(
                "default_collate: each element in list of batch should be of equal size; got "
                f"{[len(sample) for sample in batch]}"
            )
        return _rebuilt(first, [collated(column, made) for column in zip(*batch, strict=True)])
    raise _refusal(type(first))


def converted(data: Any, leaf: Callable[[Any], Any], plain: Any = list) -> Any:
    """Return `data` with each Tensor and each array x of numbers replaced by leaf(x), and each
    tuple by a `plain`."""
    if isinstance(data, Tensor) or _is_foreign(data):
        return leaf(data)
    if isinstance(data, (np.ndarray, np.generic)) and data.dtype.kind not in _TEXT:
        return leaf(data)
    if isinstance(data, Mapping):
        return _rebuilt(data, {key: converted(data[key], leaf, plain) for key in data}, plain)
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _rebuilt(data, [converted(value, leaf, plain) for value in data], plain)
    return data


def _is_foreign(x: Any) -> bool:
    """Return whether x is another library's tensor, such as PyTorch's."""
    return hasattr(x, "__dlpack__") and not isinstance(x, (Tensor, np.ndarray))


def _rebuilt(like: Any, parts: Any, plain: Any = list) -> Any:
    """Return `parts`, a dict or list, in a container of the type of `like`, or in a `plain` if
    `like` is a tuple without names."""
    kind: Any = type(like)
    try:
        if isinstance(like, tuple):
            return kind(*parts) if hasattr(like, "_fields") else plain(parts)
        if isinstance(like, MutableMapping):
            mapping = copy.copy(like)
            mapping.update(parts)
            return mapping
        if isinstance(like, MutableSequence):
            sequence = copy.copy(like)
            for i, part in enumerate(parts):
                sequence[i] = part
            return sequence
        return kind(parts)
    except TypeError:  # the container cannot be built from its items alone
        return parts


def _stacked(arrays: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    shape = arrays[0].shape
    for i, x in enumerate(arrays):
        if x.shape != shape:
            raise RuntimeError(
                f"default_collate: stack expects each tensor to be equal size, but got "
                f"{list(shape)} at entry 0 and {list(x.shape)} at entry {i}"
            )
    return np.stack(arrays)


def _refusal(found: Any) -> TypeError:
    return TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {found}"
    )
