"""PyTorch's recurrent layers as one operator each while a model is exported: export would run them
step by step, which takes long and makes the number of steps part of the program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

_OPTIONS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first"
)
_PADDED = 9  # arguments of a call, of which one with packed sequences has other kinds


def whole() -> Any:
    """A mode in which calls of `torch.lstm` and the like, of padded sequences, are calls of
    `needle::lstm` and the like, which run PyTorch's."""
    import torch

    operators = _operators()  # now: PyTorch traces the mode itself, where branches are recorded

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
    """Whether these are arguments of the form with padded sequences, which draws no dropout."""
    return len(args) == _PADDED and isinstance(args[3], bool) and not (args[5] and args[6])


@functools.cache
def _operators() -> dict[Any, Any]:
    """The operators by the functions that they stand for; they are entered into PyTorch once."""
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
    """Results without values: the outputs, and the states after the last step."""
    begin = states if isinstance(states, (tuple, list)) else [states]
    width = begin[0].shape[-1] * (2 if bidirectional else 1)
    outputs = x.new_empty((*x.shape[:2], width))
    return outputs, *(each.new_empty(each.shape) for each in begin)
