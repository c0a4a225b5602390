"""Settings for AOTAutograd's tracing: which operators it decomposes for needle, and how."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from .exporting import decompositions, has_converter
from .nodes import draws


@functools.cache
def backend_decompositions() -> dict[Any, Any]:
    """Return PyTorch's decompositions of the operators that have no converter and draw no numbers.

    The decomposition of an operator that draws may draw other numbers than the operator.
    """
    import torch

    aten = torch.ops.aten
    found = {}
    for target, rule in decompositions().items():
        if target is aten.as_strided.default:  # a view, which stays a view
            continue
        tags = getattr(target, "tags", ())
        random = torch.Tag.nondeterministic_seeded in tags
        found[target] = _unless_drawing(target, rule) if random else rule
    found[aten.native_dropout.default] = _native_dropout
    return found


def composites_whole() -> contextlib.AbstractContextManager[None]:
    """Return a context in which PyTorch's tracing keeps composite operators that have a converter,
    as `torch.export` does. No other thread may trace at the same time. The kept operators have no
    gradient in the context."""
    import torch
    from torch.export import exported_program as export

    kept = {
        target: export._special_op_to_preserve_cia
        for target in torch._export.utils._collect_all_valid_cia_ops()
        if has_converter(target)
    }
    found: contextlib.AbstractContextManager[None] = export._override_composite_implicit_decomp(
        kept
    )
    return found


def attention_by_products() -> contextlib.AbstractContextManager[None]:
    """Return a context in which attention is traced as products and a softmax. The gradients of
    these operators have converters."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: contextlib.AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return found


def _unless_drawing(target: Any, rule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(rule)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented if draws(target, args, kwargs) else rule(*args, **kwargs)

    return decomposed


def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    """Compute dropout as PyTorch does on a CPU, where the mask is drawn as booleans."""
    import torch

    aten = torch.ops.aten
    if train is False or x.numel() == 0:
        return aten.clone(x), aten.ones_like(x, dtype=torch.bool)
    mask = aten.bernoulli.p(aten.empty_like(x, dtype=torch.bool), 1 - p)
    return aten.mul(aten.mul(x, mask), 1 / (1 - p) if p < 1 else 0.0), mask


def without_dropout(graph: Any) -> None:
    """Remove dropout that does nothing from a Dynamo graph. Such dropout returns its input itself,
    which AOTAutograd would copy."""
    import torch

    functions = torch.nn.functional.dropout, torch.dropout, torch.dropout_
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or node.target not in functions:
            continue
        names = ("input", "p", "training" if node.target is functions[0] else "train")
        given = {"p": 0.5, names[2]: True, **dict(zip(names, node.args, strict=False))}
        given |= node.kwargs
        if given[names[2]] is False or (type(given["p"]) in (int, float) and given["p"] == 0):
            node.replace_all_uses_with(given["input"])
            graph.graph.erase_node(node)
    graph.recompile()
