"""ResNet9 and the Transformer in PyTorch, with a needle state_dict's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

State = Mapping[str, np.ndarray]

# DESIGN's numbers, which weights do not show
_STRIDES = {7: 4, 3: 2}
_RESIDUAL = "fn.modules"
_HEADS = 8


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))


def _put(module: nn.Module, values: Mapping[str, torch.Tensor]) -> Any:
    missing, unexpected = module.load_state_dict(values, strict=False)
    assert not unexpected and set(missing) <= {"num_batches_tracked"}, (missing, unexpected)
    return module


def linear(state: State, name: str) -> nn.Linear:
    """needle's Linear at `name`: weight (in, out), bias (1, out) or none."""
    weight = state[f"{name}.weight"]
    bias = state.get(f"{name}.bias")
    values = {"weight": _tensor(weight.T)}
    if bias is not None:
        values["bias"] = _tensor(bias.reshape(-1))
    return _put(nn.Linear(*weight.shape, bias=bias is not None), values)


def conv_bn(state: State, name: str) -> nn.Sequential:
    """needle's ConvBN at `name`: weight (k, k, in, out); a stride follows from shape and place."""
    weight = state[f"{name}.conv.weight"]
    size, _, inputs, outputs = weight.shape
    stride = 1 if _RESIDUAL in name else _STRIDES[size]
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2)
    norm = nn.BatchNorm2d(outputs)
    values = {"weight": _tensor(weight.transpose(3, 2, 0, 1))}
    _put(conv, {**values, "bias": _tensor(state[f"{name}.conv.bias"])})
    names = ("weight", "bias", "running_mean", "running_var")
    _put(norm, {key: _tensor(state[f"{name}.norm.{key}"]) for key in names})
    return nn.Sequential(conv, norm, nn.ReLU())


class Residual(nn.Module):
    """x + fn(x)."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x) + x


def resnet9(state: State) -> nn.Module:
    """The model of models/resnet.py."""
    at = "model.modules"

    def around(number: int) -> Residual:
        blocks = [conv_bn(state, f"{at}.{number}.{_RESIDUAL}.{i}") for i in range(2)]
        return Residual(nn.Sequential(*blocks))

    return nn.Sequential(
        conv_bn(state, f"{at}.0"),
        conv_bn(state, f"{at}.1"),
        around(2),
        conv_bn(state, f"{at}.3"),
        conv_bn(state, f"{at}.4"),
        around(5),
        nn.Flatten(),
        linear(state, f"{at}.7"),
        nn.ReLU(),
        linear(state, f"{at}.9"),
    )


def layer_norm(state: State, name: str) -> nn.LayerNorm:
    """needle's LayerNorm1d at `name`."""
    values = {key: _tensor(state[f"{name}.{key}"]) for key in ("weight", "bias")}
    return _put(nn.LayerNorm(len(values["weight"])), values)


class Attention(nn.Module):
    """Pre-norm on q, k and v each, then scaled dot product attention; not causal."""

    def __init__(self, state: State, name: str) -> None:
        super().__init__()
        parts = "qkv"
        self.norms = nn.ModuleList(layer_norm(state, f"{name}.prenorm_{p}") for p in parts)
        self.projections = nn.ModuleList(linear(state, f"{name}.{p}_projection") for p in parts)
        self.out = linear(state, f"{name}.out_projection")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            project(norm(x)).view(batch, length, _HEADS, -1).transpose(1, 2)
            for norm, project in zip(self.norms, self.projections, strict=True)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Transformer(nn.Module):
    """The model of models/transformer.py."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.register_buffer("positions", _tensor(state["positions.weight"]))
        count = sum(name.endswith("out_projection.weight") for name in state)
        layers = [f"layers.{i}" for i in range(count)]
        self.attentions = nn.ModuleList(Attention(state, f"{at}.attention") for at in layers)
        self.mlps = nn.ModuleList(
            nn.Sequential(
                layer_norm(state, f"{at}.mlp.modules.0"),
                linear(state, f"{at}.mlp.modules.1"),
                nn.ReLU(),
                linear(state, f"{at}.mlp.modules.4"),
            )
            for at in layers
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.positions[: x.shape[1]]
        for attention, mlp in zip(self.attentions, self.mlps, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return x, torch.zeros_like(x)
