"""Several functions compiled as one model: a test of numbers costs mostly a compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import needle_tvm
from needle import nn

Case = tuple[Callable[..., Any], Sequence[Any]]  # a function of tensors, and its inputs


class _Together(nn.Module):
    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.functions = [function for function, _ in cases]
        self.counts = [len(inputs) for _, inputs in cases]

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        given = iter(inputs)
        return tuple(
            function(*(next(given) for _ in range(count)))
            for function, count in zip(self.functions, self.counts, strict=True)
        )


def together(cases: Sequence[Case], **options: Any) -> Iterator[tuple[Any, Any]]:
    """The result of each case, compiled with `options`, and the eager model's, as NumPy arrays."""
    model = _Together(cases).eval()
    inputs = [each for _, given in cases for each in given]
    found = needle_tvm.compile(model, *inputs, **options)(*inputs)
    for one, (function, given) in zip(found, cases, strict=True):
        yield one.numpy(), function(*given).numpy()


def check_together(cases: Sequence[Case], tolerance: float = 1e-5, **options: Any) -> None:
    """What each case gives, compiled, is what it gives eagerly."""
    for number, (found, expected) in enumerate(together(cases, **options)):
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance, err_msg=f"case {number}"
        )
