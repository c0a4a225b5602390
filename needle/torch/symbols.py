"""Read the sizes of an exported PyTorch program as expressions of needle's dims, and check the
program's assumptions about them.

`torch.export` gives each unknown size a sympy symbol. It records a guard for each test of sizes
that the model or PyTorch made during the export. The program matches the model at all sizes at
which the guards hold.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from math import prod
from typing import Any

from ..errors import DimError, TraceError, UnsupportedError
from ..sizes.dims import Dim, Expression, dims_of
from ..sizes.extents import same
from .dims import Asked

_LARGEST_DIVISOR = 64  # the largest denominator of a scale, which is a binary fraction


class Unknown(UnsupportedError):
    """Error for a size that is not an expression of dims, or that may be 0."""


class Symbols:
    """The extents of a program's symbols. A program without dims has no symbols."""

    def __init__(self, known: Mapping[Any, Any]) -> None:
        self._known = dict(known)

    @property
    def dims(self) -> list[Dim]:
        """The dims of all extents, sorted by name."""
        return sorted(dims_of(self._known.values()), key=lambda dim: dim.name)

    def size(self, size: Any) -> Any:
        """Return an int `size` unchanged, and a SymInt as an expression of dims. Raises Unknown if
        the SymInt is not an expression of dims."""
        if type(size) is int:
            return size
        try:
            return self.value(size.node.expr)
        except TraceError as error:
            raise Unknown(str(error)) from error

    def shape(self, tensor: Any) -> tuple[Any, ...]:
        """Return the extents of a `tensor` of the program. Raises Unknown for an extent that might
        be 0."""
        shape = tuple(map(self.size, tensor.shape))
        for extent in shape:
            if isinstance(extent, Expression) and extent.bounds[0] < 1:
                raise Unknown(f"the extent {extent} can be {extent.bounds[0]}, which is below 1")
        return shape

    def knows(self, size: Any) -> bool:
        """Return whether a `size` depends only on the sizes of inputs."""
        return type(size) is int or size.node.expr.free_symbols <= set(self._known)

    def value(self, expr: Any) -> Any:
        """Return a sympy expression `expr` as an expression of dims, and a condition as a bool.
        Raises Unknown if needle cannot express `expr`, and TraceError if the bounds of the dims do
        not decide the condition."""
        if expr in self._known:
            return self._known[expr]
        if getattr(expr, "is_Integer", False):
            return int(expr)
        rule = _RULES.get(type(expr).__name__)
        if type(expr).__name__ in ("TruncToInt", "FloorToInt"):
            scaled = self._scaled(expr.args[0])
            if scaled is not None:
                return scaled
        if rule is None:
            raise Unknown(f"the size {self.text(expr)} is not an expression of dims")
        return rule(*map(self.value, expr.args))

    def _scaled(self, expr: Any) -> Any:
        """Return the integer part of a size times a number such as 1.5; None for another
        expression."""
        numbers = [each for each in expr.args if each.is_Float]
        sizes = [each for each in expr.args if type(each).__name__ == "ToFloat"]
        if len(numbers) != 1 or len(sizes) != 1 or len(expr.args) != 2:
            return None
        over, under = float(numbers[0]).as_integer_ratio()
        if over < 0 or under > _LARGEST_DIVISOR:
            return None
        return self.value(sizes[0].args[0]) * over // under

    def text(self, expr: Any) -> str:
        """Return a sympy expression `expr` as text, with the names of dims."""
        import sympy  # type: ignore[import-untyped]

        names = {
            symbol: sympy.Symbol(str(each) if isinstance(each, Dim) else f"({each})")
            for symbol, each in self._known.items()
        }
        return str(expr.xreplace(names))


def _bounded(choose: Callable[[Iterable[Any]], Any]) -> Callable[..., Any]:
    return lambda *parts: reduce(lambda a, b: choose((a, b)), parts)


# The rules for sympy's and torch's expression classes, by class name.
_RULES: dict[str, Callable[..., Any]] = {
    "Add": lambda *parts: sum(parts),
    "Mul": lambda *parts: prod(parts),
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda a, b: (a + b - 1) // b,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda a, b, modulus: a // b % modulus,
    "Identity": lambda a: a,
    "Max": _bounded(max),
    "Min": _bounded(min),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": operator.not_,
    "BooleanTrue": lambda: True,
    "BooleanFalse": lambda: False,
}


def symbols_of(program: Any, asked: Asked) -> Symbols:
    """Return the extents of a program's symbols. `asked` has the dims of the inputs. Raises
    DimError if the program needs a number, or the size of another axis, in place of a dim."""
    held = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    values = [held[name].meta["val"] for name in program.graph_signature.user_inputs]
    if not asked.dims:
        return Symbols({})
    env = values[0].fake_mode.shape_env
    axes = [
        (name, axis, extent, getattr(getattr(size, "node", None), "expr", size))
        for (name, _), shape, value in zip(asked.inputs, asked.shapes, values, strict=True)
        for axis, (extent, size) in enumerate(zip(shape, value.shape, strict=True))
        if isinstance(extent, Expression)
    ]
    known: dict[Any, Any] = {}
    for _, _, extent, size in axes:
        if getattr(size, "is_Symbol", False):
            known[size] = _merged(known.get(size), extent, asked)
    symbols = Symbols(known)
    for name, axis, extent, size in axes:
        where = f"axis {axis} of input {name!r}"
        if isinstance(size, int) or size.is_Integer:
            if extent not in asked.optional:
                raise DimError(
                    f"dims: {where} cannot be {extent}: the model needs a fixed size, {size} at "
                    f"these inputs{_place_of(env, size)}"
                )
        elif extent not in asked.inferred and not same(symbols.value(size), extent):
            raise DimError(
                f"dims: {where} cannot be {extent}: the model needs {symbols.value(size)} there"
            )
    return symbols


def _merged(before: Any, extent: Any, asked: Asked) -> Any:
    """Return the common extent of two axes of equal size; the first extent if none fits both."""
    if before is None or (before in asked.inferred and extent not in asked.inferred):
        return extent
    if before not in asked.inferred or extent not in asked.inferred:
        return before
    least, most = max(before.min, extent.min), min(before.max, extent.max)
    if least > most:
        both = f"{before.described()} and {extent.described()}"
        raise DimError(f"dims: the model needs {both} to be equal, but no size is in both ranges")
    return Dim(before.name, min=least, max=most)


def check_guards(program: Any, symbols: Symbols) -> None:
    """Raise DimError for a guard of the program that does not hold at all sizes of the dims."""
    if not symbols.dims:
        return
    (env,) = {
        value.fake_mode.shape_env
        for value in (node.meta.get("val") for node in program.graph.nodes)
        if hasattr(value, "fake_mode")
    }
    for guard in [*env.guards, *_asserted(env)]:
        expr, site = env.replace(guard.expr), getattr(guard, "sloc", None)
        # PyTorch's own code tests whether sizes differ when it chooses strides.
        if type(expr).__name__ == "Unequality" and _is_torchs(site):
            continue
        try:
            holds = symbols.value(expr)
        except (TraceError, Unknown):
            holds = None
        if not holds:
            dims = ", ".join(dim.described() for dim in symbols.dims)
            raise DimError(
                f"dims: the model is the same only while {symbols.text(expr)}{_place(site)}, but "
                f"not all allowed sizes are known to meet it: {dims}. Choose bounds or multiple_of "
                "of the Dim so that they do, or compile for one size, without the dim"
            )


def _asserted(env: Any) -> Iterator[Any]:
    """Yield the assertions about sizes; assertions about values are not checked."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    for each in env.deferred_runtime_asserts.values():
        yield from (found for found in each if not free_unbacked_symbols(found.expr))


def _is_torchs(site: Any) -> bool:
    import torch

    folder = os.path.dirname(torch.__file__) + os.sep
    return getattr(getattr(site, "framework_loc", None), "filename", "").startswith(folder)


def _place_of(env: Any, size: int) -> str:
    """Return the line at which a symbol became a number, phrased as the end of an error message, or
    ""."""
    for guard in env.guards:
        if type(guard.expr).__name__ == "Equality" and size in guard.expr.args:
            return _place(guard.sloc)
    return ""


def _place(site: Any) -> str:
    """Return the line of the model's code that tested a size, phrased as the end of an error
    message, or ""."""
    frame: Any = getattr(site, "framework_loc", None)
    if _is_torchs(site) or not hasattr(frame, "filename"):
        return ""
    line = f": {frame.line}" if frame.line else ""
    return f" (asked at {os.path.basename(frame.filename)}:{frame.lineno}{line})"
