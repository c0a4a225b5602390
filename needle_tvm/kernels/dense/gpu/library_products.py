"""Replaces matmuls with calls to cuBLAS.

Before: `matmul(x, w)`, where
- both have static shapes of at least two axes and the same float dtype, and no extent is 0 or
  above 2^31 - 1,
- `w` has two axes, or the same leading axes as `x`; if `w` has two axes and `x` has more, the last
  two axes of `x` are not exchanged, because its rows would then not form one matrix,
- the matmul does not depend on parameters alone,
- `chosen` selects it.

After: a call to the packed function that `cublas_gemm.cc` exports. Its second result is a workspace
for cuBLAS, which memory planning shares among all calls. An operand that is another tensor with its
last two axes exchanged is read in place. A half-precision operand that was widened for the matmul
is read in half precision. If `precision` is narrow, operands are rounded to it; sums are
float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, TensorType, expr_functor, relax
from needle_tvm.graph.dependence import bindings_of, is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import static_shape

_HALVES = ("float16", "bfloat16")
_DTYPES = (*_HALVES, "float32", "float64")
_LARGEST = 2**31 - 1

SOURCE = Path(__file__).with_name("cublas_gemm.cc")
FUNCTION = "needle_cublas_gemm"  # exported by SOURCE

# NVIDIA's recommendation in the documentation of cublasSetWorkspace: 32 MiB from Hopper on, else 4.
_WORKSPACE = {True: 32 << 20, False: 4 << 20}
_HOPPER = 90


@dataclass(frozen=True)
class Product:
    """The facts that the choice for a matmul depends on. The matmul consists of `count` matmuls of
    (rows, terms) by (terms, columns).

    `transposed` says for each operand whether its last two axes are swapped in memory. `stored`
    says whether the second operand depends on parameters alone. `followed` says whether exactly one
    operator reads the result and is elementwise: our own kernels fuse it into their write-back.
    """

    count: int
    rows: int
    terms: int
    columns: int
    dtype: str
    transposed: tuple[bool, bool]
    stored: bool
    followed: bool

    def facts(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "transposed": list(self.transposed)}


def library_products(
    module: IRModule,
    target: Target,
    *,
    chosen: Callable[[Product], bool],
    precision: str = "float32",
) -> IRModule:
    """Rewrite the matmuls that meet the preconditions, in every function with parameters.

    Float32 operands are rounded to `precision`: "tf32", "float16" or "bfloat16".
    """

    def with_choice(module: IRModule, function: relax.Function, target: Target) -> Any:
        made = _Rewriter(module, function, target)
        made.chosen, made.precision = chosen, precision
        return made

    return rewrite(module, target, with_choice, with_parameters=True)


def is_used(module: IRModule) -> bool:
    """Return whether a function of the module calls cuBLAS."""
    return any(
        is_op(value, "relax.call_dps_packed")
        and str(getattr(value.args[0], "global_symbol", "")) == FUNCTION
        for function in module.functions.values()
        if isinstance(function, relax.Function)
        for value in bindings_of(function).values()
    )


# Operators that the write-back of a matmul can compute if their result has the matmul's shape.
_ELEMENTWISE = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "exp", "tanh"),
    *("sigmoid", "abs", "sqrt", "erf", "nn.relu", "nn.gelu", "nn.silu", "astype"),
)


@expr_functor.mutator
class _Rewriter(Rewriter):
    chosen: Callable[[Product], bool]
    precision: str

    def visit_var_binding_(self, binding: Any) -> None:
        self._bound = binding.var
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        variable = self._bound
        call = self.visit_expr_post_order(call)
        if not is_op(call, "relax.matmul"):
            return call
        halves = [self.half_of(operand) for operand in call.args]
        operands = list(call.args)
        if None not in halves and len({str(half.ty.dtype) for half in halves}) == 1:
            operands = halves
        x, w = (self._as_it_lies(operand) for operand in operands)
        product = self._product(call, x, w, variable)
        if product is None or not self.chosen(product):
            return call
        return self._by_library(call, x, w, product)

    def _product(self, call: Any, x: Any, w: Any, variable: Any) -> Product | None:
        x_shape, w_shape, out = (static_shape(each) for each in (*call.args, call))
        if x_shape is None or w_shape is None or out is None:
            return None
        if len(x_shape) < 2 or len(w_shape) < 2 or 0 in (*x_shape, *w_shape):
            return None
        dtypes = {str(x[0].ty.dtype), str(w[0].ty.dtype)}
        if len(dtypes) != 1 or not dtypes <= set(_DTYPES):
            return None
        if all(map(self.is_parameter_work, call.args)):
            return None
        # One (K, N) matrix for all rows, or the same number of matrices on both sides.
        shared = len(w_shape) == 2
        if (x[1] and len(x_shape) > 2) if shared else x_shape[:-2] != w_shape[:-2]:
            return None
        count = 1 if shared else math.prod(out[:-2])
        rows = math.prod(out[:-1]) // count
        if max(count, rows, *w_shape) > _LARGEST:
            return None
        dtype = dtypes.pop()
        terms, columns = w_shape[-2:]
        return Product(
            count=count,
            rows=rows,
            terms=terms,
            columns=columns,
            dtype=self.precision if dtype == "float32" else dtype,
            transposed=(x[1], w[1]),
            stored=self.is_parameter_work(call.args[1]),
            followed=self._followed(variable),
        )

    def _followed(self, variable: Any) -> bool:
        readers, shape = self.readers[variable], static_shape(variable)
        return len(readers) == 1 and any(
            is_op(readers[0], f"relax.{name}") and static_shape(readers[0]) == shape
            for name in _ELEMENTWISE
        )

    def _by_library(self, call: Any, x: Any, w: Any, product: Product) -> Any:
        emit = self.builder_.emit
        operands = [
            emit(relax.op.astype(operand, product.dtype))
            if product.dtype in _HALVES and str(operand.ty.dtype) not in _HALVES
            else operand
            for operand, _ in (x, w)
        ]
        flags = [relax.prim_value(int(f)) for f in (x[1], w[1], product.dtype == "tf32")]
        newer = target_info(self.target).capability >= _HOPPER
        workspace = TensorType((_WORKSPACE[newer],), "uint8")
        both = emit(
            relax.op.call_dps_packed(
                FUNCTION, relax.Tuple([*operands, *flags]), out_ty=[call.ty, workspace]
            )
        )
        return relax.TupleGetItem(both, 0)

    def _as_it_lies(self, operand: Any) -> tuple[Any, bool]:
        """Return the tensor to read in place for an operand, and whether its last two axes are
        swapped."""
        value = self.lookup_binding(operand) if isinstance(operand, relax.Var) else operand
        if is_op(value, "relax.permute_dims"):
            count = len(static_shape(value) or ())
            axes = value.attrs.axes
            order = list(range(count))[::-1] if axes is None else [int(axis) for axis in axes]
            if order == [*range(count - 2), count - 1, count - 2]:
                return value.args[0], True
        return operand, False
