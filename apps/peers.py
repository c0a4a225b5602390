"""Other people's frameworks running the same model, set up as their own users would.

Each function is a factory of needle_tvm.timing and gets the same weights and inputs as ours.
`PEERS` says which of them exist for a model, and what must be installed for each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm.child import load_function
from needle_tvm.timing import Contestant


@dataclass(frozen=True)
class Peer:
    """A peer's name in tables, its factory in this file, and the modules it needs."""

    name: str
    factory: str
    modules: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]


TORCH_COMPILE = "torch.compile"

PEERS: dict[str, tuple[Peer, ...]] = {
    "mlp": (
        Peer("PyTorch eager", "torch_mlp", ("torch",)),
        Peer(TORCH_COMPILE, "torch_compile_mlp", ("torch",)),
        Peer("ONNX Runtime", "onnxruntime_mlp", ("onnx", "onnxruntime")),
    ),
    "conv": (
        Peer("PyTorch eager", "torch_conv", ("torch",)),
        Peer(TORCH_COMPILE, "torch_compile_conv", ("torch",)),
    ),
    "transformer": (
        Peer("PyTorch eager", "torch_transformer", ("torch",)),
        Peer(TORCH_COMPILE, "torch_compile_transformer", ("torch",)),
    ),
}


def contestants(model: str, weights: str, inputs: str, threads: int) -> list[Contestant]:
    """The installed peers of a named model; none for a model of the user's own."""
    files = {"weights": weights, "inputs": inputs, "threads": threads}
    return [
        Contestant(peer.name, f"{__file__}:{peer.factory}", files, threads=threads)
        for peer in PEERS.get(model, ())
        if not peer.missing
    ]


def missing(model: str) -> dict[str, list[str]]:
    """Peers of a named model that cannot run here, with the modules they lack."""
    return {peer.name: peer.missing for peer in PEERS.get(model, ()) if peer.missing}


def _layers(state: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray, bool]]:
    """(weight (in, out), bias (out,), is a ReLU next) of each layer of an MLP's state_dict."""
    prefixes = [name.removesuffix(".weight") for name in state if name.endswith(".weight")]
    return [
        (state[f"{prefix}.weight"], state[f"{prefix}.bias"].reshape(-1), prefix != "head")
        for prefix in prefixes
    ]


def _load(path: str) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def torch_mlp(weights: str, inputs: str, threads: int):
    """PyTorch in inference mode."""
    return _torch_contestant(_mlp, weights, inputs, threads)


def torch_compile_mlp(weights: str, inputs: str, threads: int):
    """PyTorch in inference mode through torch.compile, tuned as far as it goes."""
    return _torch_contestant(_mlp, weights, inputs, threads, compiled=True)


def torch_conv(weights: str, inputs: str, threads: int):
    """ResNet9 as `torch_mlp`."""
    return _torch_contestant(_peer_model("resnet9"), weights, inputs, threads)


def torch_compile_conv(weights: str, inputs: str, threads: int):
    """ResNet9 as `torch_compile_mlp`."""
    return _torch_contestant(_peer_model("resnet9"), weights, inputs, threads, compiled=True)


def torch_transformer(weights: str, inputs: str, threads: int):
    """The Transformer as `torch_mlp`."""
    return _torch_contestant(_peer_model("Transformer"), weights, inputs, threads)


def torch_compile_transformer(weights: str, inputs: str, threads: int):
    """The Transformer as `torch_compile_mlp`."""
    return _torch_contestant(_peer_model("Transformer"), weights, inputs, threads, compiled=True)


def _peer_model(name: str) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """A model of peer_models.py, which imports PyTorch."""
    return load_function(f"{Path(__file__).with_name('peer_models.py')}:{name}")


def _mlp(state: Mapping[str, np.ndarray]) -> Any:
    import torch

    modules: list[torch.nn.Module] = []
    for weight, bias, relu in _layers(state):
        linear = torch.nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(weight.T.copy()))
            linear.bias.copy_(torch.from_numpy(bias))
        modules += [linear, torch.nn.ReLU()] if relu else [linear]
    return torch.nn.Sequential(*modules)


def _torch_contestant(
    make: Callable[[Mapping[str, np.ndarray]], Any],
    weights: str,
    inputs: str,
    threads: int,
    compiled: bool = False,
):
    import torch

    torch.set_num_threads(threads)
    model = make(_load(weights)).eval()
    if compiled:
        model = torch.compile(model, mode="max-autotune")
    (x,) = (torch.from_numpy(array) for array in _load(inputs).values())

    def call() -> Any:
        with torch.inference_mode():
            return model(x)

    def outputs() -> list[np.ndarray]:
        found = call()
        return [part.numpy() for part in (found if isinstance(found, tuple) else (found,))]

    return call, outputs


def onnxruntime_mlp(weights: str, inputs: str, threads: int):
    """ONNX Runtime on a graph of Gemm and Relu nodes, with its graph optimisations all on.

    Inputs and outputs are bound once, so that a call neither copies nor allocates.
    """
    import onnxruntime

    (x,) = _load(inputs).values()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        _onnx_mlp(_layers(_load(weights)), x.shape), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(x))
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
        [x.shape[0], session.get_outputs()[0].shape[1]], np.float32
    )
    binding.bind_ortvalue_output("y", result)

    def call() -> None:
        session.run_with_iobinding(binding)

    return call, lambda: [result.numpy()]


def _onnx_mlp(layers: list[tuple[np.ndarray, np.ndarray, bool]], shape: tuple[int, ...]) -> bytes:
    from onnx import TensorProto, checker, helper, numpy_helper

    nodes, constants, value = [], [], "x"
    for number, (weight, bias, relu) in enumerate(layers):
        names = [f"weight{number}", f"bias{number}"]
        constants += [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for array, name in zip((weight, bias), names, strict=True)
        ]
        nodes.append(helper.make_node("Gemm", [value, *names], [f"dense{number}"]))
        value = f"dense{number}"
        if relu:
            nodes.append(helper.make_node("Relu", [value], [f"relu{number}"]))
            value = f"relu{number}"
    nodes[-1].output[0] = "y"
    outputs = layers[-1][0].shape[1]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (shape[0], outputs))],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString()
