"""The registry of models: each name, its factory, its twin in PyTorch, and its batches.

This package imports neither needle nor any other framework. A factory is named
`package.module:function` or `path/file.py:function`. The function returns (model, inputs): the
needle Module and its example inputs, an array or a tuple of arrays. It may take two keyword
arguments: `batch`, the number of samples in the inputs, and `state`, the names and arrays of a
weights file. A factory that can build many sizes reads its sizes from `state`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Model:
    """A model: its factory; the function of apps/peer_models.py that makes it in PyTorch ("" if
    there is none); the batches of a whole benchmark run, its default first; and the options that
    the factory takes besides the batch. `onnx` is the path of a model from an ONNX file."""

    factory: str
    twin: str = ""
    batches: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def onnx(self) -> str:
        return str(self.options["path"]) if self.factory == _ONNX_FILE else ""


_ONNX_FILE = "apps.models.onnx_file:build"


def mlp_model(*sizes: int, batches: tuple[int, ...] = (8, 1, 64), head: bool = False) -> Model:
    """Return an MLP: Linear and ReLU between adjacent sizes; with `head` no ReLU after the last."""
    options: dict[str, Any] = {"sizes": list(sizes)}
    if head:
        options = {"sizes": list(sizes[:-1]), "classes": sizes[-1]}
    return Model("apps.models.mlp:build", "mlp", batches, options)


def convnet_model(*batches: int, **options: Any) -> Model:
    """Return a plain convolutional net."""
    return Model("apps.models.convnet:build", "convnet", batches, options)


def encoder_model(*batches: int, **options: Any) -> Model:
    """Return a BERT-like encoder."""
    return Model("apps.models.bert:build", "bert", batches, options)


def language_model(**options: int) -> Model:
    """Return an LSTM language model."""
    return Model("apps.models.language:lstm", "LanguageModel", (16,), options)


def tiny_model(count: int) -> Model:
    """Return a model with almost no arithmetic on `count` inputs."""
    return Model("apps.models.single:tiny", "Tiny", (1,), {"count": count})


MODELS = {
    "mlp": mlp_model(*(512,) * 6, batches=(8, 1, 7, 64)),
    "conv": Model("apps.models.resnet:build", "resnet9", (8, 1, 2, 64)),
    "transformer": Model("apps.models.transformer:build", "Transformer", (8, 1, 64)),
    "mlp-784": mlp_model(784, 1000, 300, 10, head=True),
    "bert": encoder_model(1, 8),
    "resnet18": Model("apps.models.resnet18:build", "ResNet18", (1,)),
    "lstm": Model("apps.models.single:lstm", "LSTM", (1,)),
    "mobilenet": Model("apps.models.mobilenet:build", "MobileNet", (1,)),
    "mlp-100": mlp_model(*(100,) * 6, batches=(8,)),
    "mlp-256": mlp_model(*(256,) * 13, batches=(8,)),
    "mlp-300": mlp_model(*(300,) * 4, batches=(7,)),
    "mlp-300x4": mlp_model(*(300,) * 5, batches=(200,)),
    "mlp-391-777-333-50": mlp_model(391, 777, 333, 50, batches=(5,), head=True),
    "mlp-1000": mlp_model(*(1000,) * 3, batches=(1, 64)),
    "mlp-1024x3": mlp_model(*(1024,) * 4, batches=(1,)),
    "convnet": convnet_model(1),
    "encoder": encoder_model(2, length=100, size=320, heads=8, hidden=1280),
    **{f"tiny-{count}": tiny_model(count) for count in (1, 2, 6)},
    "matmul": Model("apps.models.single:matmul", "Matmul"),
    "attention": Model("apps.models.single:attention", "Sdpa"),
    "lstm-128": language_model(words=1000, size=128, length=20),
    "lstm-256": language_model(words=1000, size=256, length=35),
}
EVALUATED = ("mlp", "conv", "transformer")  # the models of the evaluation


def find(name: str) -> Model:
    """Return the model for a name in MODELS, for `FILE.py:function` or for `FILE.onnx`.

    Raises ValueError for anything else.
    """
    if name in MODELS:
        return MODELS[name]
    if name.endswith(".onnx"):
        if not Path(name).is_file():
            raise ValueError(f"model {name!r}: there is no such file")
        return Model(_ONNX_FILE, options={"path": str(Path(name).resolve())})
    if name.endswith(".py"):
        raise ValueError(f"model {name!r}: name the function that makes it, as in {name}:make")
    path, separator, function = name.rpartition(":")
    if separator and path.endswith(".py") and function:
        if not Path(path).is_file():
            raise ValueError(f"model {name!r}: there is no file {path}")
        return Model(f"{Path(path).resolve()}:{function}")
    raise ValueError(
        f"unknown model {name!r}: must be {', '.join(MODELS)}, FILE.py:function or FILE.onnx"
    )
