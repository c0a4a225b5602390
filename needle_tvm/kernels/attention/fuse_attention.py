"""Replaces attention with one kernel that reads heads in the layout that the projections wrote.

Before: `matmul(softmax(s), v)`, where
- `softmax` is over the last axis, and each intermediate has only one reader,
- `s` is `matmul(q, kt)`, optionally times a scalar constant, optionally plus a mask. A scalar
  constant may also multiply q or kt, or divide q, kt or their product,
- q (B, H, T, D), kt (B, H, D, S) and v (B, H, S, E) have the same dtype, which the target's kernel
  supports, no extent is 0, and T is large enough to fill most of a vector,
- H, D and E are static, and so are B, T and S on a GPU,
- a mask has that dtype and a shape that broadcasts to (B, H, T, S).

After: a call to the kernel of `kernels.attention.cpu` or, on a GPU, of `kernels.attention.gpu`. Its
result has the rows that an output projection reads, (B * T, H * E), reshaped and permuted to (B, H,
T, E). Views (reshapes, permutations, slices) before q, kt and v are skipped, and their sources are
read in place. If an extent is symbolic, the result is (B, T, H, E) instead of rows, which is the
same memory. On a CPU, a separate kernel transposes the mask; for a constant or a parameter it runs
only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from needle_runtime.target.kind import CPU, GPU
from needle_tvm._tvm.names import (
    OP_PATTERN,
    Constant,
    IRModule,
    PrimFunc,
    Schedule,
    Target,
    expr_functor,
    relax,
    s_tir,
    te,
)
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.graph.views import View, order_of, view_of
from needle_tvm.kernels.attention import gpu as gpu_attention
from needle_tvm.kernels.attention.cpu import AttentionShape, Element, attention, attention_tile
from needle_tvm.kernels.attention.gpu import Elements, Factors
from needle_tvm.target.info import target_info
from needle_tvm.tir.extents import Size, exprs_of, is_static, shape_of, unbound
from needle_tvm.tir.functions import module_of, static_shape

_TYPICAL = 512  # assumed number of queries or keys, if symbolic, when tiles are chosen


@dataclass(frozen=True)
class _Kernel:
    """The attention kernel of a kind of target: the dtypes it supports, the fewest queries that
    make it worthwhile, whether it needs the mask transposed, whether it fits a shape, and a
    function that makes it from (shape, dtype, scale, inputs, elements, target)."""

    dtypes: tuple[str, ...]
    queries: int
    mask_turned: bool
    fits: Callable[[AttentionShape], bool]
    make: Callable[..., PrimFunc]


def _on_cpu(
    shape: AttentionShape,
    dtype: str,
    scale: float | None,
    inputs: Sequence[Any],
    elements: Elements,
    target: Target,
) -> PrimFunc:
    if not is_static(_symbolic_extents(shape)):
        sizes = (n if isinstance(n, int) else _TYPICAL for n in _symbolic_extents(shape))
        batch, queries, keys = sizes
        typical = replace(shape, batch=batch, queries=queries, keys=keys)
        tile = attention_tile(typical, dtype, target)
        return _of_symbolic(inputs, attention(shape, tile, dtype, scale, *elements(inputs)))
    result = attention(shape, attention_tile(shape, dtype, target), dtype, scale, *elements(inputs))
    # The result is laid out as the rows that an output projection reads, so nothing copies it.
    sch = Schedule(module_of(te.create_prim_func([*inputs, result])))
    sch.transform_layout(
        sch.get_sblock("attention"),
        ("write", 0),
        lambda b, t, h, c: (b * shape.queries + t, h * shape.values + c),
    )
    return sch.mod["main"].without_attr("global_symbol")


def _on_gpu(
    shape: AttentionShape,
    dtype: str,
    scale: float | None,
    inputs: Sequence[Any],
    elements: Elements,
    target: Target,
) -> PrimFunc:
    return gpu_attention.attention(shape, scale, inputs, elements)


def _symbolic_extents(shape: AttentionShape) -> tuple[Size, ...]:
    """Return the extents that may be symbolic."""
    return shape.batch, shape.queries, shape.keys


def _of_symbolic(inputs: Sequence[Any], result: Any) -> PrimFunc:
    """Return the kernel that computes `result` (B, T, H, E), whose memory layout is that of rows.
    Symbolic extents that are not an axis of an input become parameters, after the inputs."""
    scalars = unbound([tensor.shape for tensor in inputs], result.shape)
    function = te.create_prim_func([*inputs, *scalars, result])
    return s_tir.renew_defs(function).without_attr("global_symbol")


_KERNELS = {
    # With fewer queries, most of a vector would stay empty.
    CPU: _Kernel(("float32", "float64"), 4, True, lambda shape: True, _on_cpu),
    GPU: _Kernel(
        ("float32",), 1, False, lambda shape: gpu_attention.tile_of(shape) is not None, _on_gpu
    ),
}


def fuse_attention(module: IRModule, target: Target) -> IRModule:
    """Rewrite every attention that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Fuser)


@dataclass(frozen=True)
class _Match:
    shape: AttentionShape
    dtype: str
    scale: float | None
    q: View
    k: View  # of kt: (B, H, D, S)
    v: View
    mask: Any


@expr_functor.mutator
class _Fuser(Rewriter):
    @property
    def _kernel(self) -> _Kernel:
        return _KERNELS[target_info(self.target).kind]

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if is_op(call, "relax.matmul"):
            match = self._match(call)
            return call if match is None else self._fused(match)
        return call

    def _match(self, call: Any) -> _Match | None:
        weights, values = call.args
        softmax = self._only_use(weights, "relax.nn.softmax")
        if softmax is None or int(softmax.attrs.axis) not in (-1, 3):
            return None
        scores, mask = softmax.args[0], None
        plus = self._only_use(scores, "relax.add")
        if plus is not None:
            scores, mask = plus.args
            if not self._is_scores(scores):
                scores, mask = mask, scores
        scores, scale = self._unscaled(scores, self.only_use(scores))
        product = self._only_use(scores, "relax.matmul")
        if product is None:
            return None
        (q, of_q), (kt, of_kt) = (self._operand(operand) for operand in product.args)
        scale *= of_q * of_kt
        return self._checked(q, kt, values, None if scale == 1 else scale, mask)

    def _operand(self, expr: Any) -> tuple[Any, float]:
        """Return (tensor, factor) like `_unscaled`, but look through a permutation as well."""
        value = self.lookup_binding(expr) if isinstance(expr, relax.Var) else None
        if is_op(value, "relax.permute_dims") and isinstance(value.args[0], relax.Var):
            (source,) = value.args
            inner, factor = self._unscaled(source, self.lookup_binding(source))
            if factor != 1:
                return self.builder_.emit(relax.op.permute_dims(inner, order_of(value))), factor
        return self._unscaled(expr, value)

    def _unscaled(self, expr: Any, value: Any) -> tuple[Any, float]:
        """Return (tensor, constant factor): their product is `expr`, which is bound to `value`."""
        inverse = is_op(value, "relax.divide")
        if not inverse and not is_op(value, "relax.multiply"):
            return expr, 1.0
        for one, other in (value.args, reversed(value.args))[: 1 if inverse else 2]:
            if isinstance(other, Constant) and static_shape(other) == ():
                factor = float(other.value.numpy())
                if not inverse or factor != 0:
                    return one, 1 / factor if inverse else factor
        return expr, 1.0

    def _is_scores(self, expr: Any) -> bool:
        """Return whether `expr` is a matmul, possibly scaled."""
        inner, _ = self._unscaled(expr, self.only_use(expr))
        return self._only_use(inner, "relax.matmul") is not None

    def _checked(self, q: Any, kt: Any, v: Any, scale: float | None, mask: Any) -> _Match | None:
        shapes = [shape_of(operand) or () for operand in (q, kt, v)]
        dtypes = {str(operand.ty.dtype) for operand in (q, kt, v)}
        if len(dtypes) != 1 or not dtypes <= set(self._kernel.dtypes):
            return None
        if any(len(shape) != 4 or 0 in shape for shape in shapes):
            return None
        batch, heads, queries, features = shapes[0]
        keys, size = shapes[1][3], shapes[2][3]
        if shapes[1:] != [(batch, heads, features, keys), (batch, heads, keys, size)]:
            return None
        shape = AttentionShape(batch, heads, queries, keys, features, size)
        if not is_static((heads, features, size)):
            return None
        if self.on_gpu and not is_static(_symbolic_extents(shape)):
            return None
        if self.most(queries) < self._kernel.queries or not self._kernel.fits(shape):
            return None
        if mask is not None:
            given = shape_of(mask)
            if given is None or str(mask.ty.dtype) not in dtypes or len(given) > 4:
                return None
            full = (batch, heads, queries, keys)
            if any(n not in (1, m) for n, m in zip(given[::-1], full[::-1], strict=False)):
                return None
        of_q, of_k, of_v = (view_of(operand, self.lookup_binding) for operand in (q, kt, v))
        return _Match(shape, dtypes.pop(), scale, of_q, of_k, of_v, mask)

    def _fused(self, match: _Match) -> Any:
        sources: list[Any] = []
        for view in (match.q, match.k, match.v):
            if not any(source.same_as(view.source) for source in sources):
                sources.append(view.source)
        if match.mask is not None:
            turned = self._kernel.mask_turned
            sources.append(self._transposed(match.mask) if turned else match.mask)
        inputs = [
            te.placeholder(exprs_of(shape_of(source) or ()), str(source.ty.dtype), name=f"x{i}")
            for i, source in enumerate(sources)
        ]

        def elements(tensors: Sequence[Any]) -> Factors:
            def element(view: View) -> Element:
                of_source = zip(tensors, sources, strict=True)
                tensor = next(t for t, s in of_source if s.same_as(view.source))
                return lambda *index: tensor[tuple(view.at(index))]

            def mask(*index: Any) -> Any:  # (b, h, i, j)
                given = shape_of(sources[-1]) or ()
                index = index[4 - len(given) :]
                if self._kernel.mask_turned:
                    index = (*index[:-2], index[-1], index[-2])
                at = tuple(0 if n == 1 else x for n, x in zip(given, index, strict=True))
                return tensors[-1][at]

            q, kt, v = (element(view) for view in (match.q, match.k, match.v))
            return (
                q,
                lambda b, h, j, d: kt(b, h, d, j),
                v,
                None if match.mask is None else mask,
            )

        shape = match.shape
        split = exprs_of((shape.batch, shape.queries, shape.heads, shape.values))
        if not is_static(_symbolic_extents(shape)):
            function = self._kernel.make(
                shape, match.dtype, match.scale, inputs, elements, self.target
            )
            function = function.with_attrs({"op_pattern": OP_PATTERN.opaque})
            variable = self.builder_.add_func(function, "attention")
            scalars = unbound([source.ty.shape.values for source in sources], split)
            out_ty = relax.TensorType(split, match.dtype)
            out = relax.call_tir(variable, [*sources, *scalars], out_ty=out_ty)
            return relax.op.permute_dims(self.builder_.emit(out), [0, 2, 1, 3])
        rows = (shape.batch * shape.queries, shape.heads * shape.values)
        function = self._kernel.make(shape, match.dtype, match.scale, inputs, elements, self.target)
        function = function.with_attrs({"op_pattern": OP_PATTERN.opaque})
        variable = self.builder_.add_func(function, "attention")
        out = relax.call_tir(variable, sources, out_ty=relax.TensorType(rows, match.dtype))
        apart = self.builder_.emit(relax.op.reshape(self.builder_.emit(out), split))
        return relax.op.permute_dims(apart, [0, 2, 1, 3])

    def _transposed(self, mask: Any) -> Any:
        """Return the mask (..., T, S) as (..., S, T), so that queries lie side by side."""
        count = len(shape_of(mask) or ())
        if count < 2:
            extents = exprs_of((1,) * (2 - count) + tuple(shape_of(mask) or ()))
            mask, count = self.builder_.emit(relax.op.reshape(mask, extents)), 2
        axes = [*range(count - 2), count - 1, count - 2]
        return self.builder_.emit(relax.op.permute_dims(mask, axes))

    def _only_use(self, expr: Any, name: str) -> Any:
        """Return the call of operator `name` that `expr` is bound to; None if it is another
        expression or has other readers."""
        value = self.only_use(expr)
        return value if is_op(value, name) else None
