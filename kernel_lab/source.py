"""A ladder's function as pieces of code: its constants and helpers, and the function itself."""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# The modules whose functions and numbers are listed.
_OWN = ("kernel_lab.ladders.", "kernel_lab.workloads.")
_COLUMNS = 100  # columns of a line


def parts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the code of the constants and the lab's own functions that a function uses, and of the
    function itself, by name.

    If two functions have the same name, the key of the second begins with its module. Docstrings,
    decorators and imports are left out.
    """
    numbers: dict[str, str] = {}
    functions: dict[str, str] = {}
    _collect(function, numbers, functions, set())
    return numbers | functions


def listing(pieces: dict[str, str]) -> str:
    """Return pieces of `parts` as one text: constants on a line each, then functions with blank
    lines between them."""
    functions = [text for text in pieces.values() if text.startswith("def ")]
    numbers = [text for text in pieces.values() if not text.startswith("def ")]
    return "\n\n\n".join(["\n".join(numbers)] * bool(numbers) + functions)


def _collect(
    function: Callable[..., Any],
    numbers: dict[str, str],
    functions: dict[str, str],
    met: set[Callable[..., Any]],
) -> None:
    if function in met or not isinstance(function, FunctionType):
        return
    met.add(function)
    for name, value in _used(function.__code__, function.__globals__):
        if isinstance(value, FunctionType) and value.__module__.startswith(_OWN):
            _collect(value, numbers, functions, met)
        elif name.isupper() and isinstance(value, int | float | tuple):
            numbers[name] = _assignment(name, value)
    if function.__name__ == "<lambda>":
        return
    text = textwrap.dedent(inspect.getsource(function))
    tree: Any = ast.parse(text).body[0]
    for default in (*tree.args.defaults, *tree.args.kw_defaults):
        if isinstance(default, ast.Name) and default.id in function.__globals__:
            numbers[default.id] = _assignment(default.id, function.__globals__[default.id])
    name = function.__name__
    if name in functions:  # from another module
        name = f"{function.__module__.rpartition('.')[2]}.{name}"
    functions[name] = _stripped(text, tree)


def _assignment(name: str, value: Any) -> str:
    """Return the constant as a formatter writes it: a long tuple has a line for each item."""
    text = f"{name} = {value!r}".replace("e+", "e")
    if isinstance(value, tuple) and len(text) > _COLUMNS:
        return "\n".join([f"{name} = (", *(f"    {item!r}," for item in value), ")"])
    return text


def _used(code: CodeType, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names, with values, that the code and the functions in it read: names from its own
    module, and from other ladders' modules (`rows.CHAINS`)."""
    module: ModuleType | None = None
    for step in dis.get_instructions(code):
        if module is not None and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield step.argval, getattr(module, step.argval)
        module = None
        if step.opname == "LOAD_GLOBAL" and step.argval in names:
            value = names[step.argval]
            yield step.argval, value
            if isinstance(value, ModuleType) and value.__name__.startswith(_OWN):
                module = value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _used(constant, names)


def _stripped(text: str, tree: Any) -> str:
    """Return the lines of a function from its `def` on, without its docstring and its imports."""
    dropped = set(range(1, tree.lineno))
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    imports = [node for node in body if isinstance(node, ast.ImportFrom)]
    for node in [*tree.body[: len(tree.body) - len(body)], *imports]:
        dropped |= set(range(node.lineno, node.end_lineno + 1))
    first = min((node.lineno for node in body if node not in imports), default=None)
    if first is not None:  # drop the blank lines that the docstring and imports leave
        start = max(dropped | {tree.lineno})
        dropped |= {n for n in range(start, first) if not text.splitlines()[n - 1].strip()}
    kept = [line for n, line in enumerate(text.splitlines(), 1) if n not in dropped]
    return "\n".join(kept + ["    pass"] * (first is None)).rstrip()
