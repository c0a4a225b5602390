"""Rewrites matmuls and convolutions to take operands in a narrow dtype, with sums in float32.

Before: `matmul(x, w)` or an NHWC, HWIO `conv2d(x, w)` with a float32 result, where
- both operands have static shapes of at least two axes, with no extent 0,
- both are float32 and a narrower precision is requested; or, on a GPU, both are casts from the same
  half-precision dtype to float32, or both have the same half-precision dtype as the result.

After, for a CPU: the same call with `astype(astype(x, precision), float32)` for each operand, so
that all rules for float32 matmuls apply.

After, for a GPU: a tensor expression `sum(float32(x) * float32(w))` of operands in the narrow
dtype, which tensor cores support. Weights are rounded once, at load, and stored in that dtype. A
value that only matmuls and convolutions read is rounded by the kernel that computes it. All other
values stay float32, and the matmul rounds them as it reads them. tf32 is not a dtype: its operands
are float32 values rounded to 11 significant bits, and the matmul is annotated.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from needle.backend_ndarray.dtypes import HALVES
from needle_runtime.target.precision import FLOAT32
from needle_tvm._tvm.names import OP_PATTERN, IRModule, Target, expr_functor, relax, te, tirx, topi
from needle_tvm.graph.convolutions import conv_shapes
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.kernels.dense.gpu.tensor_core import TF32
from needle_tvm.target.info import target_info
from needle_tvm.tir.functions import static_shape

_FLOAT32_BITS, _TF32_BITS, _BFLOAT16_BITS = 24, 11, 8  # significant bits


def narrow_products(module: IRModule, target: Target, precision: str = FLOAT32) -> IRModule:
    """Rewrite every matmul and convolution that meets the preconditions, in every Relax function.

    Without a requested precision, the CPU's own rules handle float16 and bfloat16 operands.
    """
    on_gpu = target_info(target).is_gpu
    if precision == FLOAT32 and not on_gpu:
        return module

    def narrower(module: IRModule, function: relax.Function, target: Target) -> Any:
        made = (_OnGpu if on_gpu else _OnCpu)(module, function, target)
        made.precision = precision
        return made

    return rewrite(module, target, narrower, with_parameters=True)


def is_product(call: Any, dtypes: Collection[str] = ("float32",)) -> bool:
    """Return whether `call` is a matmul or convolution that the pass handles, with a result in one
    of `dtypes`; its operands may have any dtype."""
    if str(getattr(call.ty, "dtype", "")) not in dtypes:
        return False
    if is_op(call, "relax.matmul"):
        shapes = [static_shape(operand) for operand in call.args]
        return all(shape is not None and len(shape) > 1 and 0 not in shape for shape in shapes)
    return conv_shapes(call) is not None


class _Narrower(Rewriter):
    precision = FLOAT32

    def visit_call_(self, call: Any) -> Any:
        readers = self.readers
        products_alone = [
            isinstance(operand, relax.Var) and all(map(is_product, readers[operand]))
            for operand in call.args
        ]
        call = self.visit_expr_post_order(call)
        if not is_product(call):
            return call
        return self.narrowed(call, products_alone)

    def narrowed(self, call: Any, products_alone: Sequence[bool]) -> Any:
        """Return the call with narrow operands; `products_alone` says for each operand whether all
        its readers are matmuls or convolutions."""
        raise NotImplementedError


@expr_functor.mutator
class _OnCpu(_Narrower):
    def narrowed(self, call: Any, products_alone: Sequence[bool]) -> Any:
        if any(str(operand.ty.dtype) != "float32" for operand in call.args):
            return call
        operands = [self._rounded(operand) for operand in call.args]
        return relax.Call(call.op, operands, call.attrs, call.ty_args)

    def _rounded(self, operand: Any) -> Any:
        emit = self.builder_.emit
        if self.precision == "bfloat16":
            # TVM computes bfloat16 in float32 on a CPU: the casts below alone would not round.
            operand = self.builder_.emit_te(
                lambda x: rounded_to(x, _BFLOAT16_BITS), operand, primfunc_name_hint="to_bfloat16"
            )
        return emit(relax.op.astype(emit(relax.op.astype(operand, self.precision)), "float32"))


@expr_functor.mutator
class _OnGpu(_Narrower):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._rounded: dict[Any, Any] = {}

    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if not isinstance(call, relax.Call) or not is_product(call, HALVES):
            return call
        dtype = str(call.ty.dtype)
        if any(str(operand.ty.dtype) != dtype for operand in call.args):
            return call
        return relax.op.astype(self._product(call, call.args, dtype), dtype)

    def narrowed(self, call: Any, products_alone: Sequence[bool]) -> Any:
        halves = [self.half_of(operand) for operand in call.args]
        if all(half is not None for half in halves):
            dtypes = {str(half.ty.dtype) for half in halves}
            if len(dtypes) == 1:
                return self._product(call, halves, dtypes.pop())
        if self.precision == FLOAT32:
            return call
        operands = [
            self._round(operand)
            if self.is_parameter_work(operand) or (alone and self._is_made(operand))
            else operand
            for operand, alone in zip(call.args, products_alone, strict=True)
        ]
        return self._product(call, operands, self.precision)

    def _is_made(self, operand: Any) -> bool:
        """Return whether a kernel computes `operand` and so can also round it. This is not the case
        for an argument or a reshape of one."""
        while isinstance(operand, relax.Var):
            value = self.lookup_binding(operand)
            if not is_op(value, "relax.reshape"):
                return isinstance(value, relax.Call)
            (operand, *_) = value.args
        return False

    def _round(self, operand: Any) -> Any:
        if operand not in self._rounded:
            emit = self.builder_
            if self.precision == "tf32":
                made = emit.emit_te(_in_tf32, operand, primfunc_name_hint="to_tf32")
            else:
                made = emit.emit(relax.op.astype(operand, self.precision))
            self._rounded[operand] = made
        return self._rounded[operand]

    def _product(self, call: Any, operands: Sequence[Any], precision: str) -> Any:
        rounded = list(self._rounded.values())

        def narrow(tensor: te.Tensor, operand: Any) -> te.Tensor:
            if str(tensor.dtype) != "float32":
                return tensor
            if precision != "tf32":
                return topi.cast(tensor, precision)
            return tensor if any(operand.same_as(r) for r in rounded) else _in_tf32(tensor)

        def rule(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            x, w = (narrow(t, o) for t, o in zip((x, w), operands, strict=True))
            note = {TF32: 1} if precision == "tf32" else {}
            return matmul(x, w, note) if is_op(call, "relax.matmul") else conv(x, w, call, note)

        return self.builder_.emit_te(
            rule,
            *operands,
            primfunc_name_hint="matmul" if is_op(call, "relax.matmul") else "conv2d",
            primfunc_attrs={"op_pattern": OP_PATTERN.out_fusable},
        )


def _wide(value: Any) -> Any:
    return value if str(value.ty) == "float32" else tirx.Cast("float32", value)


def matmul(a: te.Tensor, b: te.Tensor, note: dict[str, Any]) -> te.Tensor:
    """Multiply (..., M, K) by (..., K, N), with leading axes broadcast, into (..., M, N) float32.

    `note` annotates the block that sums.
    """
    *_, m, terms = (int(extent) for extent in a.shape)
    n = int(b.shape[-1])
    leading = [[int(extent) for extent in each.shape[:-2]] for each in (a, b)]
    count = max(map(len, leading))
    padded = [[1] * (count - len(each)) + each for each in leading]
    batch = [max(pair) for pair in zip(*padded, strict=True)]
    axis = te.reduce_axis((0, terms), name="k")

    def of(tensor: te.Tensor, extents: list[int], at: Sequence[Any]) -> list[Any]:
        own = list(at)[count - len(extents) :]
        return [0 if extent == 1 else i for i, extent in zip(own, extents, strict=True)]

    def element(*at: Any) -> Any:
        *outer, i, j = at
        left = a(*of(a, leading[0], outer), i, axis)
        right = b(*of(b, leading[1], outer), axis, j)
        return te.sum(_wide(left) * _wide(right), axis=axis)

    return te.compute((*batch, m, n), element, name="matmul", attrs=note)


def conv(x: te.Tensor, w: te.Tensor, call: Any, note: dict[str, Any]) -> te.Tensor:
    """Return the convolution `call` of x (B, H, W, C) and w (kh, kw, C / groups, O) in float32."""
    attrs, shape = call.attrs, static_shape(call)
    (s, t), (d, e) = ([int(i) for i in each] for each in (attrs.strides, attrs.dilation))
    above, before, below, after = (int(i) for i in attrs.padding)
    kh, kw, inputs, outputs = (int(extent) for extent in w.shape)
    groups = int(attrs.groups)
    padded = x
    if any((above, before, below, after)):
        padded = topi.nn.pad(x, (0, above, before, 0), (0, below, after, 0), name="padded")
    taps = [te.reduce_axis((0, extent), name=name) for extent, name in ((kh, "i"), (kw, "j"))]
    (i, j), f = taps, te.reduce_axis((0, inputs), name="f")

    def element(b: Any, y: Any, z: Any, o: Any) -> Any:
        channel = f if groups == 1 else o // (outputs // groups) * inputs + f
        seen = padded(b, y * s + i * d, z * t + j * e, channel)
        return te.sum(_wide(seen) * _wide(w(i, j, f, o)), axis=[i, j, f])

    return te.compute(shape, element, name="conv2d", attrs=note)


def rounded_to(x: te.Tensor, bits: int) -> te.Tensor:
    """Round float32 x to the nearest number of `bits` significant bits, ties to even; NaN stays
    NaN."""
    dropped = _FLOAT32_BITS - bits

    def constant(value: int) -> Any:
        return tirx.const(value, "uint32")

    def rounded(*at: Any) -> Any:
        word = tirx.reinterpret("uint32", x(*at))
        odd = (word >> constant(dropped)) & constant(1)
        near = word + (odd + constant((1 << dropped - 1) - 1))
        # Rounding up a NaN could make it a number.
        is_nan = (word & constant(0x7FFFFFFF)) > constant(0x7F800000)
        kept = constant(0xFFFFFFFF ^ ((1 << dropped) - 1))
        return tirx.reinterpret("float32", tirx.Select(is_nan, constant(0x7FC00000), near & kept))

    return te.compute(x.shape, rounded, name="rounded")


def _in_tf32(x: te.Tensor) -> te.Tensor:
    return rounded_to(x, _TF32_BITS)
