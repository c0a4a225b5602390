"""The models that tvm_eval.py knows by name. Imports neither needle nor any other framework.

A model is named by its factory, `package.module:function` or `path/file.py:function`. The
function returns (model, inputs): the needle Module and its example inputs, an array or a tuple of
arrays. It may take two keyword arguments: `batch`, the number of samples in the inputs, and
`state`, the names and arrays of a weights file, from which a factory that can be built in many
sizes takes its sizes.
"""

from __future__ import annotations

from pathlib import Path

FACTORIES = {
    "mlp": "apps.models.mlp:build",
    "conv": "apps.models.resnet:build",
    "transformer": "apps.models.transformer:build",
}


def factory(name: str) -> str:
    """The factory of a model given as one of the names above, as `FILE.py:function` or as
    `FILE.onnx`; that of ONNX files takes the options of `options`.

    Raises ValueError for anything else.
    """
    if name in FACTORIES:
        return FACTORIES[name]
    if name.endswith(".onnx"):
        if not Path(name).is_file():
            raise ValueError(f"model {name!r}: there is no such file")
        return "apps.models.onnx_file:build"
    if name.endswith(".py"):
        raise ValueError(f"model {name!r}: which of its functions makes it? As in {name}:make")
    path, separator, function = name.rpartition(":")
    if separator and path.endswith(".py") and function:
        if not Path(path).is_file():
            raise ValueError(f"model {name!r}: there is no file {path}")
        return f"{Path(path).resolve()}:{function}"
    raise ValueError(
        f"unknown model {name!r}: must be {', '.join(FACTORIES)}, FILE.py:function or FILE.onnx"
    )


def options(name: str) -> dict[str, str]:
    """The keyword arguments that a model's name gives its factory."""
    return {"path": str(Path(name).resolve())} if name.endswith(".onnx") else {}
