"""Export each of PyTorch's recurrent layers as one operator. Otherwise export would run the layers
step by step, which is slow and fixes the number of steps in the program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

_OPTIONS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_PADDED = 9  # arguments of a call; calls with packed sequences have arguments of other types


def whole() -> Any:
    """Return a mode that replaces calls to `torch.lstm` and the like on padded sequences by calls
    to `needle::lstm` and the like, which run PyTorch's functions."""
    import torch

    # Created now, because PyTorch traces the mode itself when it records branches.
    operators = _operators()

    class Whole(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            operator = operators.get(function)
            if operator is not None and not kwargs and _is_padded(args):
                return operator(*args)
            return function(*args, **(kwargs or {}))

    return Whole()


def _is_padded(args: Sequence[Any]) -> bool:
    """Return whether these are the arguments of a call with padded sequences and no active
    dropout."""
    return len(args) == _PADDED and isinstance(args[3], bool) and not (args[5] and args[6])


@functools.cache
def _operators() -> dict[Any, Any]:
    """Register the operators with PyTorch, once. Return a dict from the functions that they
    replace."""
    import torch

    found = {}
    for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
        states, results = ("Tensor[]", 3) if function is torch.lstm else ("Tensor", 2)
        schema = f"(Tensor x, {states} states, {_OPTIONS}) -> ({', '.join(['Tensor'] * results)})"
        operator = torch.library.custom_op(
            f"needle::{function.__name__}", _calling(function), mutates_args=(), schema=schema
        )
        operator.register_fake(_shapes)
        found[function] = operator
    return found


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        x: Any,
        states: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        options = has_biases, num_layers, dropout, train, bidirectional, batch_first
        return function(x, states, params, *options)

    return call


def _shapes(
    x: Any,
    states: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """Return results without values: the outputs, and the states after the last step."""
    begin = states if isinstance(states, (tuple, list)) else [states]
    width = begin[0].shape[-1] * (2 if bidirectional else 1)
    outputs = x.new_empty((*x.shape[:2], width))
    return outputs, *(each.new_empty(each.shape) for each in begin)
