"""The apps' models in PyTorch, with a needle state_dict's weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import nn

State = Mapping[str, np.ndarray]

# Facts that the shapes of the weights do not show.
_STRIDES = {7: 4, 3: 2}
_RESIDUAL = "fn.modules"
_HEADS = 8


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))


def learned(state: State, name: str, axes: tuple[int, ...] | None = None) -> nn.Parameter:
    """Return a parameter from the array at `name`, its axes permuted; without `axes`, a bias
    becomes 1-d.

    The parameter records its origin for `as_state`.
    """
    array = state[name]
    if axes is None:
        axes = tuple(range(array.ndim))
        found = array.reshape(-1) if name.endswith("bias") else array
    else:
        found = array.transpose(axes)
    parameter = nn.Parameter(_tensor(found))
    parameter.origin = (name, axes, tuple(array.shape))
    return parameter


def as_state(model: nn.Module, of: Callable[[nn.Parameter], torch.Tensor]) -> dict[str, np.ndarray]:
    """Return of(parameter) for each parameter (its gradient, say), in needle's names and layout."""
    found = {}
    for parameter in model.parameters():
        name, axes, shape = parameter.origin
        array = of(parameter).detach().cpu().numpy()
        back = array.transpose(np.argsort(axes)) if array.ndim == len(axes) else array
        found[name] = np.array(back.reshape(shape))
    return found


def linear(state: State, name: str) -> nn.Linear:
    """Return needle's Linear at `name`: weight (in, out), bias (1, out) or none."""
    bias = f"{name}.bias" in state
    layer = nn.Linear(*state[f"{name}.weight"].shape, bias=bias)
    layer.weight = learned(state, f"{name}.weight", (1, 0))
    if bias:
        layer.bias = learned(state, f"{name}.bias")
    return layer


def mlp(state: State) -> nn.Module:
    """Return the model of models/mlp.py, with as many layers as there are weights."""
    modules: list[nn.Module] = []
    for name in state:
        if name.endswith(".weight"):
            layer = linear(state, name.removesuffix(".weight"))
            modules += [layer] if name == "head.weight" else [layer, nn.ReLU()]
    return nn.Sequential(*modules)


def convolution(state: State, name: str, stride: int = 1) -> nn.Conv2d:
    """Return needle's Conv at `name`: weight (k, k, in / groups, out), padded by k // 2. If the
    weight has one input channel, there are as many groups as outputs."""
    size, _, inputs, outputs = state[f"{name}.weight"].shape
    groups = outputs if inputs == 1 else 1
    bias = f"{name}.bias" in state
    conv = nn.Conv2d(
        inputs * groups, outputs, size, stride, padding=size // 2, groups=groups, bias=bias
    )
    conv.weight = learned(state, f"{name}.weight", (3, 2, 0, 1))
    if bias:
        conv.bias = learned(state, f"{name}.bias")
    return conv


def convnet(state: State, strides: Sequence[int] = (1, 1, 1, 1)) -> nn.Module:
    """Return the model of models/convnet.py."""
    modules: list[nn.Module] = []
    for number, stride in enumerate(strides):
        modules += [convolution(state, f"convs.{number}", stride), nn.ReLU()]
    return nn.Sequential(*modules)


class Tiny(nn.Module):
    """`tiny` of models/single.py."""

    def __init__(self, state: State) -> None:
        super().__init__()
        count = sum(name.endswith(".weight") for name in state)
        self.linears = nn.ModuleList(linear(state, f"linears.{i}") for i in range(count))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        layers = zip(self.linears, inputs, strict=True)
        found = tuple(torch.relu(layer(x)) for layer, x in layers)
        return found if len(found) > 1 else found[0]


def batch_norm(state: State, name: str) -> nn.BatchNorm2d:
    """Return needle's BatchNorm2d at `name`."""
    norm = nn.BatchNorm2d(state[f"{name}.weight"].size)
    norm.weight, norm.bias = (learned(state, f"{name}.{key}") for key in ("weight", "bias"))
    norm.running_mean, norm.running_var = (
        _tensor(state[f"{name}.running_{key}"]) for key in ("mean", "var")
    )
    return norm


def conv_norm(state: State, name: str, stride: int) -> nn.Sequential:
    """Return the Conv and the BatchNorm2d of the module at `name`."""
    return nn.Sequential(
        convolution(state, f"{name}.conv", stride), batch_norm(state, f"{name}.norm")
    )


def conv_bn(state: State, name: str) -> nn.Sequential:
    """Return ResNet9's ConvBN at `name`; its stride follows from its shape and position."""
    size = state[f"{name}.conv.weight"].shape[0]
    stride = 1 if _RESIDUAL in name else _STRIDES[size]
    return nn.Sequential(*conv_norm(state, name, stride), nn.ReLU())


class Residual(nn.Module):
    """x + fn(x)."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x) + x


def resnet9(state: State) -> nn.Module:
    """Return the model of models/resnet.py."""
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


class Block(nn.Module):
    """The block of models/resnet18.py at `name`."""

    def __init__(self, state: State, name: str, stride: int) -> None:
        super().__init__()
        self.first = conv_norm(state, f"{name}.first", stride)
        self.second = conv_norm(state, f"{name}.second", 1)
        shortcut = f"{name}.shortcut"
        projects = f"{shortcut}.conv.weight" in state
        self.shortcut = conv_norm(state, shortcut, stride) if projects else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(x) + self.second(torch.relu(self.first(x))))


class ResNet18(nn.Module):
    """The model of models/resnet18.py."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(state, "stem", 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        self.blocks = nn.Sequential(
            *(Block(state, f"blocks.modules.{i}", stride) for i, stride in enumerate(strides))
        )
        self.head = linear(state, "head")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class MobileNet(nn.Module):
    """The model of models/mobilenet.py."""

    def __init__(self, state: State) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, stride in enumerate((1, 2, 1, 2, 1)):
            at = f"blocks.modules.{number}"
            for part, step in (("depthwise", stride), ("pointwise", 1)):
                conv = convolution(state, f"{at}.{part}", step)
                layers += [conv, batch_norm(state, f"{at}.{part}_norm"), nn.ReLU()]
        self.blocks = nn.Sequential(*layers)
        self.head = linear(state, "head")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x).mean((2, 3)))


def layer_norm(state: State, name: str) -> nn.LayerNorm:
    """Return needle's LayerNorm1d at `name`."""
    norm = nn.LayerNorm(state[f"{name}.weight"].size)
    norm.weight, norm.bias = (learned(state, f"{name}.{key}") for key in ("weight", "bias"))
    return norm


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
        self.positions = learned(state, "positions.weight")
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


class EncoderLayer(nn.Module):
    """The layer of models/bert.py at `name`; the weights do not determine `heads`."""

    def __init__(self, state: State, name: str, heads: int) -> None:
        super().__init__()
        at = f"{name}.attention"
        self.heads = heads
        self.projections = nn.ModuleList(
            linear(state, f"{at}.{part}") for part in ("query", "key", "value")
        )
        self.output = linear(state, f"{at}.output")
        self.attention_norm = layer_norm(state, f"{name}.attention_norm")
        self.mlp = nn.Sequential(
            linear(state, f"{name}.mlp.modules.0"),
            nn.GELU(),
            linear(state, f"{name}.mlp.modules.2"),
        )
        self.mlp_norm = layer_norm(state, f"{name}.mlp_norm")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = (
            project(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for project in self.projections
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.attention_norm(x + self.output(mixed.transpose(1, 2).reshape(batch, length, size)))
        return self.mlp_norm(x + self.mlp(x))


def bert(state: State, heads: int = 12) -> nn.Module:
    """Return the model of models/bert.py."""
    count = sum(name.endswith("attention_norm.weight") for name in state)
    return nn.Sequential(*(EncoderLayer(state, f"modules.{i}", heads) for i in range(count)))


def lstm_layers(state: State, name: str) -> nn.LSTM:
    """Return needle's LSTM with its cells at `name`."""
    count = sum(key.startswith(name) and key.endswith(".W_ih") for key in state)
    inputs = state[f"{name}.0.W_ih"].shape[0]
    layers = nn.LSTM(inputs, state[f"{name}.0.W_hh"].shape[0], count)
    for layer in range(count):
        for part in ("ih", "hh"):
            weight = learned(state, f"{name}.{layer}.W_{part}", (1, 0))
            setattr(layers, f"weight_{part}_l{layer}", weight)
            setattr(layers, f"bias_{part}_l{layer}", learned(state, f"{name}.{layer}.bias_{part}"))
    return layers


class LSTM(nn.Module):
    """`lstm` of models/single.py: (output, h, c)."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.lstm = lstm_layers(state, "lstm_cells")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found, (h, c) = self.lstm(x)
        return found, h, c


class LanguageModel(nn.Module):
    """The LSTM language model of models/language.py, without dropout: (scores, h, c)."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.embedding = nn.Embedding(*state["embedding.weight"].shape)
        self.embedding.weight = learned(state, "embedding.weight")
        self.lstm = lstm_layers(state, "seq_model.lstm_cells")
        self.linear = linear(state, "linear")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        words, (h, c) = self.lstm(self.embedding(x))
        return self.linear(words.flatten(0, 1)), h, c


class Matmul(nn.Module):
    """The product a @ b; it has no weights."""

    def __init__(self, state: State) -> None:
        super().__init__()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


class Sdpa(nn.Module):
    """PyTorch's own attention; it has no weights."""

    def __init__(self, state: State) -> None:
        super().__init__()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)
