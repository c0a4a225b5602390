"""Tables of functions of PyTorch that are loaded together, as one model, and compared each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import needle as ndl
import needle.torch
from needle.torch.oracle import is_close
from needle.torch.reading import array_of


class Row(NamedTuple):
    """A function, and its inputs."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


def row(name: str, function: Callable[..., Any], *inputs: torch.Tensor) -> Row:
    return Row(name, function, inputs)


class Together(torch.nn.Module):
    """A model that applies the functions of rows to their inputs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found, given = [], iter(inputs)
        for each in self.rows:
            made = each.function(*(next(given) for _ in each.inputs))
            found += made if isinstance(made, (tuple, list)) else [made]
        return tuple(found)


def check(rows: Sequence[Row], gradients: bool = True) -> Any:
    """Load the rows together, compare their results and gradients with PyTorch's, and return the
    loaded model and its inputs."""
    model = Together(rows).eval()
    inputs = [each for one in rows for each in one.inputs]
    loaded = needle.torch.load(model, *inputs)
    with ndl.no_grad():
        found = _results(loaded(*map(_tensor, inputs)))
    compare(rows, found)
    if gradients:
        _check_gradients(rows, loaded, inputs)
    return loaded, inputs


def _tensor(x: torch.Tensor, gradient: bool = False) -> ndl.Tensor:
    return ndl.Tensor(array_of(x), requires_grad=gradient and x.is_floating_point())


def _widened(x: torch.Tensor) -> torch.Tensor:
    """A copy, in float32 if x is of halves."""
    halves = x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if halves else x.clone()


def _results(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (tuple, list)) else [made]


def compare(rows: Sequence[Row], found: Sequence[Any]) -> None:
    """Compare results with those of the rows."""
    given = iter(found)
    for each in rows:
        for wanted in _results(each.function(*each.inputs)):
            result = next(given)
            have = np.asarray(result.numpy() if hasattr(result, "numpy") else result)
            assert is_close(have, array_of(wanted)), (each.name, have, wanted)


def _check_gradients(rows: Sequence[Row], loaded: Any, inputs: Sequence[torch.Tensor]) -> None:
    """Gradients of sums of results with weights, where PyTorch has gradients that are finite.
    PyTorch computes those of halves in float32: on some processors it adds halves in halves."""
    leaves = [_widened(x).requires_grad_(x.is_floating_point()) for x in inputs]
    mine = [_tensor(x, gradient=True) for x in inputs]
    results = _results(loaded(*mine))
    total, wanted = ndl.Tensor(np.zeros((), np.float64)), torch.zeros((), dtype=torch.float64)
    for have, want in zip(results, Together(rows)(*leaves), strict=True):
        if want.requires_grad:
            weights = torch.linspace(0.5, 1.5, want.numel(), dtype=torch.float64).reshape(
                want.shape
            )
            wanted = wanted + (want.double() * weights).sum()
            total = total + (have.astype("float64") * ndl.Tensor(weights.numpy())).sum()
    if not wanted.requires_grad:
        return
    wanted.backward()
    total.backward()
    owners = [one for one in rows for _ in one.inputs]
    for one, leaf, x in zip(owners, leaves, mine, strict=True):
        if leaf.grad is None:
            continue
        expected = array_of(leaf.grad).astype(np.float64)
        found = np.zeros_like(expected) if x.grad is None else x.grad.numpy().astype(np.float64)
        known = np.isfinite(expected)
        dtypes = {each.dtype for each in one.inputs} & {torch.bfloat16, torch.float16}
        rounding = max((torch.finfo(dtype).eps / 2 for dtype in dtypes), default=0.0)
        # Gradients of halves are sums of terms that were rounded, and may cancel. So may 1 - y of a
        # result y that was rounded.
        largest = np.abs(expected[known]).max(initial=1)
        close, absolute = (3e-2, rounding * largest) if dtypes else (1e-3, 1e-4)
        np.testing.assert_allclose(found[known], expected[known], close, absolute, err_msg=one.name)
