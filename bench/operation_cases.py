"""Single operations, most of them in three sizes, for `bench.operations`.

Each case of `CASES` has a function that draws the inputs for a size and, for needle and for
PyTorch, a function that takes a size and returns the function to call on these inputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Size = tuple[int, ...]
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    """An operation: its sizes, its inputs for a size, and the function to call for a size."""

    sizes: Sequence[Size]
    inputs: Callable[[Size], Arrays]
    needle: Callable[[Any, Size], Callable[..., Any]]  # arguments: package needle, size
    torch: Callable[[Any, Size], Callable[..., Any]] | None  # arguments: package torch, size
    scan: Callable[[Any, Size], Callable[..., Any]] | None = None  # the operation by `needle.scan`


_MATRICES = ((8, 64), (128, 512), (512, 1024))
_LINES = ((4096,), (77777,), (1 << 20,))  # sizes of elementwise functions


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _indexed(size: Size) -> Arrays:
    index = np.random.default_rng(0).permuted(np.tile(np.arange(size[1]), (size[0], 1)), axis=1)
    return [_drawn(*size), index]  # each position once, so that scatters agree


def _of_matrix(
    needle: Callable[..., Any], torch: Callable[..., Any], sizes: Sequence[Size] = _MATRICES
) -> Case:
    """Return a case of one matrix; both functions take the package and the matrix."""
    return Case(
        sizes,
        lambda size: [_drawn(*size)],
        lambda ndl, _: lambda x: needle(ndl, x),
        lambda th, _: lambda x: torch(th, x),
    )


def _of_elements(
    needle: Callable[..., Any], torch: Callable[..., Any] | None = None, count: int = 1
) -> Case:
    """Return a case of an elementwise function of positive operands. Without `torch`, the function
    `needle` serves both packages."""
    both = torch or needle
    return Case(
        _LINES,
        lambda size: [np.abs(_drawn(*size)[::step]) + 0.1 for step in (1, -1)[:count]],
        lambda ndl, _: lambda *x: needle(ndl, *x),
        lambda th, _: lambda *x: both(th, *x),
    )


def _of_index(needle: Callable[..., Any], torch: Callable[..., Any]) -> Case:
    return Case(
        _MATRICES,
        _indexed,
        lambda ndl, _: lambda x, i: needle(ndl, x, i),
        lambda th, _: lambda x, i: torch(th, x, i),
    )


def _resized(mode: str) -> Case:
    """Return a case of images resized to twice the size."""
    return _of_matrix(
        lambda ndl, x: ndl.nn.functional.interpolate(x, scale_factor=2, mode=mode),
        lambda th, x: th.nn.functional.interpolate(x, scale_factor=2, mode=mode),
        ((1, 3, 16, 16), (1, 16, 64, 64), (4, 32, 61, 47)),
    )


def _attention(length: int, causal: bool, masked: bool) -> Case:
    """Return a case of queries (n, heads, t, width) and `length` times as many keys."""

    def inputs(size: Size) -> Arrays:
        n, heads, t, width = size
        keys = (n, heads, length * t, width)
        mask = [_drawn(t, length * t)] if masked else []
        return [_drawn(*size), _drawn(*keys), _drawn(*keys), *mask]

    def called(attention: Callable[..., Any]) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            return attention(q, k, v, mask, is_causal=causal)

        return run

    return Case(
        ((1, 2, 16, 32), (1, 8, 128, 64), (2, 8, 512, 64)),
        inputs,
        lambda ndl, _: called(ndl.nn.functional.scaled_dot_product_attention),
        lambda th, _: called(
            lambda q, k, v, mask, **options: th.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, **options
            )
        ),
    )


def _weights(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return weights for a state dict in PyTorch's layout, as small as a layer's usual weights."""
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    return {name: _drawn(*shape) / max(shape) ** 0.5 for name, shape in shapes.items()}


def _of_layer(
    kind: str,
    sizes: Sequence[Size],
    split: Callable[[Size], tuple[Size, Size]],
) -> Case:
    """Return a case of a layer of both packages with equal weights. `split` turns a size into the
    shape of the input and the layer's positional arguments."""

    def needle(ndl: Any, size: Size) -> Callable[..., Any]:
        model = getattr(ndl.nn, kind)(*split(size)[1]).eval()
        model.load_state_dict(_weights(model.state_dict(layout="torch")), layout="torch")
        return model

    def torch(th: Any, size: Size) -> Callable[..., Any]:
        model = getattr(th.nn, kind)(*split(size)[1]).eval().requires_grad_(False)
        weights = _weights(model.state_dict())
        model.load_state_dict({name: th.from_numpy(array) for name, array in weights.items()})
        return model

    return Case(sizes, lambda size: [_drawn(*split(size)[0])], needle, torch)


def _associative(
    name: str,
    torch: Callable[..., Any] | None,
    cell: Callable[..., Any],
    first: str,
    inputs: int = 1,
) -> Case:
    """Return a case of an associative recurrence along axis 0, as an op and as a scan of `cell`.

    Inputs are near 1, so that products are neither 0 nor infinite; a linear recurrence decays.
    """

    def arrays(size: Size) -> Arrays:
        rng = np.random.default_rng(0)
        found = [np.exp(rng.normal(0, 0.003, size)).astype(np.float32) for _ in range(inputs)]
        found[0] *= 0.999 if inputs > 1 else 1
        return found

    def scan(ndl: Any, _: Size) -> Callable[..., Any]:
        def step(y: Any, x: Any) -> Any:
            y = cell(y, *x)
            return y, y

        return lambda *xs: ndl.scan(step, getattr(ndl, first)(xs[0][0]), xs)[1]

    return Case(
        ((64, 64), (1000, 64), (10_000, 64), (1000, 4096)),
        arrays,
        lambda ndl, _: lambda *xs: getattr(ndl.ops, name)(*xs, axis=0),
        (lambda th, _: lambda x: torch(th, x)) if torch else None,
        scan,
    )


def _convolution(kind: str, *sizes: Size) -> Case:
    """Return a case of a convolution. A size lists the input's size (n, channels, *extents), then
    the outputs, kernel, stride, padding and, if transposed, output padding."""
    end = 2 + int(kind[-2])
    return _of_layer(kind, sizes, lambda size: (size[:end], (size[1], *size[end:])))


def _small(function: Callable[..., Any]) -> Case:
    """Return a case that measures the overhead of a call. `function` takes either package and, by
    the names of its arguments, vectors `a` and `b` of ten elements or a matrix `M` of sixteen."""
    shapes: dict[str, Size] = {"a": (10,), "b": (10,), "M": (4, 4)}
    names = list(inspect.signature(function).parameters)[1:]

    def called(package: Any, _: Size) -> Callable[..., Any]:
        return lambda *tensors: function(package, *tensors)

    return Case((shapes[names[0]],), lambda _: [_drawn(*shapes[n]) for n in names], called, called)


_SMALL = {
    "a + b": _small(lambda p, a, b: a + b),
    "a * 2": _small(lambda p, a: a * 2),
    "relu": _small(lambda p, a: p.relu(a)),
    "exp": _small(lambda p, a: p.exp(a)),
    "sum": _small(lambda p, a: a.sum()),
    "sum axis": _small(lambda p, M: M.sum(0)),
    "mean": _small(lambda p, a: a.mean()),
    "max": _small(lambda p, a: a.max()),
    "var": _small(lambda p, a: a.var(correction=0)),
    "argmax": _small(lambda p, a: a.argmax()),
    "M @ M": _small(lambda p, M: M @ M),
    "reshape": _small(lambda p, a: a.reshape(2, 5)),
    "permute": _small(lambda p, M: M.permute(1, 0)),
    "getitem": _small(lambda p, a: a[3]),
    "slice": _small(lambda p, a: a[1:5]),
    "slices": _small(lambda p, M: M[1:3, ::2]),
    "a < b": _small(lambda p, a, b: a < b),
    "where": _small(lambda p, a, b: p.where(a > b, a, b)),
    "softmax": _small(lambda p, a: p.softmax(a, -1)),
    "clip": _small(lambda p, a: p.clip(a, 0.2, 0.8)),
    "cumsum": _small(lambda p, a: p.cumsum(a, 0)),
    "concat": _small(lambda p, a, b: p.concat([a, b], 0)),
    "stack": _small(lambda p, a, b: p.stack([a, b], 0)),
    "trace": _small(lambda p, M: p.trace(M)),
    "outer": _small(lambda p, a, b: p.outer(a, b)),
    "kron": _small(lambda p, M: p.kron(M, M)),
    "dot": _small(lambda p, a, b: p.dot(a, b)),
    "roll": _small(lambda p, a: p.roll(a, 3, 0)),
    "flip": _small(lambda p, a: p.flip(a, (0,))),
    "sort": _small(lambda p, a: p.sort(a, -1)[0]),
    "gelu": _small(lambda p, a: p.nn.functional.gelu(a)),
    "pow 2": _small(lambda p, a: a**2),
}

CASES: dict[str, Case] = {
    **{f"small {name}": case for name, case in _SMALL.items()},
    "cumsum": _of_matrix(lambda ndl, x: ndl.ops.cumsum(x, 1), lambda th, x: x.cumsum(1)),
    "cumprod": _of_matrix(lambda ndl, x: ndl.ops.cumprod(x, 1), lambda th, x: x.cumprod(1)),
    "cummax": _of_matrix(lambda ndl, x: ndl.ops.cummax(x, 1)[0], lambda th, x: x.cummax(1)[0]),
    "sort": _of_matrix(lambda ndl, x: ndl.ops.sort(x, 1)[0], lambda th, x: x.sort(1)[0]),
    "topk": _of_matrix(lambda ndl, x: ndl.ops.topk(x, 5, 1)[0], lambda th, x: x.topk(5, 1)[0]),
    "roll": _of_matrix(lambda ndl, x: ndl.ops.roll(x, 5, 1), lambda th, x: x.roll(5, 1)),
    "exp": _of_elements(lambda p, x: p.exp(x)),
    "tanh": _of_elements(lambda p, x: p.tanh(x)),
    "erf": _of_elements(lambda p, x: p.erf(x)),
    "sin": _of_elements(lambda p, x: p.sin(x)),
    "gelu": _of_elements(lambda p, x: p.nn.functional.gelu(x)),
    "softplus": _of_elements(lambda p, x: p.nn.functional.softplus(x)),
    "mish": _of_elements(lambda p, x: p.nn.functional.mish(x)),
    "pow": _of_elements(lambda p, x, y: x**y, count=2),
    "floor_divide": _of_elements(lambda p, x, y: x // y, count=2),
    "remainder": _of_elements(lambda p, x, y: x % y, count=2),
    "clip": _of_elements(lambda ndl, x: x.clip(0.5, 1.5), lambda th, x: x.clip(0.5, 1.5)),
    "where": _of_elements(lambda p, x, y: p.where(x < y, x, y), count=2),
    "cumsum of lines": _associative(
        "cumsum", lambda th, x: x.cumsum(0), lambda y, x: y + x, "zeros_like"
    ),
    "cumprod of lines": _associative(
        "cumprod", lambda th, x: x.cumprod(0), lambda y, x: y * x, "ones_like"
    ),
    "linear_scan of lines": _associative(
        "linear_scan", None, lambda y, a, b: a * y + b, "zeros_like", inputs=2
    ),
    "einsum": _of_matrix(
        lambda ndl, x: ndl.ops.einsum("ij,kj->ik", x, x),
        lambda th, x: th.einsum("ij,kj->ik", x, x),
    ),
    "interpolate": _resized("bilinear"),
    "interpolate nearest": _resized("nearest"),
    "interpolate bicubic": _resized("bicubic"),
    "grid_sample": Case(
        ((1, 3, 16, 16), (1, 32, 64, 64), (4, 64, 33, 35)),
        lambda size: [_drawn(*size), np.tanh(_drawn(size[0], *size[2:], 2))],
        lambda ndl, _: ndl.nn.functional.grid_sample,
        lambda th, _: lambda x, grid: th.nn.functional.grid_sample(x, grid, align_corners=False),
    ),
    "gather": _of_index(
        lambda ndl, x, i: ndl.ops.take_along_axis(x, i, 1), lambda th, x, i: x.gather(1, i)
    ),
    "scatter": _of_index(
        lambda ndl, x, i: ndl.ops.put_along_axis(x, i, x, 1), lambda th, x, i: x.scatter(1, i, x)
    ),
    "attention": _attention(1, causal=False, masked=False),
    "attention causal": _attention(1, causal=True, masked=False),
    "attention masked": _attention(1, causal=False, masked=True),
    "attention of lengths": _attention(2, causal=False, masked=False),
    "conv1d": _convolution(
        "Conv1d", (1, 16, 128, 32, 3, 1, 1), (8, 64, 256, 64, 5, 1, 2), (4, 80, 1500, 256, 3, 2, 1)
    ),
    "conv3d": _convolution(
        "Conv3d",
        *((1, 4, 8, 8, 8, 8, 3, 1, 1), (1, 3, 16, 56, 56, 32, 3, 1, 1)),
        (2, 32, 8, 28, 28, 64, 3, 1, 1),
    ),
    "conv transposed 1d": _convolution(
        "ConvTranspose1d",
        *((1, 16, 64, 16, 4, 2, 1), (8, 64, 128, 64, 4, 2, 1), (2, 128, 200, 64, 16, 8, 4)),
    ),
    "conv transposed 2d": _convolution(
        "ConvTranspose2d",
        *((1, 8, 8, 8, 8, 2, 2), (4, 64, 16, 16, 32, 4, 2, 1), (1, 64, 56, 56, 64, 3, 2, 1, 1)),
    ),
}
