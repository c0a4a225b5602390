"""Lets a convolution pad its images by itself.

Before: `conv2d(pad(x), w)`, or `conv2d(permute_dims(pad(x)), w)`, in the layouts NHWC and HWIO,
where `pad` puts zeros only around rows and columns.

After: `conv2d(x, w)` with this padding added to its own. Networks with TensorFlow's "same" padding,
which has one more zero below and on the right, have this form.
"""

from __future__ import annotations

from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax
from needle_tvm.graph.convolutions import is_conv, with_weights
from needle_tvm.graph.dependence import is_op
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.graph.views import order_of


def fold_pad(module: IRModule, target: Target) -> IRModule:
    """Fold every padding that meets the preconditions, in every Relax function."""
    return rewrite(module, target, _Folder)


@expr_functor.mutator
class _Folder(Rewriter):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if not is_conv(call):
            return call
        x, w = call.args
        value, order = self._value(x), [0, 1, 2, 3]
        if is_op(value, "relax.permute_dims"):
            order = list(map(int, order_of(value)))
            value = self._value(value.args[0])
        if not is_op(value, "relax.nn.pad") or str(value.attrs.pad_mode) != "constant":
            return call
        widths = [int(n) for n in value.attrs.pad_width]
        before, after = ([widths[2 * axis + end] for axis in order] for end in (0, 1))
        outside = [before[0], after[0], before[3], after[3]]
        if float(value.attrs.pad_value) != 0 or any(outside) or min(widths) < 0:
            return call
        images = value.args[0]
        if order != [0, 1, 2, 3]:
            images = self.builder_.emit(relax.op.permute_dims(images, order))
        own = [int(n) for n in call.attrs.padding]
        more = [before[1], before[2], after[1], after[2]]
        return with_weights(
            call, w, images=images, padding=[a + b for a, b in zip(own, more, strict=True)]
        )

    def _value(self, x: Any) -> Any:
        return self.lookup_binding(x) if isinstance(x, relax.Var) else x
