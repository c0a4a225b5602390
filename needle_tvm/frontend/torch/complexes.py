"""Complex numbers inside a PyTorch model, as pairs of real tensors.

A value of the importer's that is complex is a pair of Relax tensors. Fourier transforms are matmuls
by the matrices of sines and cosines (a DFT), which suit the sizes of spectrograms and of mixing
layers; sizes whose matrix would not fit a cache by far are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from needle_tvm._tvm.names import relax
from needle_tvm.frontend.torch.nodes import extents_of
from needle_tvm.frontend.torch.operands import operator_of

_op = relax.op

_MOST = 1 << 24  # elements of a DFT's matrix

Pair = tuple[Any, Any]

# Operators that do the same to both parts.
_BY_PART = frozenset(
    "alias cat clone expand flip index_select lift_fresh_copy mean neg permute repeat reshape roll "
    "select slice squeeze stack sum transpose unsqueeze view".split()
)


def concerns(node: Any) -> bool:
    """Whether a node computes with complex numbers."""
    return any(map(_is_complex, (node, *node.all_input_nodes)))


def knows(node: Any) -> bool:
    """Whether `convert` has a rule for a node that computes with complex numbers."""
    return operator_of(node) in _BY_PART or operator_of(node) in _RULES


def convert(node: Any, importer: Any, of_reals: Callable[[], Any]) -> Any:
    """The value of a node with a rule: a pair if it is complex. `of_reals` converts the node as if
    its operands were real."""
    name = operator_of(node)
    if name not in _BY_PART:
        return _RULES[name](node, importer)
    given = {each: importer.env[each] for each in node.all_input_nodes}
    parts = []
    for number in range(2):
        importer.env.update(
            {each: value[number] for each, value in given.items() if _is_complex(each)}
        )
        try:
            part = of_reals()
        finally:
            importer.env.update(given)
        parts.append(importer.block_builder.emit(part) if isinstance(part, relax.Call) else part)
    return tuple(parts)


def _is_complex(node: Any) -> bool:
    return bool(getattr(getattr(node.meta.get("val"), "dtype", None), "is_complex", False))


class _Arithmetic:
    """Operators on real tensors and numbers, emitted one by one."""

    def __init__(self, importer: Any) -> None:
        self.emit = importer.block_builder.emit

    def of(self, operator: Callable[..., Any], x: Any, y: Any) -> Any:
        like = x if not isinstance(x, (int, float)) else y
        x, y = (
            relax.const(each, str(like.ty.dtype)) if isinstance(each, (int, float)) else each
            for each in (x, y)
        )
        return self.emit(operator(x, y))

    def add(self, x: Any, y: Any) -> Any:
        return self.of(_op.add, x, y)

    def sub(self, x: Any, y: Any) -> Any:
        return self.of(_op.subtract, x, y)

    def mul(self, x: Any, y: Any) -> Any:
        return self.of(_op.multiply, x, y)

    def div(self, x: Any, y: Any) -> Any:
        return self.of(_op.divide, x, y)

    def product(self, x: Pair, y: Pair) -> Pair:
        (a, b), (c, d) = x, y
        return (
            self.sub(self.mul(a, c), self.mul(b, d)),
            self.add(self.mul(a, d), self.mul(b, c)),
        )

    def squared(self, x: Pair) -> Any:
        return self.add(self.mul(x[0], x[0]), self.mul(x[1], x[1]))


def _operand(importer: Any, value: Any) -> Any:
    """A pair, a real tensor, or a number."""
    if isinstance(value, complex):
        return value.real, value.imag
    return importer.env[value] if hasattr(value, "meta") else value


def _as_pair(m: _Arithmetic, value: Any) -> Pair:
    """A pair for any operand; a real tensor's other part has its shape, to be broadcast."""
    if isinstance(value, tuple):
        return value
    return value, (m.mul(value, 0.0) if hasattr(value, "ty") else 0.0)


def _sum(sign: int) -> Callable[[Any, Any], Pair]:
    def rule(node: Any, importer: Any) -> Pair:
        if node.kwargs.get("alpha", 1) != 1:
            raise ValueError(f"{node.target} of complex numbers with alpha")
        m = _Arithmetic(importer)
        x, y = (_operand(importer, each) for each in node.args[:2])
        x, y = (_as_pair(m, each) for each in (x, y))
        both = m.add if sign > 0 else m.sub
        return both(x[0], y[0]), both(x[1], y[1])

    return rule


def _mul(node: Any, importer: Any) -> Pair:
    m = _Arithmetic(importer)
    x, y = (_operand(importer, each) for each in node.args[:2])
    if isinstance(x, tuple) and isinstance(y, tuple):
        return m.product(x, y)
    pair, real = (x, y) if isinstance(x, tuple) else (y, x)
    return m.mul(pair[0], real), m.mul(pair[1], real)


def _div(node: Any, importer: Any) -> Pair:
    m = _Arithmetic(importer)
    x, y = (_operand(importer, each) for each in node.args[:2])
    if not isinstance(y, tuple):
        return m.div(x[0], y), m.div(x[1], y)
    length = m.squared(y)
    x = x if isinstance(x, tuple) else (x, 0.0)
    top = m.product(x, (y[0], m.mul(y[1], -1.0)))
    return m.div(top[0], length), m.div(top[1], length)


def _square(node: Any, importer: Any) -> Pair:
    if node.args[1] != 2:
        raise ValueError(f"{node.target} of complex numbers: no power but 2")
    x = importer.env[node.args[0]]
    return _Arithmetic(importer).product(x, x)


def _conjugate(node: Any, importer: Any) -> Any:
    x = importer.env[node.args[0]]
    return (x[0], _Arithmetic(importer).mul(x[1], -1.0)) if isinstance(x, tuple) else x


def _copied(node: Any, importer: Any) -> Any:
    """`_to_copy`: a real tensor as a complex one, another width, or the real part alone."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    dtype = str(node.meta["val"].dtype.to_real()).partition(".")[2]
    parts = x if isinstance(x, tuple) else (x, emit(_op.zeros_like(x)))
    cast = tuple(emit(_op.astype(part, dtype)) for part in parts)
    return cast if _is_complex(node) else cast[0]


def _abs(node: Any, importer: Any) -> Any:
    m = _Arithmetic(importer)
    return m.emit(_op.sqrt(m.squared(importer.env[node.args[0]])))


def _angle(node: Any, importer: Any) -> Any:
    re, im = importer.env[node.args[0]]
    return importer.block_builder.emit(_op.atan2(im, re))


def _exp(node: Any, importer: Any) -> Pair:
    re, im = importer.env[node.args[0]]
    return _polar_of(importer, importer.block_builder.emit(_op.exp(re)), im)


def _polar(node: Any, importer: Any) -> Pair:
    return _polar_of(importer, *(importer.env[each] for each in node.args[:2]))


def _polar_of(importer: Any, length: Any, angle: Any) -> Pair:
    m = _Arithmetic(importer)
    return (
        m.mul(length, m.emit(_op.cos(angle))),
        m.mul(length, m.emit(_op.sin(angle))),
    )


def _joined(node: Any, importer: Any) -> Any:
    """`view_as_real`: (..., 2)."""
    emit = importer.block_builder.emit
    return emit(
        _op.concat([emit(_op.expand_dims(x, [-1])) for x in importer.env[node.args[0]]], -1)
    )


def _parted(node: Any, importer: Any) -> Pair:
    """`view_as_complex` of (..., 2)."""
    x, emit = importer.env[node.args[0]], importer.block_builder.emit
    last = len(extents_of(x)) - 1
    parts = [emit(_op.strided_slice(x, [last], [i], [i + 1])) for i in range(2)]
    re, im = (emit(_op.squeeze(part, [last])) for part in parts)
    return re, im


def _transformed(
    importer: Any, x: Any, axis: int, inputs: int, outputs: int, weights: Sequence[Any]
) -> list[Any]:
    """x (real) times each of the matrices (inputs, outputs), along an axis."""
    emit, rank = importer.block_builder.emit, len(extents_of(x))
    if inputs * outputs > _MOST:
        raise ValueError(
            f"a Fourier transform of {inputs} points: as a matmul it would take a matrix of more "
            f"than {_MOST} elements"
        )
    axis %= rank
    order = [*(each for each in range(rank) if each != axis), axis]
    back = [order.index(each) for each in range(rank)]
    x = x if axis == rank - 1 else emit(_op.permute_dims(x, order))
    lead = extents_of(x)[:-1]
    rows = emit(_op.reshape(x, (importer.product(lead), inputs)))
    found = []
    for each in weights:
        y = emit(_op.matmul(rows, relax.const(each.astype(str(x.ty.dtype)), str(x.ty.dtype))))
        y = emit(_op.reshape(y, (*lead, outputs)))
        found.append(y if axis == rank - 1 else emit(_op.permute_dims(y, back)))
    return found


def _waves(points: int, inputs: int, outputs: int) -> tuple[Any, Any]:
    """cos and sin of 2 pi n k / points, (inputs, outputs), exact where the angle is a quarter."""
    steps = np.outer(np.arange(inputs), np.arange(outputs)) % points
    angle = 2 * np.pi * steps / points
    return np.cos(angle), np.sin(angle)


def _scale(mode: int, sizes: Sequence[int]) -> float:
    count = math.prod(sizes)
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[mode]


def _size(x: Any, axis: int) -> int:
    extent = extents_of(x)[axis]
    if not isinstance(extent, int):
        raise ValueError("a Fourier transform along an axis whose size is open")
    return extent


def _dft(importer: Any, x: Pair, axis: int, forward: bool, scale: float) -> Pair:
    n = _size(x[0], axis)
    cos, sin = _waves(n, n, n)
    sin = -sin if forward else sin
    m = _Arithmetic(importer)
    (a, b), (c, d) = (
        _transformed(importer, part, axis, n, n, (cos * scale, sin * scale)) for part in x
    )
    return m.sub(a, d), m.add(b, c)


def _of_reals(node: Any, importer: Any) -> Pair:
    """`_fft_r2c`: the transform of real numbers, with the half that says all, or whole."""
    x, axes, mode, one_sided = node.args
    x = importer.env[x]
    sizes = [_size(x, axis) for axis in axes]
    n = sizes[-1]
    count = n // 2 + 1 if one_sided else n
    cos, sin = _waves(n, n, count)
    scale = _scale(mode, sizes)
    re, im = _transformed(importer, x, axes[-1], n, count, (cos * scale, -sin * scale))
    for axis in axes[:-1]:
        re, im = _dft(importer, (re, im), axis, True, 1.0)
    return re, im


def _of_complexes(node: Any, importer: Any) -> Pair:
    """`_fft_c2c`."""
    x, axes, mode, forward = node.args
    pair: Pair = importer.env[x]
    scale = _scale(mode, [_size(pair[0], axis) for axis in axes])
    for number, axis in enumerate(axes):
        pair = _dft(importer, pair, axis, forward, 1.0 if number else scale)
    return pair


def _to_reals(node: Any, importer: Any) -> Any:
    """`_fft_c2r`: the inverse of `_fft_r2c`, with n points along the last of the axes."""
    x, axes, mode, n = node.args
    pair: Pair = importer.env[x]
    scale = _scale(mode, [*(_size(pair[0], axis) for axis in axes[:-1]), n])
    for axis in axes[:-1]:
        pair = _dft(importer, pair, axis, False, 1.0)
    count = _size(pair[0], axes[-1])
    used = n // 2 + 1
    if count < used:
        raise ValueError(f"{node.target}: {count} elements of a spectrum for {n} points")
    cos, sin = _waves(n, count, n)
    times = np.where(np.arange(count) % n == (-np.arange(count)) % n, 1.0, 2.0) * scale
    times[used:] = 0
    (re,) = _transformed(importer, pair[0], axes[-1], count, n, (cos * times[:, None],))
    (im,) = _transformed(importer, pair[1], axes[-1], count, n, (sin * times[:, None],))
    return _Arithmetic(importer).sub(re, im)


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "_to_copy": _copied,
    "add": _sum(1),
    "sub": _sum(-1),
    "mul": _mul,
    "div": _div,
    "pow": _square,
    "conj": _conjugate,
    "_conj": _conjugate,
    "conj_physical": _conjugate,
    "_conj_physical": _conjugate,
    "resolve_conj": lambda node, importer: importer.env[node.args[0]],
    "real": lambda node, importer: importer.env[node.args[0]][0],
    "imag": lambda node, importer: importer.env[node.args[0]][1],
    "abs": _abs,
    "angle": _angle,
    "exp": _exp,
    "polar": _polar,
    "complex": lambda node, importer: tuple(importer.env[each] for each in node.args[:2]),
    "view_as_real": _joined,
    "view_as_complex": _parted,
    "_fft_r2c": _of_reals,
    "_fft_c2c": _of_complexes,
    "_fft_c2r": _to_reals,
}
