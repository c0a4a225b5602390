"""Single operations in three sizes each, for `bench.operations`.

A case of `CASES` has a function of a size that draws its inputs, and for needle and for PyTorch a
function of a size that makes what is called on them. A name that this needle lacks is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Size = tuple[int, ...]
Arrays = list[np.ndarray]


@dataclass(frozen=True)
class Case:
    """An operation: its sizes, the inputs at one, and what is called there."""

    sizes: Sequence[Size]
    inputs: Callable[[Size], Arrays]
    needle: Callable[[Any, Size], Callable[..., Any]]  # of the package needle
    torch: Callable[[Any, Size], Callable[..., Any]]  # of the package torch


_MATRICES = ((8, 64), (128, 512), (512, 1024))
_LINES = ((4096,), (77777,), (1 << 20,))  # of elementwise functions


def _drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _indexed(size: Size) -> Arrays:
    index = np.random.default_rng(0).permuted(np.tile(np.arange(size[1]), (size[0], 1)), axis=1)
    return [_drawn(*size), index]  # each position once, so that scatters agree


def _of_matrix(
    needle: Callable[..., Any], torch: Callable[..., Any], sizes: Sequence[Size] = _MATRICES
) -> Case:
    """A case of one matrix; both functions take the package and the matrix."""
    return Case(
        sizes,
        lambda size: [_drawn(*size)],
        lambda ndl, _: lambda x: needle(ndl, x),
        lambda th, _: lambda x: torch(th, x),
    )


def _of_elements(
    needle: Callable[..., Any], torch: Callable[..., Any] | None = None, count: int = 1
) -> Case:
    """A case of an elementwise function of positive operands, for which both packages may have the
    same expression."""
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
    """Images of twice the size."""
    return _of_matrix(
        lambda ndl, x: ndl.nn.functional.interpolate(x, scale_factor=2, mode=mode),
        lambda th, x: th.nn.functional.interpolate(x, scale_factor=2, mode=mode),
        ((1, 3, 16, 16), (1, 16, 64, 64), (4, 32, 61, 47)),
    )


def _attention(length: int, causal: bool, masked: bool) -> Case:
    """Queries (n, heads, t, width), keys `length` times as many; with a mask or causal."""

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


def _weights(size: Size, gates: int) -> dict[str, np.ndarray]:
    _, _, width, hidden = size
    shapes = {"weight_ih_l0": (gates * hidden, width), "weight_hh_l0": (gates * hidden, hidden)}
    shapes |= {"bias_ih_l0": (gates * hidden,), "bias_hh_l0": (gates * hidden,)}
    return {name: _drawn(*shape) / hidden**0.5 for name, shape in shapes.items()}


def _recurrent(kind: str, gates: int) -> Case:
    """The outputs of a layer of both packages, at sizes (steps, batch, width, hidden)."""

    def needle(ndl: Any, size: Size) -> Callable[..., Any]:
        model = getattr(ndl.nn, kind)(*size[2:])
        weights = {name: ndl.Tensor(array) for name, array in _weights(size, gates).items()}
        model.load_state_dict(weights, layout="torch")
        return _outputs(model.eval())

    def torch(th: Any, size: Size) -> Callable[..., Any]:
        model = getattr(th.nn, kind)(*size[2:])
        weights = {name: th.from_numpy(array) for name, array in _weights(size, gates).items()}
        model.load_state_dict(weights)
        return _outputs(model.eval().requires_grad_(False))  # as the export to ONNX wants it

    sizes = ((20, 1, 64, 64), (35, 16, 128, 128), (50, 32, 256, 256))
    return Case(sizes, lambda size: [_drawn(*size[:3])], needle, torch)


def _outputs(model: Any) -> Callable[..., Any]:
    return lambda x: model(x)[0]


CASES: dict[str, Case] = {
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
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
}
