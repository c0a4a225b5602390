"""Calls of PyTorch that are replaced by others while a model is exported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from needle_tvm.frontend.torch import bags, recurrence


def replacing() -> Any:
    """A mode, active while a model is exported, in which the functions of `recurrence` and `bags`
    take the place of PyTorch's: whole recurrent layers, and bags of embeddings of one size.

    A function that returns NotImplemented leaves the call as it is.
    """
    import torch

    rules: dict[Any, Callable[..., Any]] = {
        torch.lstm: recurrence.called_lstm,
        torch.gru: recurrence.called_gru,
        torch.rnn_tanh: functools.partial(recurrence.called_rnn, "tanh"),
        torch.rnn_relu: functools.partial(recurrence.called_rnn, "relu"),
        torch.nn.functional.embedding_bag: bags.called,
    }

    class Replacing(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            rule = rules.get(function)
            result = NotImplemented if rule is None else rule(*args, **(kwargs or {}))
            return function(*args, **(kwargs or {})) if result is NotImplemented else result

    return Replacing()
