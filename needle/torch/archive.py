"""Read `.pt2` files (`torch.export.save`) without running anything in them.

`torch.export.load` unpickles parts of a file, evaluates others with `eval`, calls functions and
imports modules that the file names, and loads machine code from it. This module reads pickles with
`weights_only=True` and checks expressions and names against lists of allowed ones. It refuses a
file that needs more.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
from collections.abc import Iterator
from typing import IO, Any

from ..errors import ModelError
from .exporting import quiet
from .refusals import first_line

_MODEL = "model"  # the name that torch.export.save gives to the single program of a file
_PICKLES = re.compile(r"data/(sample_inputs/.*|(weights|constants)/[^/]*\.pt)")
_CONFIGS = re.compile(r"data/(weights|constants)/[^/]*_config\.json")
_PROGRAMS = re.compile(r"models/.*")
_MACHINE_CODE = "data/aotinductor/"

_NAMES = frozenset({"name", "as_name"})  # keys whose values become names in generated Python
_OPERATORS = frozenset({"target", "as_operator"})  # keys whose values are looked up by name
_IMPORTS = frozenset({"__enum__", "default_factory_module"})  # keys of objects that name a module
_PLAIN = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|abs|eq|ne|lt|le|gt|ge|and_|or_|xor|"
    r"not_|inv|invert|lshift|rshift|getitem)|math\.[a-z]\w*|torch\.(_sym|sym)_\w+"
)
_BITWISE = r"\.__i?(?:and|or|xor|lshift|rshift)__"  # the only allowed names with double underscores
_OF_DISPATCHER = re.compile(rf"torch\.ops((?:\._?[A-Za-z]\w*|{_BITWISE}){{2,3}})")
_SYMBOL = re.compile(r"[A-Za-z]\w*")

# The functions in expressions of sizes, in addition to the functions of
# torch.utils._sympy.functions.
_FUNCTIONS = frozenset(
    "Symbol Integer Float Rational Add Mul Pow Mod Max Min Abs sign sqrt floor ceiling Eq Ne Lt "
    "Le Gt Ge Equality Unequality StrictLessThan LessThan StrictGreaterThan GreaterThan And Or Not "
    "Xor Piecewise ITE ExprCondPair".split()
)
_EXPRESSION = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.keyword, ast.Tuple),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def load(path: str | os.PathLike[str], trusted: bool) -> Any:
    """Return the `ExportedProgram` in the file at `path`.

    A `trusted` file is read by `torch.export.load`. Raises ModelError if there is no such file, if
    it holds no program, or if reading it could run its author's code.
    """
    import torch

    label = f"model={os.fspath(path)!r}"
    if not os.path.isfile(path):
        raise ModelError(f"{label}: there is no such file")
    try:
        with quiet():
            if trusted:
                program = torch.export.load(path)
            else:
                with open(path, "rb") as file:
                    program = _checked(file)
            args, kwargs = program.example_inputs or ((), {})
            if not isinstance(args, tuple) or not isinstance(kwargs, dict):
                raise TypeError("its example inputs are not a tuple and a dict")
            return program
    except _RunsCode as error:
        raise ModelError(
            f"{label}: {error}, which can run any code; pass trusted=True if you trust its author"
        ) from error.__cause__
    except Exception as error:  # errors of PyTorch, zipfile and pickle
        raise ModelError(
            f"{label}: not a file that torch.export.save wrote ({first_line(error)})"
        ) from error


class _RunsCode(Exception):
    """A part of a file that can run code."""


def _checked(file: IO[bytes]) -> Any:
    from torch.export.pt2_archive import _package as package

    with package.PT2ArchiveReader(file) as reader:  # load_pt2 uses the same reader
        names = reader.get_file_names()
        for name in names:
            if name.startswith(_MACHINE_CODE):
                raise _RunsCode(f"{name} is machine code")
            if _PICKLES.fullmatch(name):
                _check_pickle(name, reader.read_bytes(name))
            elif _CONFIGS.fullmatch(name):
                _check_payloads(name, json.loads(reader.read_string(name)))
            elif _PROGRAMS.fullmatch(name):
                _check_program(name, json.loads(reader.read_string(name)))
        if not any(map(_PROGRAMS.fullmatch, names)):
            raise _RunsCode("it holds no program, or its format is older than PyTorch 2.8")
    file.seek(0)
    # torch.export.load would fall back to the older format.
    return package.load_pt2(file).exported_programs[_MODEL]


def _check_pickle(name: str, data: bytes) -> None:
    import torch

    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise _RunsCode(f"{name} is a pickle of more than tensors and plain values") from error


def _check_payloads(name: str, config: Any) -> None:
    for what, payload in config["config"].items():
        stored = str(payload["path_name"])
        if payload["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", stored):
            raise _RunsCode(f"{name} declares that {what!r} is a pickle")


def _check_program(name: str, program: Any) -> None:
    for key, value in _entries(program):
        if key in _IMPORTS:
            raise _RunsCode(f"{name} imports a module of its own choice ({value})")
        if not isinstance(value, str):
            continue
        if key in _OPERATORS and not _is_operator(value):
            raise _RunsCode(f"{name} calls {value}, which is not a PyTorch operator")
        if key in _NAMES and value and not value.isidentifier():
            raise _RunsCode(f"{name} has the name {value!r}")
        if key == "expr_str" and not _is_arithmetic(value):
            raise _RunsCode(f"{name} has the size {value!r}")
    for text in program["range_constraints"]:
        if not _is_arithmetic(text):
            raise _RunsCode(f"{name} has the size {text!r}")


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all objects in a JSON document, and in JSON documents stored as
    strings in it, such as trees of arguments."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            try:
                waiting.append(json.loads(value))
            except ValueError:
                continue


def _is_operator(text: str) -> bool:
    """Return whether a dotted name is an operator: a function of numbers, or one in PyTorch's
    dispatcher."""
    import torch

    if _PLAIN.fullmatch(text):
        return True
    found: Any = torch.ops
    dotted = _OF_DISPATCHER.fullmatch(text)
    if dotted is None:
        # Names of parameters in a signature, such as "layer.weight", are not looked up.
        return not text.startswith(("_operator", "torch", "math", "#"))
    for part in dotted[1].split(".")[1:]:
        found = getattr(found, part, None)
    return found is None or isinstance(
        found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
    )


def _is_arithmetic(text: str) -> bool:
    """Return whether an expression only computes a number from sizes. Sympy evaluates it as
    Python."""
    from torch.utils._sympy import functions

    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return False
    names = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    symbols = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", "") == "Symbol"
    }
    for node in ast.walk(tree):
        if not isinstance(node, _EXPRESSION):
            return False
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
            return False
        if isinstance(node, ast.Name) and id(node) in names:
            if node.id not in _FUNCTIONS and node.id not in functions.__all__:
                return False
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            if id(node) not in symbols or not _SYMBOL.fullmatch(str(node.value)):
                return False
    return True
