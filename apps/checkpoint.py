"""Checkpoints of a training run, from which another process resumes as if nothing had happened.

A checkpoint is one safetensors file, written whole or not at all. Model, optimizer and the task's
carried state are tensors; generator, loader and counters are JSON in the metadata.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import needle as ndl
from needle import rng, serialize

_VERSION = 1
_KEY = "training"


def save(
    path: Path,
    model: Any,
    optimizer: Any,
    loader: Any,
    carried: Mapping[str, Any],
    progress: Mapping[str, Any],
) -> None:
    """Write everything that the next step depends on. `progress` holds the caller's JSON values."""
    kept = optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for i, arrays in kept["state"].items():
        tensors |= {f"optimizer.{name}.{i}": value for name, value in arrays.items()}
    tensors |= {f"carried.{name}": value for name, value in carried.items()}
    state = {
        "version": _VERSION,
        "optimizer": kept["numbers"],
        "generator": rng.get_state(),
        "loader": loader.state_dict(),
        "progress": dict(progress),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    serialize.save(path, tensors, {_KEY: json.dumps(state)})


def read_progress(path: Path) -> dict[str, Any]:
    """The caller's JSON values. OSError, or ValueError if the file is not a checkpoint."""
    return _state(path)["progress"]


def restore(path: Path, model: Any, optimizer: Any, loader: Any, device: Any) -> dict[str, Any]:
    """Restore model, optimizer, loader and generator; return the carried state.

    OSError, or ValueError if the file is not a checkpoint of these.
    """
    state = _state(path)
    tensors = ndl.load(path, device=device)
    groups: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}, "carried": {}}
    for name, value in tensors.items():
        group, _, rest = name.partition(".")
        if group not in groups:
            raise ValueError(f"{path}: not a checkpoint: {name!r} has no place in it")
        groups[group][rest] = value
    try:
        model.load_state_dict(groups["model"])
        arrays = _by_position(groups["optimizer"])
        optimizer.load_state_dict({"state": arrays, "numbers": state["optimizer"]})
        loader.load_state_dict(state["loader"])
        rng.set_state(state["generator"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: does not fit: {error}") from error
    return groups["carried"]


def _state(path: str | os.PathLike[str]) -> dict[str, Any]:
    text = serialize.load_metadata(path).get(_KEY)
    if text is None:
        raise ValueError(f"{path}: not a checkpoint, but weights alone")
    state = json.loads(text)
    if state.get("version") != _VERSION:
        raise ValueError(f"{path}: a checkpoint of version {state.get('version')}, not {_VERSION}")
    return state


def _by_position(tensors: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """{position: {name: tensor}} of tensors named name.position; ValueError for another name."""
    found: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        name, _, position = key.rpartition(".")
        if not position.isdigit():
            raise ValueError(f"{key!r} names no parameter by its position")
        found.setdefault(int(position), {})[name] = tensor
    return found
