"""`a.at[key].set(value)` and its relatives: copies of a tensor with new elements at a key.

The functions take all of NumPy's keys. If a key names an element several times, `set_at` keeps the
last value, `add_at` adds all values, `mul_at` multiplies by all, and `max_at` and `min_at` keep the
largest or the smallest of the old element and all values.
The gradient of `set_at` flows to the values that are kept and to the elements of `a` that are not
replaced. In `max_at` and `min_at`, equal elements and values share the gradient equally.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd.dispatch import apply
from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray, indexing
from ._arguments import as_source
from ._keys import as_key
from .along_axis import Put
from .arithmetic import maximum, minimum, where
from .getitem import _has_sizes_alone, _placed
from .shape import permute, reshape
from .slicing import set_slice, unslice
from .slicing import slice as get_slice


def set_at(a: Tensor, key: Any, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with a[key] = value. `value` broadcasts and is converted to a's dtype.

    Raises IndexError for a `key` out of range, ShapeError for a value that does not broadcast, and
    TraceError while tracing for a mask whose values are not known, unless one `value` fits all
    elements of the mask. A compiled function skips positions out of range that it computes itself.

    >>> ndl.zeros(3).at[1:].set(5.0).numpy().tolist()
    [0.0, 5.0, 5.0]
    """
    return _at("set", a, key, value)


def add_at(a: Tensor, key: Any, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with `value` added to a[key], once for each time that the key names an
    element. Raises the errors of `set_at`, and TypeError for bool.

    >>> ndl.zeros(3).at[[0, 0, 2]].add(1.0).numpy().tolist()
    [2.0, 0.0, 1.0]
    """
    return _at("add", a, key, value)


def mul_at(a: Tensor, key: Any, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with a[key] multiplied by `value`. Raises the errors of `add_at`."""
    return _at("mul", a, key, value)


def max_at(a: Tensor, key: Any, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with the larger of a[key] and `value` at `key`. Raises the errors of
    `add_at`."""
    return _at("max", a, key, value)


def min_at(a: Tensor, key: Any, value: Tensor | float) -> Tensor:
    """Return a copy of `a` with the smaller of a[key] and `value` at `key`. Raises the errors of
    `add_at`."""
    return _at("min", a, key, value)


def _at(how: str, a: Tensor, key: Any, value: Any) -> Tensor:
    name = f"{how}_at"
    if not isinstance(a, Tensor):
        raise TypeError(f"{name}: input 0 is a {type(a).__name__}, not a Tensor")
    if a.dtype == "bool" and how != "set":
        raise TypeError(f"{name}: a bool tensor has no such operation; use set_at, or cast")
    if indexing.is_basic(key) or _has_sizes_alone(key):
        old = get_slice(a, key)
        source = as_source(name, a, value, old.shape)
        if how == "add":
            return a + unslice(source, key, a.shape)
        return set_slice(a, _combined(how, old, source), key)
    if _covers(a, key, value):
        mask = key if isinstance(key, Tensor) else Tensor(key, device=a.device)
        mask = reshape(mask, (*mask.shape, *[1] * (a.ndim - mask.ndim)))
        source = as_source(name, a, value, getattr(value, "shape", ()))
        return where(mask, _combined(how, a, source), a)
    plan, merged, index, axis = _placed(a, key)
    shape = (*merged.shape[:axis], *index.shape, *merged.shape[axis + 1 :])
    source = as_source(name, a, value, shape)
    out = apply(Put(how, axis), (merged, index, source))
    kept = get_slice(a, plan.kept)
    out = reshape(out, tuple(kept.shape[i] for i in plan.order))
    if plan.order != tuple(range(out.ndim)):
        out = permute(out, np.argsort(plan.order).tolist())
    whole = all(entry == slice(None) for entry in plan.kept)
    return out if whole else set_slice(a, out, as_key(plan.kept))


def _combined(how: str, old: Tensor, new: Tensor) -> Tensor:
    if how == "add":
        return old + new
    if how == "mul":
        return old * new
    if how == "max":
        return maximum(old, new)
    return minimum(old, new) if how == "min" else new


def _covers(a: Tensor, key: Any, value: Any) -> bool:
    """Return whether the key is a single mask, and the value is one element (or slice) for all
    elements that the mask picks."""
    is_mask = isinstance(key, (Tensor, NDArray, np.ndarray)) and str(key.dtype) == "bool"
    if not is_mask or key.ndim == 0 or key.shape != a.shape[: key.ndim]:
        return False
    return len(getattr(value, "shape", ())) <= a.ndim - key.ndim
