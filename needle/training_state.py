"""A whole training state in one file, from which another process continues bit for bit.

The file is a safetensors file, written whole or not at all. Tensors are named by their path, such
as "model.0.weight"; everything else is JSON in the file's metadata.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import rng
from .autograd.tensor import Tensor
from .backend_ndarray import DeviceLike, NDArray
from .serialize import load, load_metadata, save

_KEY, _VERSION = "training", 2
_PLAIN = (type(None), bool, int, float, str)


class Checkpoint:
    """Everything that the next training step depends on, saved and restored together.

    `model`, `optimizer`, `schedule`, `loader`, `rng` and `others` (by name, such as an EMA) are
    objects with `state_dict` and `load_state_dict`, NumPy generators, other objects with
    `get_state` and `set_state`, or lists of these. Raises TypeError for anything else. A checkpoint
    always includes the generators of needle, of `np.random` and of Python's `random`.

    A restored DataLoader continues after the last batch that it returned. The train or eval mode of
    a model is not part of its state.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = ndl.optim.AdamW(model.parameters(), lr=0.1)
    >>> schedule = ndl.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> checkpoint = ndl.Checkpoint(model, optimizer, schedule, ema=ndl.optim.EMA(model))
    >>> checkpoint.save("run.safetensors", step=3)
    >>> checkpoint.load("run.safetensors")
    {'step': 3}
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        schedule: Any = None,
        loader: Any = None,
        rng: Any = None,
        **others: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
        given |= {"rng": rng, **others}
        parts = {name: part for name, part in given.items() if part is not None}
        for name, part in parts.items():
            _check(name, part)
        self._parts: dict[str, Any] = {**parts, "generators": _Generators()}

    def __repr__(self) -> str:
        kinds = [f"{n}={type(part).__name__}" for n, part in self._parts.items()][:-1]
        return f"Checkpoint({', '.join(kinds)})"

    def save(self, path: str | os.PathLike[str], **values: Any) -> None:
        """Write the state of all parts to `path`, with further `values`: numbers, strings, None,
        tensors, arrays, and lists, tuples and dicts of these.

        The file is written beside `path`, synced and renamed, so that a crash leaves the previous
        file whole. Raises TypeError for a value of another kind, OSError if writing fails.
        """
        tensors: dict[str, Any] = {}
        state = {
            "version": _VERSION,
            "parts": {n: _packed(_state(part), n, tensors) for n, part in self._parts.items()},
            "values": _packed(values, "values", tensors),
        }
        save(path, tensors, {_KEY: json.dumps(state)})

    def load(
        self, path: str | os.PathLike[str], device: DeviceLike | None = None
    ) -> dict[str, Any]:
        """Restore all parts from `path`. Return the values that were saved with them, with tensors
        on `device` (None: the CPU). Parts stay on their devices.

        Raises OSError if the file cannot be read, and ValueError if it is not a checkpoint of these
        parts; in that case nothing changes.
        """
        state, tensors = _read(path), load(path, device)
        saved = state["parts"]
        missing, extra = self._parts.keys() - saved.keys(), saved.keys() - self._parts.keys()
        if missing or extra:
            problems = [*(f"missing {n!r}" for n in missing), *(f"unexpected {n!r}" for n in extra)]
            raise ValueError(f"{path} is a checkpoint of other parts: {'; '.join(problems)}")
        before: list[tuple[Any, Any]] = []
        try:
            for name, part in self._parts.items():
                before.append((part, _state(part)))
                _restore(part, _unpacked(saved[name], tensors))
        except Exception as error:
            for part, old in before:
                _restore(part, old)
            raise ValueError(f"{path}: {name} does not fit: {error}") from error
        values: dict[str, Any] = _unpacked(state["values"], tensors)
        return values

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the values that were saved in `path`, without restoring anything. Raises the same
        errors as `load`."""
        values: dict[str, Any] = _unpacked(_read(path)["values"], load(path))
        return values


class _Generators:
    """The state of this process's random generators."""

    def state_dict(self) -> dict[str, Any]:
        numpy_state = np.random.get_state(legacy=False)
        return {"needle": rng.get_state(), "numpy": numpy_state, "python": random.getstate()}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        rng.set_state(values["needle"])
        np.random.set_state(values["numpy"])
        random.setstate(values["python"])


def _check(name: str, part: Any) -> None:
    if isinstance(part, (list, tuple)):
        for i, each in enumerate(part):
            _check(f"{name}[{i}]", each)
        return
    pairs = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
    has_state = any(hasattr(part, one) and hasattr(part, other) for one, other in pairs)
    if isinstance(part, type) or not (has_state or isinstance(part, np.random.Generator)):
        raise TypeError(f"Checkpoint: {name} is a {type(part).__name__}, which has no state_dict")


def _state(part: Any) -> Any:
    if isinstance(part, (list, tuple)):
        return [_state(each) for each in part]
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    return part.state_dict() if hasattr(part, "state_dict") else part.get_state()


def _restore(part: Any, state: Any) -> None:
    if isinstance(part, (list, tuple)):
        if len(state) != len(part):
            raise ValueError(f"the file has {len(state)} states, but there are {len(part)} parts")
        for each, its in zip(part, state, strict=True):
            _restore(each, its)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    elif hasattr(part, "load_state_dict"):
        part.load_state_dict(state)
    else:
        part.set_state(state)


def _packed(value: Any, name: str, tensors: dict[str, Any]) -> Any:
    """Return `value` as JSON. Tensors and arrays go into `tensors`, under names that begin with
    `name`."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_packed(each, f"{name}.{i}", tensors) for i, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": _packed(list(value), name, tensors)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, _PLAIN) for key in value):
            raise TypeError(f"Checkpoint: {name} has a key that is neither a number nor a string")
        return {"dict": [[k, _packed(x, f"{name}.{k}", tensors)] for k, x in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.name in ("uint32", "uint64"):
        return {"array": value.tolist(), "dtype": value.dtype.str}
    if isinstance(value, (Tensor, NDArray, np.ndarray)):
        while name in tensors:
            name += "_"
        tensors[name] = value
        return {"tensor": name, "is_array": isinstance(value, np.ndarray)}
    raise TypeError(f"Checkpoint: {name} is a {type(value).__name__}, which cannot be saved")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `_packed` turned into JSON."""
    if isinstance(value, list):
        return [_unpacked(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_unpacked(value["tuple"], tensors))
    if "dict" in value:
        return {key: _unpacked(each, tensors) for key, each in value["dict"]}
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    tensor = tensors[value["tensor"]]
    return tensor.numpy() if value["is_array"] else tensor


def _read(path: str | os.PathLike[str]) -> dict[str, Any]:
    text = load_metadata(path).get(_KEY)
    if text is None:
        raise ValueError(f"{path} is not a checkpoint but a file of weights; use needle.load")
    state: dict[str, Any] = json.loads(text)
    if state.get("version") != _VERSION:
        raise ValueError(
            f"{path} is a checkpoint of version {state.get('version')}, not {_VERSION}"
        )
    return state
