"""One form for each extent that depends on dims.

Before: reshapes, broadcasts and the like to shapes in whatever form the front end wrote them.

After: those shapes in needle's form. TVM's passes do not see that n * t and t * n are equal, and
functions that hold both cannot be scheduled.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, expr_functor, relax
from needle_tvm.frontend.extents import Extents
from needle_tvm.lower.build import MAIN


def one_spelling(module: IRModule, extents: Extents) -> IRModule:
    """Rewrite the shapes that operators of `main` take as arguments."""
    if not extents:
        return module
    module[MAIN] = _Speller(module, extents).visit_expr(module[MAIN])
    return module


@expr_functor.mutator
class _Speller(expr_functor.PyExprMutator):
    def __init__(self, module: IRModule, extents: Extents) -> None:
        super().__init__(module)
        self._extents = extents

    def visit_shape_expr_(self, shape: Any) -> Any:
        known = tuple(map(self._extents.understood, shape.values))
        return shape if None in known else relax.ShapeExpr(self._extents.expressed(known))
