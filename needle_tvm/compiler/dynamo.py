"""`torch.compile(model, backend="needle")`, by PyTorch's entry point `torch_dynamo_backends`.

PyTorch gives a backend a graph and example inputs, weights among them. The graph is compiled for
the sizes of each call, a few of them, and the weights are packed once; they are taken anew when
their storage or their version has changed. Whatever cannot be compiled runs in PyTorch, with one
warning that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from needle_tvm.compiler.compiler import compile_torch
from needle_tvm.compiler.executable import Executable
from needle_tvm.errors import NeedleTVMError

_MOST_SIZES = 8  # of one graph, that code is made for

_WARNED: set[str] = set()


def needle(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: a function that does what the graph does, which is a `torch.fx.GraphModule`.

    `options` are the keywords of `compile_torch`: `torch.compile(model, backend="needle",
    options={"stage": "fused"})`. Only inference is compiled, under `torch.no_grad()` or
    `torch.inference_mode()`. Writes to a weight by way of `weight.data` are not seen.
    """
    import torch

    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        _warn("training: for inference, call the model under torch.no_grad()")
        return _forward(graph)
    devices = {each.device.type for each in tensors} - {"cpu"}
    if devices:
        _warn(f"tensors on the device {min(devices)!r}: the backend compiles for the processor")
        return _forward(graph)
    return _Compiled(graph, example_inputs, dict(options or {}))


def _forward(graph: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = graph.forward
    return function


def _warn(what: str) -> None:
    if what not in _WARNED:
        _WARNED.add(what)
        warnings.warn(
            f"torch.compile(backend='needle') leaves a graph to PyTorch: {what}", stacklevel=2
        )


class _Compiled:
    """A graph and the code for it, by the sizes of its inputs."""

    def __init__(self, graph: Any, example_inputs: Sequence[Any], options: dict[str, Any]) -> None:
        self._graph, self._options = graph, options
        self._held = [at for at, each in enumerate(example_inputs) if _is_weight(each)]
        is_held = set(self._held)
        self._given = [at for at in range(len(example_inputs)) if at not in is_held]
        self._code: dict[Any, _Code | None] = {}

    def __call__(self, *args: Any) -> Any:
        weights = [args[at] for at in self._held]
        inputs = [args[at] for at in self._given]
        key = tuple(map(_kind, inputs))
        if key not in self._code:
            self._code[key] = self._compiled(weights, inputs)
        code = self._code[key]
        return self._graph(*args) if code is None else code(weights, inputs)

    def _compiled(self, weights: Sequence[Any], inputs: Sequence[Any]) -> _Code | None:
        if len(self._code) >= _MOST_SIZES:
            _warn(f"more than {_MOST_SIZES} sizes of its inputs")
            return None
        model = _module(self._graph, self._held, self._given, weights)
        try:
            return _Code(compile_torch(model, *inputs, **self._options), weights)
        except NeedleTVMError as error:
            _warn(str(error))
            return None


class _Code:
    """Compiled code that follows the weights of a graph."""

    def __init__(self, executable: Executable, weights: Sequence[Any]) -> None:
        self._executable = executable
        self._names = [entry.name for entry in executable.artifact.main.params]
        self._seen = list(map(_state, weights))

    def __call__(self, weights: Sequence[Any], inputs: Sequence[Any]) -> Any:
        states = list(map(_state, weights))
        if states != self._seen:
            named = {_name(number): each.detach() for number, each in enumerate(weights)}
            self._executable.set_params({name: named[name] for name in self._names})
            self._seen = states
        return _as_torch(self._executable(*[_detached(each) for each in inputs]))


def _as_torch(value: Any) -> Any:
    """Results with torch's tensors, which share the memory of needle's."""
    import torch

    if isinstance(value, (tuple, list)):
        return type(value)(map(_as_torch, value))
    return torch.from_dlpack(value) if hasattr(value, "__dlpack__") else value


def _detached(value: Any) -> Any:
    return value.detach() if hasattr(value, "detach") else value


def _is_weight(value: Any) -> bool:
    """Whether an input is a parameter or a buffer of the model, as PyTorch marks them."""
    import torch

    is_marked = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, torch.nn.Parameter) or is_marked


def _kind(value: Any) -> Any:
    """What code is made for: shapes and dtypes, and numbers themselves."""
    return (tuple(value.shape), value.dtype) if hasattr(value, "shape") else value


def _state(weight: Any) -> tuple[int, int]:
    """Changes when a weight does. Tensors made in inference mode count no versions."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version


def _name(number: int) -> str:
    return f"weight_{number}"


def _module(graph: Any, held: Sequence[int], given: Sequence[int], weights: Sequence[Any]) -> Any:
    """The graph as a module with these weights."""
    import torch

    class Graph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number, each in enumerate(weights):
                value = torch.nn.Parameter(each.detach(), requires_grad=False)
                self.register_parameter(_name(number), value)

        def forward(self, *inputs: Any) -> Any:
            args = dict(zip(given, inputs, strict=True))
            args |= {at: getattr(self, _name(number)) for number, at in enumerate(held)}
            return graph(*[args[at] for at in range(len(args))])

    return Graph().eval()
