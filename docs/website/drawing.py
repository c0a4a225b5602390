"""Draw a Relax module's `main`: a box for each call that depends on an input."""

from __future__ import annotations

import ast
import math
import re

from needle_runtime.cli.drawing.boxes import Box, Drawn, Weight, kind_of, steps_of
from needle_runtime.cli.drawing.svg import svg

_TENSOR = re.compile(r"R\.Tensor\(\((.*?),?\), dtype='(\w+)'\)")
_BYTES = {"float32": 4, "bfloat16": 2, "int32": 4, "int64": 8}
# The boxes and the weights that a value depends on.
_Sources = tuple[frozenset[int], frozenset[Weight]]


def picture(script: str, title: str) -> str:
    """Return the SVG of the function `main` in a module's TVMScript. Work on weights alone is not
    drawn, since it runs once; the box that reads its result lists the weights."""
    drawn = Drawn(title)
    values: dict[str, _Sources] = {}
    main = next(
        node
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    inputs = re.search(r"'num_input': (\d+)", ast.unparse(main))
    for number, argument in enumerate(main.args.args):
        text, size = _described(argument.annotation)
        if inputs and number < int(inputs[1]):
            box = drawn.add(Box("input", (argument.arg, text), "input"))
            values[argument.arg] = (frozenset({box}), frozenset())
        else:
            weight = Weight(argument.arg, text, size)
            values[argument.arg] = (frozenset(), frozenset({weight}))
    for target, value, type_ in _bindings(main):
        boxes, weights = _read(value, values)
        if boxes and isinstance(value, ast.Call):
            name, is_kernel = _called(value)
            steps = steps_of(name) if is_kernel else (name,)
            held = tuple(sorted(weights, key=lambda weight: weight.name))
            reads = tuple(sorted(boxes))
            box = Box("kernel", steps, kind_of(name), reads, type_, held, name)
            boxes, weights = frozenset({drawn.add(box)}), frozenset()
        values[target] = (boxes, weights)
    returned = next(node for node in ast.walk(main) if isinstance(node, ast.Return))
    boxes, _ = _read(returned.value, values)
    drawn.add(Box("output", ("result",), "output", tuple(sorted(boxes))))
    return svg(drawn)


def _bindings(main: ast.FunctionDef) -> list[tuple[str, ast.expr, str]]:
    """Return the names that `main` binds, their values and the text of their types, in order."""
    found = []
    for node in ast.walk(main):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            found.append((node.lineno, node.target.id, node.value, _described(node.annotation)[0]))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _described(node.value)[0]
            found.append((node.lineno, node.targets[0].id, node.value, text))
    return [binding[1:] for binding in sorted(found, key=lambda binding: binding[0])]


def _read(node: ast.expr | None, values: dict[str, _Sources]) -> _Sources:
    """Return the boxes and weights of all names in an expression."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)] if node else []
    found = [values[name] for name in names if name in values]
    return (
        frozenset[int]().union(*(boxes for boxes, _ in found)),
        frozenset[Weight]().union(*(weights for _, weights in found)),
    )


def _called(call: ast.Call) -> tuple[str, bool]:
    """Return the name of the called operator or kernel, and whether it is a kernel."""
    name = ast.unparse(call.func)
    is_kernel = name == "R.call_tir"
    return (ast.unparse(call.args[0]) if is_kernel else name).rpartition(".")[2], is_kernel


def _described(node: ast.AST | None) -> tuple[str, int]:
    """Return the first tensor type in an annotation or call as text, and its size in bytes."""
    found = _TENSOR.findall(ast.unparse(node)) if node else []
    if not found:
        return "", 0
    shape, dtype = found[0]
    extents = [int(n) for n in re.findall(r"\d+", shape)]
    return f"{dtype}[{shape}]", _BYTES.get(dtype, 4) * math.prod(extents)
