"""Reads the graph of an artifact's kernels from the text of the Relax module beside its library.

TVMScript has Python's syntax, so Python's parser can read it without TVM.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from needle_runtime.artifact import Artifact
from needle_runtime.artifact.arrays import describe
from needle_runtime.artifact.function import ArraySpec
from needle_runtime.artifact.layout import SCRIPT
from needle_runtime.artifact.sizes import shape_at
from needle_runtime.cli.drawing.boxes import Box, Drawn, Weight, bytes_of, kind_of, steps_of
from needle_runtime.errors import ArtifactError

_WIDTHS = {"bool": 1, "bfloat16": 2}  # bytes of dtypes whose names do not give the size

# The sources of a variable: indices of boxes, and indices of the model's weights.
Sources = tuple[frozenset[int], frozenset[int]]
_NOTHING: Sources = (frozenset(), frozenset())
_CALLS = ("call_tir", "call_tir_inplace", "call_dps_packed", "call_packed", "call_pure_packed")
# Calls that return their argument with another shape or name.
_VIEWS = ("reshape", "match_cast", "memory.view")


def of_artifact(artifact: Artifact) -> Drawn:
    """Return the graph of an artifact's kernels, as they are before `merge_kernels`.

    Raises ArtifactError if the module's text is missing, has changed, or cannot be parsed.
    """
    main = artifact.main
    where = artifact.path / SCRIPT
    if SCRIPT not in artifact.manifest["files"]:
        raise ArtifactError(f"{where}: is missing, and the graph is read from it")
    try:
        functions = _functions(artifact.read(SCRIPT).decode())
        function = functions[main.by_kernel or "main"]
        packed = functions.get(main.transform) if main.transform else None
        return _drawn(artifact, function, packed)
    except (SyntaxError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: the graph cannot be read from it: {error}") from None


def _functions(text: str) -> dict[str, ast.FunctionDef]:
    """Return the Relax functions of a module's text by name."""
    (module,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    found = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    relax = [f for f in found if any("R.function" in ast.unparse(d) for d in f.decorator_list)]
    return {function.name: function for function in relax}


def _drawn(artifact: Artifact, function: ast.FunctionDef, packed: ast.FunctionDef | None) -> Drawn:
    main = artifact.main
    drawn = Drawn(str(artifact.path))
    names = [argument.arg for argument in function.args.args]
    values: dict[str, Sources] = {}
    for name, spec in zip(names, main.inputs, strict=False):
        lines = (spec.name, describe(spec.shape, spec.dtype))
        values[name] = (frozenset({drawn.add(Box("input", lines, "input"))}), frozenset())
    rest = names[len(main.inputs) :]
    if packed is None:
        sources = [frozenset({i}) for i in range(len(main.params))]
    else:
        sources = _packed(packed)
    for name, weights in zip(rest, sources, strict=False):
        values[name] = (frozenset(), weights)
    reader = _Reader(values, drawn, [_weight(spec) for spec in main.params])
    result = reader.run(function)
    outputs = result if isinstance(result, list) else [result]
    for spec, (boxes, weights) in zip(main.outputs, outputs, strict=False):
        lines = (spec.name, describe(spec.shape, spec.dtype))
        held = tuple(reader.weights[i] for i in sorted(weights)) if not boxes else ()
        drawn.add(Box("output", lines, "output", tuple(sorted(boxes)), weights=held))
    return drawn


def _packed(function: ast.FunctionDef) -> list[frozenset[int]]:
    """Return, for each result of the packing function, the weights from which it is computed."""
    (argument,) = function.args.args
    reader = _Reader({}, None, ())
    reader.lists[argument.arg] = None
    result = reader.run(function)
    return [weights for _, weights in (result if isinstance(result, list) else [result])]


def _weight(spec: ArraySpec) -> Weight:
    extents = shape_at(spec.shape, {})
    width = _WIDTHS.get(spec.dtype) or int("".join(filter(str.isdigit, spec.dtype)) or 8) // 8
    return Weight(spec.name, describe(spec.shape, spec.dtype), bytes_of(extents, width))


class _Reader:
    """Goes through a function's bindings. It adds a box to `drawn` for each kernel call. If `drawn`
    is None, the sources of a call are those of its arguments."""

    def __init__(
        self, values: Mapping[str, Sources], drawn: Drawn | None, weights: Sequence[Weight]
    ) -> None:
        self.values: dict[str, Any] = dict(values)
        self.lists: dict[str, None] = {}  # names of tuples whose elements are the model's weights
        self.drawn, self.weights = drawn, weights

    def run(self, function: ast.FunctionDef) -> Any:
        """Return the sources of the function's result, or of each element of a tuple."""
        for node in _statements(function.body):
            if isinstance(node, ast.Return):
                return self._value(node.value)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.values[node.target.id] = self._value(node.value, node.annotation)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values[node.targets[0].id] = self._value(node.value)
        raise ValueError(f"{function.name} returns nothing")

    def _value(self, node: Any, annotation: Any = None) -> Any:
        if isinstance(node, ast.Name):
            return self.values.get(node.id, _NOTHING)
        if isinstance(node, ast.Tuple):
            return [_joined(self._value(each)) for each in node.elts]
        if isinstance(node, ast.Subscript):
            return self._element(node)
        if not isinstance(node, ast.Call):
            return _NOTHING
        called = ast.unparse(node.func).removeprefix("R.")
        if called in _VIEWS:
            return self._value(node.args[0])
        if called == "tuple":
            return [_joined(self._value(each)) for each in node.args]
        sources = _joined([_joined(self._value(each)) for each in node.args])
        if self.drawn is None or sources == _NOTHING:
            return sources
        return self._kernel(node, called, sources, annotation)

    def _element(self, node: ast.Subscript) -> Any:
        index: Any = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, ast.Name) and node.value.id in self.lists:
            return (frozenset(), frozenset({index}))
        value = self._value(node.value)
        return value[index] if isinstance(value, list) and isinstance(index, int) else value

    def _kernel(self, node: ast.Call, called: str, sources: Sources, annotation: Any) -> Sources:
        assert self.drawn is not None
        name = called.rpartition(".")[2]
        if called in _CALLS:
            first = node.args[0]
            name = ast.unparse(first).strip("'").rpartition(".")[2]
        types = [keyword.value for keyword in node.keywords if "ty" in str(keyword.arg).split("_")]
        boxes, weights = sources
        held = tuple(self.weights[i] for i in sorted(weights))
        box = Box(
            "kernel",
            steps_of(name),
            kind_of(name),
            tuple(sorted(boxes)),
            ", ".join(_types([*types, annotation])),
            held,
            name,
        )
        return (frozenset({self.drawn.add(box)}), frozenset())


def _statements(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the statements in order; `with` blocks are replaced by their statements."""
    found: list[ast.stmt] = []
    for node in body:
        found += _statements(node.body) if isinstance(node, ast.With) else [node]
    return found


def _joined(value: Any) -> Sources:
    parts = [_joined(each) for each in value] if isinstance(value, list) else [value]
    return (
        frozenset().union(*(boxes for boxes, _ in parts)),
        frozenset().union(*(weights for _, weights in parts)),
    )


def _types(nodes: Sequence[Any]) -> list[str]:
    """Return the tensors in the first of these types that has any, such as float32(1, 512)."""
    for node in nodes:
        found = [] if node is None else [_tensor(each) for each in ast.walk(node)]
        if any(found):
            return [text for text in found if text]
    return []


def _tensor(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) != "R.Tensor" or not node.args:
        return ""
    dtypes = [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
    extents = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else [node.args[0]]
    shape = ", ".join(ast.unparse(extent) for extent in extents)
    return f"{str(dtypes[0]) if dtypes else ''}({shape.replace('T.int64', '')})"
