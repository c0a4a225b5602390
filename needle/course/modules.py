"""The course's module paths, such as `needle.nn.nn_basic`."""

from __future__ import annotations

from typing import Any

import numpy as np

import needle

from .. import autograd, init, nn, ops
from .. import backend_ndarray as nd
from .. import data as datasets
from ..autograd.tensor import Tensor
from ..nn import Module, Parameter
from ..nn.functional import basic
from .patches import Patches

# The contents of each path: a package, and the names that come from it.
PATHS: dict[str, tuple[Any, str]] = {
    "needle.nn.nn_basic": (
        nn,
        "Parameter Module Identity Linear Flatten ReLU Sequential SoftmaxLoss BatchNorm1d "
        "BatchNorm2d LayerNorm1d Dropout Residual",
    ),
    "needle.nn.nn_conv": (nn, "Conv Module Parameter"),
    "needle.nn.nn_sequence": (nn, "Sigmoid RNNCell RNN LSTMCell LSTM Embedding Module Parameter"),
    "needle.nn.nn_transformer": (
        nn,
        "MultiHeadAttention AttentionLayer TransformerLayer Transformer Module Parameter",
    ),
    "needle.ops.ops_mathematic": (
        ops,
        "EWiseAdd AddScalar EWiseMul MulScalar EWisePow PowerScalar EWiseDiv DivScalar Transpose "
        "Reshape BroadcastTo Summation MatMul Negate Log Exp ReLU Tanh Stack Split Flip Dilate "
        "UnDilate Conv add add_scalar multiply mul_scalar power power_scalar divide divide_scalar "
        "transpose reshape broadcast_to summation matmul negate log exp relu tanh stack split flip "
        "dilate undilate conv Op TensorOp TensorTupleOp Value Tensor TensorTuple NDArray",
    ),
    "needle.ops.ops_logarithmic": (
        ops,
        "LogSoftmax LogSumExp logsoftmax logsumexp Op TensorOp Value Tensor TensorTuple NDArray",
    ),
    "needle.ops.ops_tuple": (
        ops,
        "MakeTuple TupleGetItem FusedAddScalars make_tuple tuple_get_item fused_add_scalars "
        "TensorOp TensorTupleOp Value Tensor TensorTuple",
    ),
    "needle.data.data_basic": (datasets, "Dataset DataLoader"),
    "needle.data.data_transforms": (datasets, "Transform RandomFlipHorizontal RandomCrop"),
    "needle.data.datasets": (
        datasets,
        "MNISTDataset CIFAR10Dataset NDArrayDataset Dictionary Corpus batchify get_batch",
    ),
    "needle.data.datasets.mnist_dataset": (datasets, "MNISTDataset Dataset"),
    "needle.data.datasets.cifar10_dataset": (datasets, "CIFAR10Dataset Dataset"),
    "needle.data.datasets.ndarray_dataset": (datasets, "NDArrayDataset Dataset"),
    "needle.data.datasets.ptb_dataset": (datasets, "Dictionary Corpus batchify get_batch"),
    "needle.init.init_basic": (
        init,
        "rand randn constant ones zeros randb one_hot zeros_like ones_like",
    ),
    "needle.init.init_initializers": (
        init,
        "xavier_uniform xavier_normal kaiming_uniform kaiming_normal",
    ),
}


def _unpack_params(value: object) -> list[Tensor]:
    """Return the parameters in a module, dict, list or tuple."""
    if isinstance(value, Parameter):
        return [value]
    if isinstance(value, Module):
        return list(value.parameters())
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        return [param for item in inside for param in _unpack_params(item)]  # type: ignore
    return []


def _child_modules(value: object) -> list[Module]:
    """Return the modules in a dict, list or tuple; for a module, return it and all modules below
    it."""
    if isinstance(value, Module):
        return list(value.modules_below())
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, list, tuple)):
        return [module for item in inside for module in _child_modules(item)]  # type: ignore
    return []


def _children(self: Module) -> list[Module]:
    """Return the modules below this one."""
    return self.modules_below()[1:]


def install(patches: Patches, backend: str) -> None:
    """Make the paths importable."""
    patches.add(nn.Module, _children=_children)
    patches.set(basic, "takes_floats", True)
    for path, (package, names) in PATHS.items():
        contents = {name: getattr(package, name) for name in names.split()}
        if path == "needle.nn.nn_basic":
            contents.update(_unpack_params=_unpack_params, _child_modules=_child_modules)
        module = patches.module(path, contents)
        if path == "needle.data.datasets":
            module.__path__ = []  # a package, because there are modules below it
    api = np if backend == "np" else nd
    devices = {name: getattr(nd, name) for name in ("Device", "cpu", "cuda", "cpu_numpy")}
    devices |= {name: getattr(nd, name) for name in ("all_devices", "default_device")}
    selection = {"array_api": api, "BACKEND": backend, "NDArray": nd.NDArray, **devices}
    patches.module("needle.backend_selection", selection)
    patches.module("needle.backend_numpy", devices)
    patches.add(needle, Device=nd.Device, broadcast_to=ops.broadcast_to)
    patches.add(autograd, needle=needle)
