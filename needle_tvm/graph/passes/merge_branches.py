"""Merges convolutions of one tensor into one convolution if their results are summed.

Before: sums and differences of tensors of the same shape. Several of their terms are branches with
the same `x`, or with equal permutations of one tensor as `x`:
- `conv2d(x, w)` in the layouts NHWC and HWIO, where the static weights depend on parameters of the
  function alone, and strides, groups and channels are the same. The largest window includes the
  pixels of all other windows, and all dilations are equal, except that of a single-pixel window,
- `multiply(x, s)`, where `s` has one number for each channel, or one for all, and depends on
  parameters and constants alone. The convolutions then keep the shape of `x`.
Nothing else reads a branch or an intermediate sum.

After: one convolution with the sum of the weights, plus the other terms. The weights' sum is work
on parameters, which `LiftTransformParams` moves out of `main`. Networks that are trained with
parallel branches have this form, as in "RepVGG: Making VGG-style ConvNets Great Again" (Ding et
al., 2021, section 3.3); its authors merge the branches before they ship a model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from needle_tvm._tvm.names import IRModule, Target, expr_functor, relax, te, tirx
from needle_tvm.graph.convolutions import conv_extents
from needle_tvm.graph.dependence import Origins, bindings_of, is_op, parameters_of, readers_of
from needle_tvm.graph.rewrite import Rewriter, rewrite
from needle_tvm.tir.extents import shape_of
from needle_tvm.tir.functions import static_shape

_SIGNS = {"relax.add": 1, "relax.subtract": -1}
_DTYPES = ("float32", "float64")


def merge_branches(module: IRModule, target: Target) -> IRModule:
    """Merge all branches that meet the preconditions, in every Relax function."""
    return rewrite(module, target, _Merger, with_parameters=True)


@dataclass(frozen=True)
class _Term:
    """A term of a sum, 1 or -1 times a tensor; `call` is its value if it may be a branch."""

    tensor: Any
    sign: int
    call: Any

    @property
    def is_conv(self) -> bool:
        return is_op(self.call, "relax.nn.conv2d")


@dataclass(frozen=True)
class _Sum:
    """A sum with branches: the convolution with the largest window, all branches with the positions
    of their windows in it, and the other terms."""

    base: Any
    branches: list[tuple[_Term, tuple[int, int]]]
    others: list[_Term]


@expr_functor.mutator
class _Merger(Rewriter):
    def __init__(self, module: IRModule, function: relax.Function, target: Target) -> None:
        super().__init__(module, function, target)
        self._sums = dict(_sums(function))

    def visit_call_(self, call: Any) -> Any:
        if call not in self._sums:
            return self.visit_expr_post_order(call)
        whole_sum, emit = self._sums[call], self.builder_.emit
        x, w = (self.visit_expr(each) for each in whole_sum.base.args)
        factors = [self._factor(term) for term, _ in whole_sum.branches]
        terms = [(term.sign, term.is_conv, place) for term, place in whole_sum.branches]
        weights = self.builder_.emit_te(
            lambda *factors: merged(static_shape(w) or (), factors, terms),
            *factors,
            primfunc_name_hint="merge_branches",
        )
        total = relax.Call(
            whole_sum.base.op, [x, weights], whole_sum.base.attrs, whole_sum.base.ty_args
        )
        for term in whole_sum.others:
            other, add = self.visit_expr(term.tensor), term.sign > 0
            total = (relax.op.add if add else relax.op.subtract)(emit(total), other)
        return total

    def _factor(self, term: _Term) -> Any:
        """Return the factor of `x` in a branch: weights, or one number for each channel."""
        if term.is_conv:
            return self.visit_expr(term.call.args[1])
        x, scale = _scaled(term.call)
        channels = int((shape_of(x) or ())[-1])
        flat = relax.op.reshape(self.visit_expr(scale), (math.prod(static_shape(scale) or ()),))
        return self.builder_.emit(relax.op.broadcast_to(self.builder_.emit(flat), (channels,)))


def merged(
    shape: tuple[int, ...],
    factors: Sequence[te.Tensor],
    terms: Sequence[tuple[int, bool, tuple[int, int]]],
) -> te.Tensor:
    """Return the merged weights, of `shape` (kh, kw, C, N), of a sum of branches. `terms` has, for
    each branch, its sign, whether it is a convolution, and the row and column of the merged window
    where its own window begins."""
    _, _, inputs, _ = shape

    def element(row: Any, column: Any, c: Any, n: Any) -> Any:
        total = None
        for factor, (sign, is_conv, (top, left)) in zip(factors, terms, strict=True):
            if is_conv:
                height, width = (int(extent) for extent in factor.shape[:2])
                here = factor(row - top, column - left, c, n)
                within = [row >= top, row < top + height, column >= left, column < left + width]
                if (height, width) == shape[:2]:
                    within = []
            else:
                here = factor(n)
                within = [tirx.EQ(row, top), tirx.EQ(column, left), tirx.EQ(c, n % inputs)]
            value = here if sign > 0 else -here
            if within:
                value = tirx.if_then_else(tirx.all(*within), value, tirx.const(0, factor.dtype))
            total = value if total is None else total + value
        return total

    return te.compute(shape, element, name="merge_branches")


def _sums(function: relax.Function) -> Iterator[tuple[Any, _Sum]]:
    """For each sum with branches to merge, yield its last addition and the sum."""
    values, readers = bindings_of(function), readers_of(function)
    origins = Origins(parameters_of(function), values.get)

    def inner(tensor: Any, call: Any) -> Any:
        """Return the value of an operand that nothing else reads and that is not broadcast."""
        value = values.get(tensor) if isinstance(tensor, relax.Var) else None
        alone = value is not None and len(readers[tensor]) == 1
        return value if alone and shape_of(value) == shape_of(call) else None

    def permuted(x: Any) -> Any:
        """Return a value that is equal for equal permutations of a tensor."""
        value = values.get(x)
        if not is_op(value, "relax.permute_dims"):
            return x
        return value.args[0], tuple(map(int, value.attrs.axes or ()))

    def terms_of(call: Any) -> list[_Term]:
        terms, pending = [], [(call, None, 1)]
        while pending:
            value, tensor, sign = pending.pop()
            of_right = _sign_of(value)
            if of_right is None:
                terms.append(_Term(tensor, sign, value))
                continue
            left, right = value.args
            pending.append((inner(right, call), right, sign * of_right))
            pending.append((inner(left, call), left, sign))
        return terms

    for tensor, call in values.items():
        if _sign_of(call) is None or str(call.ty.dtype) not in _DTYPES:
            continue
        (reader, *more) = readers[tensor] or [None]
        if not more and _sign_of(reader) is not None and shape_of(reader) == shape_of(call):
            continue  # another addition follows
        merged_sum = _merged_sum(terms_of(call), origins, permuted)
        if merged_sum is not None:
            yield call, merged_sum


def _sign_of(value: Any) -> int | None:
    """Return the sign of the second operand of an addition or subtraction; None for any other
    value."""
    return next((sign for name, sign in _SIGNS.items() if is_op(value, name)), None)


def _merged_sum(terms: list[_Term], origins: Origins, same: Callable[[Any], Any]) -> _Sum | None:
    """Return the sum that merges as many of the terms as possible; None if no two can be merged.
    `same` returns equal values for equal inputs."""
    by_input = defaultdict(list)
    for term in terms:
        if term.is_conv:
            x, w = term.call.args
            if conv_extents(term.call) and origins.is_parameter_work(w):
                by_input[same(x)].append(term)
        elif is_op(term.call, "relax.multiply"):
            x, scale = _scaled(term.call)
            if scale is not None and origins.is_known(scale):
                by_input[same(x)].append(term)
    sums = (_around(base, each) for each in by_input.values() for base in each if base.is_conv)
    best = max(filter(None, sums), key=lambda each: len(each[1]), default=None)
    if best is None or len(best[1]) < 2:
        return None
    base, branches = best
    inside = [term for term, _ in branches]
    others = [term for term in terms if not any(term is each for each in inside)]
    return _Sum(base.call, branches, others)


def _around(base: _Term, terms: list[_Term]) -> tuple[_Term, list[tuple[_Term, Any]]]:
    """Return a convolution and the branches that its window covers, with their positions in it."""
    places = [(term, _place(base.call, term)) for term in terms]
    return base, [(term, place) for term, place in places if place is not None]


def _place(base: Any, term: _Term) -> tuple[int, int] | None:
    """Return the row and column of `base`'s window where a branch's window begins. Return None if
    it begins outside or between two pixels, or if the two convolutions differ in other ways."""
    attrs, shape = base.attrs, static_shape(base.args[1]) or ()
    strides, dilation = list(map(int, attrs.strides)), list(map(int, attrs.dilation))
    padding = list(map(int, attrs.padding))
    if term.is_conv:
        own, window = term.call.attrs, static_shape(term.call.args[1]) or ()
        same = list(map(int, own.strides)) == strides and int(own.groups) == int(attrs.groups)
        if not same or window[2:] != shape[2:] or own.out_dtype != attrs.out_dtype:
            return None
        before, steps = list(map(int, own.padding)), list(map(int, own.dilation))
    else:
        if shape_of(base) != shape_of(base.args[0]) or strides != [1, 1]:
            return None
        before, steps, window = [0] * 4, dilation, (1, 1)
    begins = []
    for axis in (0, 1):
        begin, rest = divmod(padding[axis] - before[axis], dilation[axis])
        fits = begin >= 0 and begin + window[axis] <= shape[axis]
        if rest or not fits or (window[axis] > 1 and steps[axis] != dilation[axis]):
            return None
        begins.append(begin)
    return begins[0], begins[1]


def _scaled(call: Any) -> tuple[Any, Any]:
    """Return (x, s) of `multiply(x, s)`, where `s` has one number for each channel, or one for all;
    (None, None) for another product."""
    for x, scale in (call.args, reversed(call.args)):
        shape, factors = shape_of(x), static_shape(scale)
        if factors is None or shape is None or shape != shape_of(call) or len(shape) != 4:
            continue
        if math.prod(factors[:-1]) == 1 and math.prod(factors) in (1, shape[-1]):
            return x, scale
    return None, None
