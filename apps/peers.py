"""Other people's frameworks running the same model, set up as their own users would.

Each function is a factory of needle_tvm.timing and gets the same weights and inputs as ours.
`PEERS` says which of them exist for a model, and what must be installed for each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from needle_tvm.child import load_function, load_module
from needle_tvm.timing import Contestant


@dataclass(frozen=True)
class Peer:
    """A peer's name in tables, its factory in this file with options, and modules it needs."""

    name: str
    factory: str
    modules: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Modules that are not installed."""
        return [name for name in self.modules if importlib.util.find_spec(name) is None]


TORCH_EAGER = "PyTorch eager"
TORCH_COMPILE = "torch.compile"

# The function of peer_models.py that makes each model.
TORCH_MODELS = {
    "mlp": "mlp",
    "conv": "resnet9",
    "transformer": "Transformer",
    "lstm": "LanguageModel",
}


def _torch_peers(model: str) -> tuple[Peer, ...]:
    return (
        Peer(TORCH_EAGER, "torch_eager", ("torch",), {"model": model}),
        Peer(TORCH_COMPILE, "torch_eager", ("torch",), {"model": model, "compiled": True}),
    )


PEERS: dict[str, tuple[Peer, ...]] = {model: _torch_peers(model) for model in TORCH_MODELS}
PEERS["mlp"] += (Peer("ONNX Runtime", "onnxruntime_mlp", ("onnx", "onnxruntime")),)


def contestants(model: str, weights: str, inputs: str, threads: int) -> list[Contestant]:
    """The installed peers of a named model; none for a model of the user's own."""
    files = {"weights": weights, "inputs": inputs, "threads": threads}
    return [
        Contestant(
            peer.name, f"{__file__}:{peer.factory}", {**peer.options, **files}, threads=threads
        )
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


def load_named(path: str) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def torch_eager(
    model: str,
    weights: str,
    inputs: str,
    threads: int,
    compiled: bool = False,
    channels_last: bool = False,
):
    """PyTorch in inference mode; `compiled`: through torch.compile, tuned as far as it goes."""
    import torch

    net, tensors = load_torch(model, weights, inputs, threads, channels_last)
    net.eval()
    run = torch.compile(net, mode="max-autotune") if compiled else net

    def call() -> Any:
        with torch.inference_mode():
            return run(*tensors)

    def outputs() -> list[np.ndarray]:
        found = call()
        return [part.numpy() for part in (found if isinstance(found, tuple) else (found,))]

    return call, outputs


def load_torch(
    model: str, weights: str, inputs: str, threads: int, channels_last: bool = False
) -> tuple[Any, list[Any]]:
    """A model of peer_models.py with the saved weights, and the saved inputs as tensors.

    With `channels_last` weights and inputs of four axes lie in that order in memory.
    """
    import torch

    torch.set_num_threads(threads)
    make = load_function(f"{Path(__file__).with_name('peer_models.py')}:{TORCH_MODELS[model]}")
    net = make(load_named(weights))
    tensors = [torch.from_numpy(array) for array in load_named(inputs).values()]
    if channels_last:
        net = net.to(memory_format=torch.channels_last)
        tensors = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
    return net, tensors


def torch_training(
    model: str,
    weights: str,
    inputs: str,
    labels: str,
    optimizer: str,
    threads: int,
    channels_last: bool = False,
):
    """`training` of contestants.py in PyTorch, with the optimizer's fused form."""
    import torch

    side = load_module(Path(__file__).with_name("contestants.py"))
    models = load_module(Path(__file__).with_name("peer_models.py"))
    net, tensors = load_torch(model, weights, inputs, threads, channels_last)
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    (targets,) = (torch.from_numpy(array).long() for array in side.load_arrays(labels))
    entropy = torch.nn.CrossEntropyLoss()

    def loss() -> Any:
        scores = net(*tensors)
        scores = scores[0] if isinstance(scores, tuple) else scores
        return entropy(scores.reshape(len(targets), -1), targets)

    def make(rate: float) -> Any:
        if optimizer == "adam":
            return torch.optim.Adam(net.parameters(), lr=rate, fused=True)
        momentum = side.MOMENTUM
        sgd = torch.optim.SGD(
            net.parameters(), lr=rate, momentum=momentum, dampening=momentum, fused=True
        )
        for parameter in net.parameters():  # needle's average starts at zero
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return sgd

    def step(by: Any) -> Any:
        found = loss()
        found.backward()
        by.step()
        return found

    def outputs() -> list[np.ndarray]:
        net.load_state_dict(before)
        first = step(make(side.COMPARED_RATE[optimizer])).detach().numpy()
        grads = models.as_state(net, lambda parameter: parameter.grad)
        values = models.as_state(net, lambda parameter: parameter)
        timed.zero_grad(set_to_none=True)
        return side.step_outputs(optimizer, first, grads, values, loss().detach().numpy())

    def call() -> None:
        step(timed)
        timed.zero_grad(set_to_none=True)

    timed = make(side.TIMED_RATE)
    return call, outputs


def onnxruntime_mlp(weights: str, inputs: str, threads: int):
    """ONNX Runtime on a graph of Gemm and Relu nodes, with its graph optimisations all on.

    Inputs and outputs are bound once, so that a call neither copies nor allocates.
    """
    import onnxruntime

    (x,) = load_named(inputs).values()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(
        _onnx_mlp(_layers(load_named(weights)), x.shape),
        options,
        providers=["CPUExecutionProvider"],
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
