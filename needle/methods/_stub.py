"""`python -m needle.methods._stub` writes the types of Tensor's methods.

It writes them to `autograd/tensor_methods.pyi`, so that a type checker knows Tensor before it reads
the ops, whose types refer to Tensor.
"""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import backend_ndarray
from ..autograd import shapes, tensor
from .binding import TensorMethods, TupleMethods
from .indexed_update import At, IndexUpdate

STUB = Path(tensor.__file__).with_name("tensor_methods.pyi")
_HEAD = """\
# ruff: noqa: E501
# fmt: off
# mypy: disable-error-code="misc, override"
# Written by `python -m needle.methods._stub`, from the files of needle/methods.
"""
_SOURCES: dict[str, ModuleType] = {  # where the names in annotations are defined
    "collections.abc": collections.abc,
    "typing": typing,
    "..backend_ndarray": backend_ndarray,
    ".shapes": shapes,
    ".tensor": tensor,
}
_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def text() -> str:
    """Return the text of the stub."""
    bases = [base for base in TensorMethods.__bases__ if base is not object]
    names: dict[str, str] = {"Protocol": "typing"}
    written = [_class(cls, "Protocol", names) for cls in (IndexUpdate, At)]
    written += [_class(cls, "", names) for cls in bases]
    written.append(_class(TensorMethods, ", ".join(base.__name__ for base in bases), names))
    written.append(_class(TupleMethods, "", names))
    imports = [
        f"from {source} import {', '.join(sorted(n for n in names if names[n] == source))}\n"
        for source in _SOURCES
        if source in names.values()
    ]
    library, own = imports[:2], imports[2:]
    return "\n".join([_HEAD, "".join(library), "".join(own), *written])


def _class(cls: type, bases: str, names: dict[str, str]) -> str:
    lines = [f"class {cls.__name__}{f'({bases})' if bases else ''}:\n"]
    for name, member in vars(cls).items():
        if isinstance(member, property) and member.fget is not None:
            lines.append("    @property\n" + _method(name, member.fget, names))
        elif inspect.isfunction(member) and name != "__init__":
            lines.append(_method(name, member, names))
    return "".join(lines)


def _method(name: str, function: Any, names: dict[str, str]) -> str:
    signature = inspect.signature(function)
    written, is_starred = ["self"], False
    for parameter in list(signature.parameters.values())[1:]:
        star = _STARS.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not is_starred:
            written.append("*")
        is_starred = is_starred or bool(star) or parameter.kind is parameter.KEYWORD_ONLY
        default = "" if parameter.default is parameter.empty else " = ..."
        written.append(f"{star}{parameter.name}: {parameter.annotation}{default}")
    returned = signature.return_annotation
    for annotation in (*(p.annotation for p in signature.parameters.values()), returned):
        _note(annotation, function.__globals__, names)
    return f"    def {name}({', '.join(written)}) -> {returned}: ...\n"


def _note(annotation: Any, known: dict[str, Any], names: dict[str, str]) -> None:
    """Add the names in an annotation to `names`, with the modules that define them."""
    for name in re.findall(r"[A-Za-z_]\w*", str(annotation)):
        if name in known:
            for source, module in _SOURCES.items():
                if getattr(module, name, None) is known[name]:
                    names[name] = source
                    break


if __name__ == "__main__":
    STUB.write_text(text())
