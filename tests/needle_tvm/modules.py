"""Graph passes by example: a module before a pass, and the module it must become.

A module is written as a function of needle's tensors (`needle_module`) or, where it has operators
or kernels that needle's ops do not emit, of Relax expressions (`relax_module`). Modules are
compared but for the names of variables, dead code and the order of bindings.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 (NumPy's bfloat16)
import numpy as np
import pytest

from needle import Tensor
from needle.trace import trace
from needle_tvm._tvm.names import (
    Constant,
    IRModule,
    Target,
    TensorType,
    check_well_formed,
    relax,
    sequential,
    structural_equal,
    transform,
)
from needle_tvm.frontend.translate import translate
from needle_tvm.target.spec import resolve

AVX2 = resolve({"kind": "llvm", "mcpu": "x86-64-v3"}, 2).to_tvm()
AVX512 = resolve({"kind": "llvm", "mcpu": "skylake-avx512"}, 2).to_tvm()
SM_90 = resolve("cuda:sm_90").to_tvm()

Pass = Callable[[IRModule, Target], IRModule]

_TIDY = sequential(
    [
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
        transform.TopologicalSort("depth-first", "from-outputs"),
    ]
)


class Spec:
    """The type of an argument."""

    def __init__(self, *shape: int, dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype


def needle_module(function: Callable[..., Any], *specs: Spec, params: int = 0) -> IRModule:
    """A module whose `main` is a function of needle's tensors. The last `params` of its arguments
    are parameters."""
    inputs = [Tensor(np.zeros(s.shape, s.dtype), requires_grad=False) for s in specs]
    module = translate(trace(function, *inputs), prefer_emit=True)
    return _with_parameters(module, len(specs) - params)


def relax_module(function: Callable[..., Any], *specs: Spec, params: int | None = 0) -> IRModule:
    """As `needle_module`, of a function of Relax expressions that returns one, or several in a
    tuple. With `params=None` main does not say which of its arguments are parameters."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"x{n}", TensorType(s.shape, s.dtype)) for n, s in enumerate(specs)]
    with builder.function("main", arguments):
        with builder.dataflow():
            found = function(*arguments)
            several = isinstance(found, tuple)
            results = [builder.emit_output(each) for each in (found if several else [found])]
        builder.emit_func_output(relax.Tuple(results) if several else results[0])
    module = builder.get()
    return module if params is None else _with_parameters(module, len(specs) - params)


def emit(value: Any) -> Any:
    """A variable bound to `value`, inside of `relax_module`: what is read in several places."""
    named = isinstance(value, relax.Var | Constant)
    return value if named else relax.BlockBuilder.current().emit(value)


def kernel(rule: Callable[..., Any], *operands: Any, name: str, **attrs: Any) -> Any:
    """A call of the tensor expression `rule` as a kernel of its own, inside of `relax_module`."""
    return relax.BlockBuilder.current().emit_te(
        rule, *map(emit, operands), primfunc_name_hint=name, primfunc_attrs=attrs or None
    )


def check_becomes(
    graph_pass: Pass, before: IRModule, expected: IRModule, target: Target = AVX512
) -> None:
    """The pass makes `expected` of `before`, and what it makes is well formed."""
    with target:
        found = graph_pass(before.clone(), target)
    check_well_formed(found)
    check_well_formed(expected)
    found, expected = _TIDY(found), _TIDY(expected)
    if not structural_equal(found, expected):
        texts = [each.script().splitlines(keepends=True) for each in (expected, found)]
        pytest.fail("".join(difflib.unified_diff(*texts, "expected", "found", n=99)), pytrace=False)


def check_stays(graph_pass: Pass, before: IRModule, target: Target = AVX512) -> None:
    """The pass leaves `before` as it is."""
    check_becomes(graph_pass, before, before, target)


def _with_parameters(module: IRModule, inputs: int) -> IRModule:
    module["main"] = module["main"].with_attr("num_input", inputs)
    return module
