"""Running a mutator over every Relax function of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from needle_tvm._tvm import IRModule, relax


def rewrite(
    module: IRModule,
    mutator_of: Callable[[IRModule, relax.Function], Any],
    *,
    with_parameters: bool = False,
) -> IRModule:
    """The module with each Relax function visited by the mutator made for it.

    `with_parameters` leaves out functions that do not say, by `num_input`, which of their
    arguments are parameters.
    """
    for name, function in list(module.functions_items()):
        if not isinstance(function, relax.Function):
            continue
        if with_parameters and "num_input" not in (function.attrs or {}):
            continue
        mutator = mutator_of(module, function)
        mutator.builder_.update_func(name, mutator.visit_expr(function))
        module = mutator.builder_.get()
    return module
