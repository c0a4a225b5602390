"""PyTorch contestants, and PyTorch's exports for other contestants: ONNX and torch.export.

Each contestant has a factory for needle_runtime.process.timing, which gets needle's weights and
inputs.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apps import contestants, peer_models
from needle_runtime import device_clock
from needle_runtime.process.timing import Calls, ClockedCalls, Outputs, load_arrays

# The dtype of weights and activations. "tf32" is float32 with matmul operands that a GPU may round
# to 11 bits. torch.autocast is not used: in inference it casts weights on each call.
PRECISIONS = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


def load(
    twin: str,
    options: Mapping[str, Any],
    weights: str,
    inputs: str,
    threads: int,
    channels_last: bool = False,
    device: str = "cpu",
    precision: str = "float32",
) -> tuple[Any, list[list[Any]]]:
    """Return a model of peer_models.py with the saved weights, and the sets of inputs that
    `contestants.fresh` makes from the saved inputs, as tensors.

    `twin` names the model's function in peer_models.py. `options` are for needle's factory; the
    twin gets only the options that it has as parameters. `channels_last` sets the memory layout of
    weights and inputs with four axes. `precision` is a key of PRECISIONS; any other raises
    ValueError. On a GPU, "float32" turns off TF32, which PyTorch uses for convolutions by default,
    and cuDNN benchmarks its algorithms, which is best for fixed shapes.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r}: must be one of {', '.join(PRECISIONS)}")
    torch.set_num_threads(threads)
    narrow = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = narrow
    torch.backends.cudnn.benchmark = True
    make = getattr(peer_models, twin)
    known = inspect.signature(make).parameters
    net = make(
        contestants.load_named(weights), **{name: x for name, x in options.items() if name in known}
    )
    dtype = PRECISIONS[precision]

    def given(array: np.ndarray) -> Any:
        tensor = torch.from_numpy(array)
        if channels_last and tensor.dim() == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    if channels_last:
        net = net.to(memory_format=torch.channels_last)
    sets = [[given(array) for array in arrays] for arrays in contestants.fresh(load_arrays(inputs))]
    return net.to(device, dtype), sets


def forward(
    compiled: bool = False, frozen: bool = True, mode: str = "max-autotune", **kwargs: Any
) -> Calls | ClockedCalls:
    """Return a contestant: PyTorch in inference mode (see `called`). `kwargs` go to `load`."""
    net, sets = load(**kwargs)
    return called(net.eval(), [(given, {}) for given in sets], _arrays, compiled, frozen, mode)


def called(
    net: Any,
    sets: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
    read: Callable[[Any], Outputs],
    compiled: bool = False,
    frozen: bool = True,
    mode: str = "max-autotune",
) -> Calls | ClockedCalls:
    """Return a contestant that calls a module in inference mode on each set of arguments and
    keyword arguments. With `compiled`, torch.compile compiles the module in a `mode`
    ("max-autotune" uses CUDA graphs on a GPU); with `frozen` too, the weights become constants that
    the compiler may pack. `read` turns results into arrays."""
    if compiled:
        torch._inductor.config.freezing = frozen
        net = torch.compile(net, mode=mode)
    # A frozen model uses no_grad: in inference mode, freezing would have no effect.
    without_tape = torch.no_grad if compiled and frozen else torch.inference_mode

    def call(given: tuple[Sequence[Any], Mapping[str, Any]]) -> Any:
        with without_tape():
            return net(*given[0], **given[1])

    if any(tensor.is_cuda for tensor in sets[0][0]):
        return contestants.on_gpu(call, sets, torch.cuda.synchronize, read)
    return contestants.calls(call, sets, read)


def _arrays(found: Any) -> list[np.ndarray]:
    parts = found if isinstance(found, tuple) else (found,)
    narrow = (torch.bfloat16, torch.float16)  # NumPy lacks bfloat16
    wide = [part.float() if part.dtype in narrow else part for part in parts]
    return [np.asarray(part.cpu().numpy(), order="C") for part in wide]


def training(labels: str, **kwargs: Any) -> Calls | ClockedCalls:
    """Return a contestant like `training` of contestants.py, in PyTorch with a fused optimizer."""
    net, (tensors, *_) = load(**kwargs)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    device = tensors[0].device
    (targets,) = (torch.from_numpy(array).long().to(device) for array in load_arrays(labels))
    entropy = torch.nn.CrossEntropyLoss()

    def loss() -> Any:
        scores = net(*tensors)
        scores = scores[0] if isinstance(scores, tuple) else scores
        return entropy(scores.reshape(len(targets), -1), targets)

    def make(rate: float) -> Any:
        momentum = contestants.MOMENTUM
        return torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum, fused=True)

    def step(by: Any) -> Any:
        found = loss()
        found.backward()
        by.step()
        return found

    def outputs() -> list[np.ndarray]:
        net.load_state_dict(before)
        (first,) = _arrays(step(make(contestants.COMPARED_RATE)).detach())
        grads = peer_models.as_state(net, lambda parameter: parameter.grad)
        values = peer_models.as_state(net, lambda parameter: parameter)
        timed.zero_grad(set_to_none=True)
        (after,) = _arrays(loss().detach())
        return contestants.step_outputs(first, grads, values, after)

    def call() -> None:
        step(timed)
        timed.zero_grad(set_to_none=True)

    timed = make(contestants.TIMED_RATE)
    if device.type == "cpu":
        return call, outputs
    return device_clock.contestant(call, torch.cuda.synchronize, outputs)


def export_onnx(setup: dict[str, Any], messages: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """As a service, write a model as an ONNX file. `setup` has the file's `path`, the arguments of
    `load` and, optionally, `axes`: names for the dynamic axes of the model's only input."""
    path, axes = setup.pop("path"), setup.pop("axes", None)
    dynamic: dict[str, Any] = {}
    if axes:
        named = {int(axis): name for axis, name in axes.items()}
        dynamic = {"input_names": ["x"], "dynamic_axes": {"x": named}}
    net, (tensors, *_) = load(**setup)
    yield {"path": to_onnx(net.eval(), tensors, path, **dynamic)}


def to_onnx(module: Any, tensors: Sequence[Any], path: Path | str, **options: Any) -> str:
    """Write a module as an ONNX file with further options of torch.onnx.export; return its path."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # shapes become constants, as intended
        options = {"dynamo": False, "opset_version": 17, **options}
        torch.onnx.export(module, tuple(tensors), str(path), **options)
    return str(path)


def stock_tvm(**kwargs: Any) -> Calls:
    """Return a contestant: stock TVM, with its front end for torch.export and its own pipeline, but
    without a search. For a CPU, TVM has no schedules without a search."""
    from tvm.relax.frontend.torch import from_exported_program

    from needle_tvm._tvm.names import relax, tvm
    from needle_tvm.target.spec import resolve

    net, sets = load(**kwargs)
    net.eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.export.export(net, tuple(sets[0]))
        module = from_exported_program(exported)
    target = resolve("cpu", kwargs["threads"]).to_tvm()
    with target:
        built = relax.build(relax.get_pipeline("zero")(module), target=target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    given = [[tvm.runtime.tensor(x.numpy(), tvm.cpu()) for x in tensors] for tensors in sets]
    main = machine["main"]
    return contestants.calls(
        lambda tensors: main(*tensors),
        given,
        lambda found: [x.numpy() for x in ([found] if hasattr(found, "numpy") else found)],
    )
