"""`Module.summary` counts layers, output shapes, parameters and multiply-adds by tracing.

This module binds the method to Module, because traces are defined after modules.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import ops
from ..autograd.node import Node
from ..autograd.tensor import Tensor
from ..common import tree
from ..nn.module import Module
from ..nn.parameter import Parameter
from .tracer import trace


class Row(NamedTuple):
    """A module's row in the table. Its counts include all submodules."""

    path: str  # "" for the model
    kind: str
    outputs: tuple[str, ...]  # of the first call, such as "float32[8, 10]"; () without a call
    calls: int
    parameters: int  # elements; a shared parameter counts once
    multiply_adds: int


class Summary:
    """The layers and totals of a model; `str` and `repr` show them as a table.

    `rows` has a Row for each module, parents first. `parameters`, `trainable` (the parameters that
    require a gradient), `parameter_bytes` and `multiply_adds` are the model's totals.
    """

    def __init__(self, rows: list[Row], model: Module) -> None:
        self.rows = rows
        parameters = model.parameters()
        self.parameters = rows[0].parameters
        self.trainable = sum(p.size for p in parameters if p.requires_grad)
        self.parameter_bytes = sum(_bytes(p) for p in parameters)
        self.multiply_adds = rows[0].multiply_adds

    def __str__(self) -> str:
        head = ("layer", "output", "parameters", "multiply-adds")
        lines = [head]
        paths = [""]  # the paths of the parent modules, each followed by "."
        for row in self.rows:
            while row.path and not row.path.startswith(paths[-1]):
                paths.pop()
            name = row.path[len(paths[-1]) :]
            layer = "  " * (len(paths) - (not name)) + (f"{name}: " if name else "") + row.kind
            if name:
                paths.append(f"{row.path}.")
            times = f" ({row.calls} calls)" if row.calls > 1 else ""
            shown = ", ".join(row.outputs) + times
            lines.append((layer, shown, f"{row.parameters:,}", f"{row.multiply_adds:,}"))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
            for a, b, c, d in lines
        ]
        table.insert(1, "-" * max(map(len, table)))
        fixed = self.parameters - self.trainable
        more = f" ({fixed:,} of them fixed)" if fixed else ""
        table.append(table[1])
        table.append(
            f"{self.parameters:,} parameters{more}, {self.parameter_bytes:,} bytes; "
            f"{self.multiply_adds:,} multiply-adds"
        )
        return "\n".join(table)

    __repr__ = __str__


def summary(model: Module, *args: Any, **kwargs: Any) -> Summary:
    """Return a table of the outputs, parameters and multiply-adds of each module of `model`, for a
    call with these arguments. Nothing is computed, and the model is unchanged.

    The model is traced in eval mode. Multiply-adds are counted for matmuls, convolutions and
    recurrences only. Raises the errors of tracing.
    """
    modules = model.named_modules()
    seen: dict[int, list[tuple[str, ...]]] = {id(module): [] for _, module in modules}

    def note(module: Module, _: Any, output: Any) -> None:
        _, leaves = tree.flatten(output, "", lambda x: isinstance(x, Tensor))
        seen[id(module)].append(tuple(str(leaf.spec) for _, leaf in leaves))

    modes = [(module, module.training) for _, module in modules]
    hooks = [module.register_forward_hook(note) for _, module in modules]
    try:
        model.eval()
        graph = trace(model, *args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes:
            module.training = mode
    work: dict[str, int] = {}
    for node in graph.nodes:
        rule = None if node.op is None else _MULTIPLY_ADDS.get(type(node.op))
        if rule is not None:
            scope = node.scope or ""
            work[scope] = work.get(scope, 0) + rule(node, *[n.spec for n in node.input_nodes])
    rows = []
    for path, module in modules:
        calls = seen[id(module)]
        inside = sum(n for scope, n in work.items() if _is_in(scope, path))
        size = sum(parameter.size for parameter in module.parameters())
        outputs = calls[0] if calls else ()
        rows.append(Row(path, type(module).__name__, outputs, len(calls), size, inside))
    return Summary(rows, model)


def _is_in(scope: str, path: str) -> bool:
    return not path or scope == path or scope.startswith(f"{path}.")


def _bytes(parameter: Parameter) -> int:
    return parameter.size * np.dtype(parameter.dtype).itemsize


def _matmul(node: Node, a: Any, b: Any) -> int:
    return prod(node.spec.shape) * a.shape[-1]


def _conv(node: Node, x: Any, weight: Any) -> int:
    return prod(node.spec.shape) * prod(weight.shape[:3])


def _conv_input(node: Node, grad: Any, weight: Any) -> int:
    return prod(grad.shape) * prod(weight.shape[:3])


def _scan(node: Node, *inputs: Any) -> int:
    """Return the multiply-adds of all steps."""
    op: Any = node.op
    body = op.fitted(inputs).body
    specs, total = body.specs(), 0
    for number, step in body.numbered():
        count = _MULTIPLY_ADDS.get(type(step.op))
        if count is not None:
            made = Node(specs[number], False)
            made.op = step.op
            total += count(made, *[specs[i] for i in step.inputs])
    return int(total * op.length)


_MULTIPLY_ADDS: dict[type, Callable[..., int]] = {
    ops.Matmul: _matmul,
    ops.Conv: _conv,
    ops.ConvInput: _conv_input,
    ops.Scan: _scan,
}

Module.summary = summary  # type: ignore[method-assign, assignment]
