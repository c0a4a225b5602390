"""A model in an ONNX file, with random inputs that its graph accepts."""

from __future__ import annotations

from typing import Any

_LENGTH = 16  # size of open axes other than the first


def build(path: str, batch: int = 1) -> tuple[Any, list[Any]]:
    """Return the model and its inputs: `batch` samples along first axes that the graph leaves open.
    Other open axes have 16 elements. Raises ModelError for a file that needle cannot load."""
    import needle.onnx
    from needle.onnx.examples import examples

    model = needle.onnx.load(path)
    sizes: dict[str | int, int] = {}
    for info in model.graph_inputs:
        for axis, n in enumerate(info.shape or ()):
            if not isinstance(n, int):
                sizes.setdefault(axis if n is None else n, _LENGTH if axis else batch)
    return model, examples(model.graph_inputs, {}, sizes=sizes)
