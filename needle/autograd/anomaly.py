"""Anomaly mode: a backward pass stops at the first op whose gradient is NaN or infinite."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend_ndarray.dtypes import compute_dtype, is_floating
from ..common.user_code import user_line
from .hooks import Attached
from .node import Node

_NO_LINE = "was called before anomaly mode was on: run the forward pass in anomaly mode too"


class _Mode:
    """The mode, which all threads share."""

    on = False
    checks = True


mode = _Mode()


class set_detect_anomaly:
    """Switch anomaly mode on or off, as `mode` says; in a `with` statement, until the block ends.
    If check_nan is False, gradients are not checked. `detect_anomaly` describes the mode."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _set(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        _set(*self._before)


class detect_anomaly:
    """A context in which every op records the line of user code that called it, and a backward pass
    raises RuntimeError at the first op with a NaN or infinite gradient. The error names the op and
    the line. All threads slow down. If check_nan is False, gradients are not checked.

    >>> x = ndl.Tensor([0.0, 4.0])
    >>> with ndl.autograd.detect_anomaly():
    ...     y = ndl.sqrt(x).sum()
    ...     try:
    ...         y.backward()
    ...     except RuntimeError as error:
    ...         print(str(error).partition("; ")[0])
    anomaly: the gradient of sqrt for its input 0 has 1 infinite of 2 elements
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._checks = check_nan
        self._before: list[tuple[bool, bool]] = []  # a stack: the context may be entered twice

    def __enter__(self) -> None:
        self._before.append(_set(True, self._checks))

    def __exit__(self, *_: object) -> None:
        _set(*self._before.pop())


def is_anomaly_enabled() -> bool:
    """Return whether anomaly mode is on."""
    return mode.on


def _set(on: bool, checks: bool) -> tuple[bool, bool]:
    """Set the mode, and return the previous mode."""
    before = mode.on, mode.checks
    mode.on, mode.checks = bool(on), bool(checks)
    return before


def note_line(node: Node) -> None:
    """Record the line of user code that created `node`."""
    node.attached = Attached()
    node.attached.made_at = user_line()


def check_seed(gradient: Any) -> None:
    """Raise RuntimeError if the gradient that a backward pass begins with is not finite."""
    if problem := _problem(gradient):
        raise RuntimeError(f"anomaly: the gradient that backward begins with has {problem}")


def check(node: Node, gradients: Any) -> None:
    """Raise RuntimeError if one of the gradients that the op of `node` passes to its inputs is not
    finite."""
    assert node.op is not None
    for i, (source, gradient) in enumerate(zip(node.input_nodes, gradients, strict=True)):
        if source.requires_grad and (problem := _problem(gradient)):
            made_at = "" if node.attached is None else node.attached.made_at
            where = f"was called{made_at.removeprefix(',')}" if made_at else _NO_LINE
            raise RuntimeError(
                f"anomaly: the gradient of {node.op.name} for its input {i} has {problem}; "
                f"{node.op.name} {where}"
            )


def _problem(gradient: Any) -> str:
    """Describe in words how many elements of a gradient are not finite; "" if all are finite, or if
    the gradient has no values."""
    if gradient is None or isinstance(gradient, tuple):
        return next(filter(None, map(_problem, gradient or ())), "")
    data = gradient._data
    if data is None or type(data) is tuple or not is_floating(data.dtype):
        return ""
    values = data.astype(compute_dtype(data.dtype), copy=False).numpy()
    counts = {"NaN": np.isnan(values).sum(), "infinite": np.isinf(values).sum()}
    found = " and ".join(f"{n} {what}" for what, n in counts.items() if n)
    return found and f"{found} of {values.size} elements"
