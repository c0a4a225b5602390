"""`torch.compile(model, backend="needle")`; PyTorch's entry point is `torch_dynamo_backends`.

AOTAutograd turns PyTorch's graph into a functional one, which has no writes to inputs and no views
of them. The graph is compiled at its first call. A graph that cannot be compiled runs in PyTorch as
a whole, with one warning that gives the reason.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from needle.torch.aot_tracing import (
    attention_by_products,
    backend_decompositions,
    composites_whole,
    without_dropout,
)
from needle_runtime.process.turns import compiling
from needle_tvm.compiler.aot_code import Compiled, LeftToPyTorchError, reason_of
from needle_tvm.compiler.request import request

_WARNED: set[str] = set()


def needle(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return a function that computes the `graph`, a `torch.fx.GraphModule`; this is the backend.

    `example_inputs` are the graph's inputs. `options` are the keywords of `compile`:
    `torch.compile(model, backend="needle", options={"stage": "fused"})`. With `check` (True by
    default), the first calls are compared with PyTorch. If gradients are taken, both the forward
    and the backward pass are compiled. Code for inference does not see writes to a weight through
    `weight.data`.

    Raises UsageError for options that `compile` does not take.
    """
    import torch
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    from torch._functorch.aot_autograd import aot_module_simplified

    choices = dict(options or {})
    check = choices.pop("check", True)
    asked = request(**choices, check=False)
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    devices = {each.device.type for each in tensors} - {"cpu"}
    if devices:
        warn(f"tensors on the device {min(devices)!r}: the backend compiles for the CPU only")
        return _forward(graph)
    try:
        # Another thread may be exporting a model, which changes the state that PyTorch traces with.
        records = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        with compiling, attention_by_products() if records else composites_whole():
            without_dropout(graph)
            inner = aot_module_simplified(
                graph,
                example_inputs,
                fw_compiler=functools.partial(_part, asked, check),
                bw_compiler=functools.partial(_part, asked, check),
                inference_compiler=functools.partial(_inference, asked, check),
                decompositions=backend_decompositions(),
                keep_inference_input_mutations=True,
            )
    except TensorifyScalarRestartAnalysis:  # PyTorch traces again
        raise
    except Exception as error:  # PyTorch's tracing raises many types of errors
        warn(reason_of(error))
        return _forward(graph)
    return _Graph(graph, inner)


class _Graph:
    """The function that Dynamo calls for a graph. It runs the code, or the graph itself in
    PyTorch."""

    def __init__(self, graph: Any, inner: Callable[..., Any]) -> None:
        self._forward, self._inner = _forward(graph), inner

    def __call__(self, *args: Any) -> Any:
        try:
            return self._inner(*args)
        except LeftToPyTorchError as error:
            if error.always:
                self._inner = self._forward
            if error.reason:
                warn(error.reason)
        return self._forward(*args)


def _part(asked: Any, check: bool, gm: Any, example_inputs: Sequence[Any]) -> Any:
    """Return the forward or the backward pass of a graph whose gradients are taken."""
    return _Part(gm, Compiled(gm, (), asked, check))


class _Part:
    """The function that AOTAutograd calls for a pass. It runs the code, or the pass in PyTorch."""

    _boxed_call = True

    def __init__(self, gm: Any, inner: Compiled) -> None:
        self._gm, self._inner = gm, inner
        self._left = False

    def __call__(self, args: list[Any]) -> Any:
        given = list(args)
        if not self._left:
            try:
                return self._inner(given)
            except LeftToPyTorchError as error:
                self._left = error.always
                if error.reason:
                    warn(error.reason)
        return self._gm(*args)


def _inference(asked: Any, check: bool, gm: Any, example_inputs: Sequence[Any]) -> Any:
    import torch

    context = torch._guards.TracingContext.try_get()
    found = context and context.fw_metadata and context.fw_metadata.static_input_indices
    return Compiled(gm, found or (), asked, check)


def _forward(graph: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = graph.forward
    return function


def warn(what: str) -> None:
    """Warn that a graph runs in PyTorch, once for each cause."""
    if what not in _WARNED:
        _WARNED.add(what)
        warnings.warn(
            f"torch.compile(backend='needle') leaves a graph to PyTorch: {what}", stacklevel=3
        )
