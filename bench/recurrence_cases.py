"""The cases of `bench.recurrence`: layers and users' cells, their arrays and float64 results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from apps.contestants import fresh
from bench import recurrence_calls

MODES = ("forward", "gradient")

# (steps, batch, input, hidden, layers). The first three are `lstm`, `lstm-128` and `lstm-256` of
# apps/models; nothing was tuned for the others.
SIZES = (
    *((64, 1, 256, 256, 2), (20, 16, 64, 128, 2), (35, 16, 128, 256, 2)),
    *((16, 4, 32, 64, 1), (48, 8, 100, 130, 1), (128, 1, 64, 96, 1), (20, 33, 64, 200, 1)),
)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}

_B = (64, 8)  # steps and batch of users' cells
# The shapes of x and of the weights, as in tests/needle/loops/cells.py.
OWN: dict[str, tuple[tuple[int, ...], ...]] = {
    "peephole_lstm": ((*_B, 64), (8, 128), (8, 128), (64, 512), (128, 512), (512,), (3, 128)),
    "minimal_gru": ((*_B, 64), (8, 128), (2, 64, 128), (2, 128, 128), (2, 128)),
    "s6": ((*_B, 64), (64, 16), (64, 64), (64,), (64, 16), (64, 16), (64,)),
    "gated_linear_attention": ((*_B, 64), (64, 32), (64, 32), (64, 64), (64, 32)),
}


@dataclass(frozen=True)
class Recurrence:
    """The forward pass or the gradient (`mode`) of a layer or of a user's cell.

    `shapes` are the shapes of x and of the weights; `size` is a layer's size as text.
    """

    name: str
    mode: str
    shapes: tuple[tuple[int, ...], ...]
    size: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}{' ' * bool(self.size)}{self.size}, {self.mode}"

    @property
    def is_layer(self) -> bool:
        return self.name in recurrence_calls.LAYERS

    def arrays(self, steps: int | None = None) -> list[np.ndarray]:
        """Return random arrays: x, with `steps` steps if given, from a normal distribution, and
        weights from a narrow uniform distribution, as in layers."""
        rng = np.random.default_rng(0)
        first, *others = self.shapes
        x = rng.standard_normal((steps or first[0], *first[1:]), dtype=np.float32)
        return [x, *(rng.uniform(-0.1, 0.1, shape).astype(np.float32) for shape in others)]


def layer(name: str, size: Sequence[int], mode: str) -> Recurrence:
    """Return the case of a layer with this `size`, an entry of SIZES."""
    steps, batch, width, hidden, layers = size
    wide = GATES[name] * hidden
    shapes: list[tuple[int, ...]] = [(steps, batch, width)]
    for number in range(layers):
        shapes += [(hidden if number else width, wide), (hidden, wide), (wide,), (wide,)]
    return Recurrence(name, mode, tuple(shapes), "-".join(map(str, size)))


def layer_results(
    case: Recurrence, x: np.ndarray, weights: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return a layer's results for all sets of inputs, computed by PyTorch in float64."""
    import torch

    module = recurrence_calls.torch_module(case.name, weights).double()
    found = []
    for (each,) in fresh([x]):
        results = recurrence_calls.torch_results(module, case.mode, torch.from_numpy(each).double())
        found += recurrence_calls.as_ours(case.mode, results)
    return found


def own_results(case: Recurrence, x: np.ndarray, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return a cell's results for all sets of inputs, computed by eager needle in float64."""
    import needle as ndl

    leaves = [ndl.Tensor(each.astype("float64")) for each in weights]
    function = recurrence_calls.needle_function(case.name, leaves)
    given = leaves if case.mode == "gradient" else []
    function = recurrence_calls.needle_gradient(function) if given else function
    found: list[np.ndarray] = []
    for (each,) in fresh([x]):
        results = function(ndl.Tensor(each.astype("float64"), requires_grad=False), *given)
        found += [y.numpy() for y in (results if given else [results])]
    return found


def write_onnx(name: str, x: np.ndarray, weights: Sequence[np.ndarray], path: Path) -> str:
    """Write PyTorch's layer as an ONNX file and return the path. The file's only output is the
    layer's output sequence."""
    import torch

    from apps.torch_peers import to_onnx
    from bench.torch_layers import Function

    layer = recurrence_calls.torch_module(name, weights).eval().requires_grad_(False)
    return to_onnx(Function(lambda x: layer(x)[0]).eval(), [torch.from_numpy(x)], path)
