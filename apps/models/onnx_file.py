"""A model in an ONNX file, with inputs drawn within what its graph allows."""

from __future__ import annotations

from typing import Any

_LENGTH = 16  # of the axes behind the first that the graph leaves open


def build(path: str, batch: int = 1) -> tuple[Any, list[Any]]:
    """The model and its inputs: `batch` samples, along the first axes that the graph leaves open.
    Other open axes have 16 elements. Raises ModelError for a file that needle cannot take."""
    import needle.onnx
    from needle.onnx.examples import examples

    model = needle.onnx.load(path)
    sizes: dict[str | int, int] = {}
    for info in model.graph_inputs:
        for axis, n in enumerate(info.shape or ()):
            if not isinstance(n, int):
                sizes.setdefault(axis if n is None else n, _LENGTH if axis else batch)
    return model, examples(model.graph_inputs, {}, sizes=sizes)
