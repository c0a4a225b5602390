"""Converters of Resize and Upsample, which resample each axis separately.

Each element of the result has a position among the input's elements along the axis. The position
determines which input elements contribute, and their weights. Functions take NumPy or `needle.ops`
as `xp`, because positions along an axis of symbolic size are computed when the model is called.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...autograd.dispatch import apply
from ...autograd.tensor import Tensor, make_const
from ...backend_ndarray import Device, NDArray
from ...backend_ndarray.dtypes import is_floating
from ...conversion.budget import bounded
from ...conversion.values import Value, known, known_integers, normal_axes, tensor
from ...init import zeros
from ...nn.functional.resize import resample_tables
from ...ops.resample import Resample
from ...sizes.dims import Expression
from ...sizes.extents import same
from ..graph import Node
from ..registry import converter

_CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "coordinate_transformation_mode": (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
        *("asymmetric", "tf_crop_and_resize", "tf_half_pixel_for_nn"),
    ),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
}
_WIDEST = 1 << 12  # the largest number of taps of an antialiasing filter


@dataclasses.dataclass(frozen=True)
class Method:
    """The way in which a node resizes an axis. The fields have the meanings of the node's
    attributes."""

    mode: str
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    roi: tuple[float, float] = (0.0, 1.0)  # of this axis, for tf_crop_and_resize

    def places(self, at: Any, n: Any, m: Any, scale: Any) -> Any:
        """Return the positions among `n` input elements that correspond to the elements `at` of `m`
        results. If `scale` is not m / n, n * scale takes the place of m."""
        kind = self.coordinates
        if kind == "asymmetric":
            return at / scale
        if kind == "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        if kind in ("half_pixel", "half_pixel_symmetric"):
            shift = n / 2 - m / scale / 2 if kind == "half_pixel_symmetric" else 0
            return (at + 0.5) / scale - 0.5 + shift
        first, last = self.roi if kind == "tf_crop_and_resize" else (0.0, 1.0)
        alone = at * 0 + ((first + last) / 2 * (n - 1) if kind == "tf_crop_and_resize" else 0)
        if same(m, 1):
            return alone
        if kind == "pytorch_half_pixel":
            several = (at + 0.5) / scale - 0.5
        else:
            steps = n * scale - 1
            steps = ops.maximum(steps, 0.5) if isinstance(steps, Tensor) else steps  # if m is 1
            several = at * (last - first) * (n - 1) / steps + first * (n - 1)
        if isinstance(m, Expression) and m.bounds[0] <= 1:
            return ops.where(at * 0 + m > 1, several, alone)
        return several

    def nearest_of(self, xp: Any, place: Any, n: Any) -> Any:
        """Return the nearest of `n` elements to each `place`, computed with `xp`."""
        if self.nearest == "floor":
            found = xp.floor(place)
        elif self.nearest == "ceil":
            found = xp.ceil(place)
        elif self.nearest == "round_prefer_floor":
            found = xp.ceil(place - 0.5)
        else:
            found = xp.floor(place + 0.5)
        return xp.maximum(xp.minimum(found, n - 1), 0).astype("int64")

    def taps(self, xp: Any, place: Any, n: Any, scale: float) -> list[tuple[Any, Any]]:
        """Return pairs (elements, weights), computed with `xp`. The value at each `place` among `n`
        elements is the sum of elements times weights, at this `scale`."""
        shrink = min(scale, 1.0) if self.antialias else 1.0
        reach = 2 if self.mode == "cubic" else 1
        first = math.floor(-reach / shrink) + 1
        low = xp.ceil(place) - 1  # the element strictly before the place
        elements = [low + i for i in range(first, 2 - first)]
        weights = [self._weight(xp, xp.abs((e - place) * shrink)) for e in elements]
        if self.exclude_outside:
            weights = [
                xp.where((e >= 0) & (e <= n - 1), w, 0)
                for e, w in zip(elements, weights, strict=True)
            ]
        if self.exclude_outside or self.antialias:
            total = functools.reduce(lambda a, b: a + b, weights)
            total = xp.where(total == 0, 1, total)
            weights = [w / total for w in weights]
        inside = [xp.maximum(xp.minimum(e, n - 1), 0).astype("int64") for e in elements]
        return list(zip(inside, weights, strict=True))

    def _weight(self, xp: Any, distance: Any) -> Any:
        """Return the weight of an element at a distance (cubic: Keys 1981, equation 4)."""
        if self.mode == "linear":
            return xp.maximum(1 - distance, 0)
        a, d = self.cubic_coeff_a, distance
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return xp.where(d <= 1, near, xp.where(d < 2, far, 0))


@converter("Upsample", since=7)
def upsample_by_attribute(node: Node, data: Value) -> Tensor:
    x = tensor(data)
    resized = _by_scales(node, x, range(x.ndim), node.numbers("scales"))
    return _resized(node, x, resized, _old(node))


@converter("Upsample", since=9, known=(1,))
@converter("Resize", since=10, known=(1,))
def resize_by_scales(node: Node, data: Value, scales: Value) -> Tensor:
    x = tensor(data)
    resized = _by_scales(node, x, range(x.ndim), _numbers(node, scales, "scales"))
    return _resized(node, x, resized, _old(node))


def _old(node: Node) -> Method:
    """Return the method of Upsample, or of Resize in opset 10. Both have only a mode."""
    return Method(_choice(node, "mode"))


@converter("Resize", since=11, known=(1, 2, 3))
def resize(
    node: Node,
    data: Value,
    roi: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> Tensor:
    x = tensor(data)
    given = node.integers("axes") if node.has("axes") else tuple(range(x.ndim))
    axes = normal_axes(node, given, x.ndim)
    if scales is not None and scales.size != 0:
        resized = _by_scales(node, x, axes, _numbers(node, scales, "scales"))
    else:
        resized = _by_sizes(node, x, axes, known_integers(node, sizes, "sizes"))
    method = Method(
        _choice(node, "mode"),
        _choice(node, "coordinate_transformation_mode"),
        _choice(node, "nearest_mode"),
        node.number("cubic_coeff_a"),
        node.flag("exclude_outside"),
        node.flag("antialias", False),
    )
    if method.coordinates != "tf_crop_and_resize":
        return _resized(node, x, resized, method)
    bounds = _numbers(node, roi, "the region of interest")
    if len(bounds) != 2 * len(axes):
        raise node.invalid(
            f"roi has {len(bounds)} numbers, not {2 * len(axes)} for {len(axes)} axes"
        )
    regions = dict(
        zip(axes, zip(bounds[: len(axes)], bounds[len(axes) :], strict=True), strict=True)
    )
    return _resized(node, x, resized, method, regions)


def _choice(node: Node, name: str) -> str:
    found = node.text(name)
    if name == "mode" and found == "bilinear":  # Upsample's name before opset 9
        found = "linear"
    if found not in _CHOICES[name]:
        raise node.invalid(f"{name} {found!r} is not one of {', '.join(_CHOICES[name])}")
    return found


def _numbers(node: Node, value: Value | None, what: str) -> tuple[float, ...]:
    return tuple(float(n) for n in known(node, value, what).reshape(-1))


@dataclasses.dataclass(frozen=True)
class _Resized:
    """An axis that is resized to `size` elements. If `scale` is None, the scale is the ratio of the
    sizes."""

    axis: int
    size: Any
    scale: float | None = None


def _by_scales(
    node: Node, x: Tensor, axes: Sequence[int], scales: Sequence[float]
) -> list[_Resized]:
    if len(scales) != len(axes):
        raise node.invalid(f"scales has {len(scales)} numbers, but there are {len(axes)} axes")
    return [
        _Resized(axis, _scaled(node, x.shape[axis], scale), scale)
        for axis, scale in zip(axes, scales, strict=True)
    ]


def _scaled(node: Node, n: Any, scale: float) -> Any:
    """Return the size of an axis of n elements after scaling. The product is a float32, like the
    scale."""
    if not 0 < scale < math.inf:
        raise node.invalid(f"the scale {scale} is not a number above 0")
    if not isinstance(n, Expression):
        return math.floor(np.float32(n) * np.float32(scale))
    over, under = scale.as_integer_ratio()
    if under > 64:
        raise node.unsupported(
            f"the size {n} is a dim: it needs a scale like 2 or 1.5, an integer divided by a power "
            f"of 2, not {scale}"
        )
    return n * over // under


def _by_sizes(node: Node, x: Tensor, axes: Sequence[int], sizes: Sequence[Any]) -> list[_Resized]:
    if len(sizes) != len(axes):
        raise node.invalid(f"sizes has {len(sizes)} numbers, but there are {len(axes)} axes")
    policy = _choice(node, "keep_aspect_ratio_policy") if node.opset >= 18 else "stretch"
    if policy == "stretch":
        return [_Resized(axis, m) for axis, m in zip(axes, sizes, strict=True)]
    extents = [x.shape[axis] for axis in axes]
    if any(isinstance(n, Expression) for n in (*extents, *sizes)):
        raise node.unsupported(f"keep_aspect_ratio_policy {policy!r} with sizes that are open")
    ratios = [m / n for m, n in zip(sizes, extents, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [
        _Resized(axis, int(scale * n + 0.5), scale) for axis, n in zip(axes, extents, strict=True)
    ]


def _resized(
    node: Node,
    x: Tensor,
    resized: Sequence[_Resized],
    method: Method,
    regions: dict[int, tuple[float, float]] | None = None,
) -> Tensor:
    """Resize axes of x. `regions` are the regions of interest for tf_crop_and_resize."""
    sizes = {each.axis: each.size for each in resized}
    bounded([sizes.get(axis, n) for axis, n in enumerate(x.shape)])
    for each in resized:
        bounded((each.size, 2, _taps(x, each, method)))
    dtype = x.dtype
    if method.mode != "nearest" and not is_floating(dtype):
        x = ops.cast(x, "float64" if dtype in ("int32", "int64") else "float32")
    outside = []  # masks of elements outside the input, one per axis
    for each in _ordered(x, resized):
        region = (regions or {}).get(each.axis, (0.0, 1.0))
        how = dataclasses.replace(method, roi=region)
        x, beyond = _along(node, x, each, how)
        if beyond is not None:
            outside.append(beyond)
    for beyond in outside:
        value = node.number("extrapolation_value")
        x = ops.where(beyond, value if is_floating(x.dtype) else int(value), x)
    return x if x.dtype == dtype else _saturated(x, dtype)


def _taps(x: Tensor, to: _Resized, how: Method) -> int:
    """Return the number of input elements that contribute to each element of the result."""
    reach, scale = {"nearest": 0.5, "linear": 1, "cubic": 2}[how.mode], _scale(x, to)
    shrinks = how.antialias and not isinstance(scale, Tensor) and 0 < scale < 1
    return math.ceil(2 * reach / scale if shrinks else 2 * reach)


def _ordered(x: Tensor, resized: Sequence[_Resized]) -> list[_Resized]:
    """Sort the axes. Axes that shrink come first, to leave less work for the others. Among axes of
    equal ratios the last comes first, because along the others whole rows can be handled as
    vectors."""
    if any(isinstance(n, Expression) for r in resized for n in (r.size, x.shape[r.axis])):
        return list(resized)
    return sorted(resized, key=lambda r: (r.size / max(x.shape[r.axis], 1), -r.axis))


def _saturated(x: Tensor, dtype: str) -> Tensor:
    """Round floats to integers of a dtype and clip them to its range."""
    bounds = np.iinfo(dtype)
    return ops.cast(ops.clip(ops.round(x), bounds.min, bounds.max), dtype)


def _along(node: Node, x: Tensor, to: _Resized, how: Method) -> tuple[Tensor, Tensor | None]:
    """Resize x along one axis. Return the result, and the mask of the results whose positions are
    outside x, or None if there can be none."""
    axis, n, m, scale = to.axis, x.shape[to.axis], to.size, _scale(x, to)
    is_whole = not isinstance(scale, Tensor) and math.isclose(scale, 1) and same(n, m)
    if is_whole and how.roi == (0.0, 1.0):
        return x, None
    if same(n, 0):
        raise node.invalid(f"axis {axis} of {x.spec} has no elements to resize")
    if not isinstance(n, Expression) and not isinstance(m, Expression):
        return _by_tables(x, axis, m, float(scale), how)
    if how.antialias and isinstance(scale, Tensor):
        raise node.unsupported(f"antialias from the size {n} to {m}, whose ratio is open")
    return _by_takes(x, axis, m, scale, how)


def _scale(x: Tensor, to: _Resized) -> Any:
    """Return the ratio of an axis's sizes: a number, or a tensor of one element if it depends on a
    Dim."""
    n, m = x.shape[to.axis], to.size
    if to.scale is not None:
        return to.scale
    if not isinstance(n, Expression) and not isinstance(m, Expression):
        return m / n if n else 1.0
    if same(n, m):
        return 1.0
    for factor in (2, 4, 8, 16, 3):
        if same(m, n * factor):
            return float(factor)
        if same(n, m * factor):
            return 1 / factor
    return (zeros((1,), device=x.device, requires_grad=False) + m) / n


@functools.lru_cache(maxsize=64)
def _index(how: Method, n: int, m: int, scale: float) -> tuple[np.ndarray, np.ndarray | None]:
    """Return, for mode nearest, the input element for each result, and the mask of the positions
    outside the input, or None if there can be none.

    The computation is in float32, as in ONNX Runtime, because rounding decides between two equally
    near elements.
    """
    place = how.places(np.arange(m, dtype="float32"), n, m, np.float32(scale))
    return how.nearest_of(np, place, n), _outside(how, place, n)


def _outside(how: Method, place: Any, n: Any) -> Any:
    if how.coordinates != "tf_crop_and_resize":
        return None
    return (place < 0) | (place > n - 1)


@functools.lru_cache(maxsize=64)
def _tables(
    how: Method, n: int, m: int, scale: float, dtype: str, device: Device
) -> tuple[tuple[NDArray, ...], np.ndarray | None]:
    """Return the tables with which Resample computes m elements from n, and the mask of the
    positions outside the input, or None if there can be none."""
    place = how.places(np.arange(m, dtype="float64"), n, m, scale)
    taps = how.taps(np, place, n, scale)
    elements, weights = (np.stack(each) for each in zip(*taps, strict=True))
    used = np.any(weights != 0, 1)  # drops taps that always have weight 0
    used[0] |= not used.any()
    tables = resample_tables(elements[used], weights[used], n, dtype, device)
    return tables, _outside(how, place, n)


def _by_tables(
    x: Tensor, axis: int, m: int, scale: float, how: Method
) -> tuple[Tensor, Tensor | None]:
    n = x.shape[axis]
    if scale * n < 1 and how.antialias and -(-2 // scale) > _WIDEST:
        raise ValueError(f"antialias with the scale {scale} needs more than {_WIDEST} elements")
    if how.mode == "nearest":
        index, outside = _index(how, n, m, scale)
        x = _taken(x, axis, index)
    else:
        tables, outside = _tables(how, n, m, scale, x.dtype, x.device)
        x = apply(Resample(axis), (x, *map(make_const, tables)))
    if outside is None or not outside.any():
        return x, None
    return x, _lined_up(make_const(outside, x.device), axis, x.ndim)


def _taken(x: Tensor, axis: int, index: np.ndarray) -> Tensor:
    """Return the elements of x at `index` along an axis. If `index` repeats every element equally
    often, in order, the elements are repeated instead of gathered."""
    n, m = x.shape[axis], len(index)
    if m % n == 0 and np.array_equal(index, np.arange(m) // (m // n)):
        return _repeated(x, axis, m // n)
    return ops.take(x, make_const(index, x.device), axis)


def _repeated(x: Tensor, axis: int, times: int) -> Tensor:
    lead, n, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = ops.broadcast_to(ops.unsqueeze(x, axis + 1), (*lead, n, times, *rest))
    return ops.reshape(wide, (*lead, n * times, *rest))


def _by_takes(
    x: Tensor, axis: int, m: Any, scale: Any, how: Method
) -> tuple[Tensor, Tensor | None]:
    """Resize x along an axis whose old or new size is known only when the model is called."""
    n = x.shape[axis]
    if how.mode == "nearest" and _repeats(how, scale):
        return _repeated(x, axis, int(scale)), None
    dtype = "float32" if how.mode == "nearest" or isinstance(scale, Tensor) else "float64"
    at = ops.arange(m, dtype=dtype, device=x.device)
    extent = zeros((1,), dtype=dtype, device=x.device, requires_grad=False) + n
    place = how.places(at, extent, m, scale)
    beyond = _outside(how, place, extent)
    outside = None if beyond is None else _lined_up(beyond, axis, x.ndim)
    if how.mode == "nearest":
        return ops.take(x, how.nearest_of(ops, place, extent), axis), outside
    total: Any = 0
    for element, weight in how.taps(
        ops, place, extent, 1.0 if isinstance(scale, Tensor) else scale
    ):
        weight = _lined_up(weight.astype(x.dtype), axis, x.ndim)
        total = ops.take(x, element, axis) * weight + total
    return total, outside


def _repeats(how: Method, scale: Any) -> bool:
    """Return whether mode nearest repeats every input element `scale` times (an integer), for any
    size."""
    if (
        isinstance(scale, Tensor)
        or scale != int(scale)
        or how.coordinates
        not in (*("asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric"),)
    ):
        return False
    times = int(scale)
    index, _ = _index(how, 8, 8 * times, scale)  # the pattern repeats with every input element
    return np.array_equal(index, np.arange(8 * times) // times)


def _lined_up(x: Tensor, axis: int, ndim: int) -> Tensor:
    """Reshape a tensor of one axis so that it broadcasts along `axis`."""
    return ops.reshape(x, (x.shape[0], *(1,) * (ndim - axis - 1)))
