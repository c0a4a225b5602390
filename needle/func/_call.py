"""Call a function on fresh tensors, and multiply vectors by its Jacobian."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .. import ops
from ..autograd.dispatch import apply
from ..autograd.engine import topological_order, vector_jacobian
from ..autograd.node import Node
from ..autograd.tensor import Tensor, make_const
from ..backend_ndarray.arguments import count
from ..backend_ndarray.dtypes import is_floating
from ..common.state import call_recording, state
from ..common.tree import difference, flatten, unflatten
from ..errors import ShapeError
from ..init import zeros, zeros_like


class Call:
    """A function call that can be differentiated. Fresh tensors, `ends`, replace the tensors with
    respect to which it is differentiated.

    `shares` says whether the results also depend on other tensors that require gradients. If so,
    and if the caller records gradients, the results are recorded (`keeps`). Otherwise they have no
    graph.
    """

    def __init__(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: Any,
        has_aux: bool,
    ) -> None:
        if not callable(func):
            raise TypeError(f"{name}: func is a {type(func).__name__}, not a function")
        numbers = argnums if isinstance(argnums, tuple) else (argnums,)
        places = []
        for number in numbers:
            least = -len(args) if args else 0
            if count(name, "argnums", number, -(2**63)) not in range(least, len(args)):
                text = f"{len(args)} positional argument{'' if len(args) == 1 else 's'}"
                raise ValueError(f"{name}: argnums {number} is out of range for a call with {text}")
            places.append(number % len(args))
        if len(set(places)) != len(places):
            raise ValueError(f"{name}: argnums {argnums} name an argument twice")
        chosen = tuple(args[i] for i in places)
        self._one = not isinstance(argnums, tuple)
        self.in_tree, leaves = flatten(chosen, "argument", _is_tensor)
        if kind := _static(self.in_tree):
            raise TypeError(f"{name}: the arguments hold a {kind}, where only Tensors are allowed")
        for _, x in leaves:
            if not is_floating(x.dtype):
                raise TypeError(
                    f"{name}: {x.spec} has no derivative; only floating dtypes have one"
                )
        self.ends = [_fresh(x) for _, x in leaves]
        self.hidden = [
            end.node for end, (_, x) in zip(self.ends, leaves, strict=True) if not x.requires_grad
        ]
        given = dict(zip(places, unflatten(self.in_tree, iter(self.ends)), strict=True))
        called = [given.get(i, x) for i, x in enumerate(args)]
        with _live(self.hidden):
            out = call_recording(True, func, *called, **kwargs)
        aux = None
        if has_aux:
            if not isinstance(out, tuple) or len(out) != 2:
                raise TypeError(f"{name}: with has_aux, func returns (result, aux), not {out!r}")
            out, aux = out
        self.out_tree, outs = flatten(out, "result", _is_tensor)
        if kind := _static(self.out_tree):
            raise TypeError(f"{name}: func returns a {kind}, where only Tensors are allowed")
        self.outs = [x for _, x in outs]
        roots = [x.node for x in self.outs if x.requires_grad]
        behind = topological_order(roots, requires_grad=True)
        # In a trace, the fresh tensors of surrounding calls have an op, so look them up in `live`.
        self.shares = any(node.op is None or node in _here.live for node in behind)
        self.keeps = state.grad and self.shares
        self.result, self.aux = self._released(out), self._released(aux)

    def _released(self, value: Any) -> Any:
        """Return `value`, detached from the graph of the fresh tensors unless the call keeps it."""
        tree, leaves = flatten(value, "", _is_tensor)
        return unflatten(tree, iter([x if self.keeps else x.detach() for _, x in leaves]))

    def pulled(
        self, cotangents: Sequence[Any], keeps: bool | None = None, retain: bool = True
    ) -> list[Tensor]:
        """Return the vector-Jacobian products for `ends`; a cotangent of None counts as zero."""
        chosen = [(out, x) for out, x in zip(self.outs, cotangents, strict=True) if x is not None]
        keeps = self.keeps if keeps is None else keeps
        roots, given = [out for out, _ in chosen], [x for _, x in chosen]
        with _live(self.hidden):
            found = vector_jacobian(roots, given, self.ends, keeps, retain)
        return [
            zeros_like(end) if x is None else x for end, x in zip(self.ends, found, strict=True)
        ]

    def by_argument(self, values: Sequence[Any]) -> Any:
        """Return `values`, one for each of `ends`, nested like the arguments."""
        nest = unflatten(self.in_tree, iter(values))
        return nest[0] if self._one else nest


class Push:
    """Jacobian-vector products of a call (see `jvp`)."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.vectors = [
            Tensor(zeros_like(out).realize_cached_data())
            for out in call.outs
            if is_floating(out.dtype)
        ]
        rest = iter(self.vectors)
        given = [next(rest) if is_floating(out.dtype) else None for out in call.outs]
        self.hidden = [x.node for x in self.vectors]
        with _live(self.hidden):
            self.products = call_recording(True, call.pulled, given, True)

    def __call__(self, directions: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Return the derivatives of the results in `directions`, which are pairs of an end's index
        and its tangent."""
        roots, given = [self.products[i] for i, _ in directions], [x for _, x in directions]
        keeps = self.call.keeps or (state.grad and any(x.requires_grad for x in given))
        with _live(self.hidden):
            found = iter(vector_jacobian(roots, given, self.vectors, keeps, True))
        parts = [next(found) if is_floating(out.dtype) else None for out in self.call.outs]
        return [
            zeros_like(out) if part is None else part
            for out, part in zip(self.call.outs, parts, strict=True)
        ]


class _Here(threading.local):
    """This thread's nodes that are in a `_live` context."""

    def __init__(self) -> None:
        self.live: set[Node] = set()


_here = _Here()


@contextlib.contextmanager
def _live(nodes: list[Node]) -> Iterator[None]:
    """Let `nodes` require a gradient within the context. Outside it, no gradient flows to the
    nodes, so an outer derivative ignores them."""
    for node in nodes:
        node.requires_grad = True
    _here.live.update(nodes)
    try:
        yield
    finally:
        _here.live.difference_update(nodes)
        for node in nodes:
            node.requires_grad = False


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _static(tree: Any) -> str | None:
    """Return the class name of the first value in `tree` that is not a Tensor, or None if there is
    none."""
    if not isinstance(tree, dict):
        return None
    ((kind, inside),) = tree.items()
    if kind == "static":
        return type(inside).__name__
    parts = inside.values() if kind == "dict" else inside
    return next((name for name in map(_static, parts) if name), None)


def _fresh(x: Tensor) -> Tensor:
    """Return a new tensor with x's value, with respect to which the call is differentiated. Outer
    derivatives pass through it to x."""
    if state.trace is None and not (x.requires_grad and state.grad):
        return Tensor(x.realize_cached_data())
    alias: Tensor = apply(ops.Reshape(x.shape), (x,))
    return alias


def units(like: Tensor) -> Iterator[Tensor]:
    """Yield the unit vectors, in like's shape and dtype."""
    for i in range(like.size):
        unit = np.zeros(like.size, "float64")
        unit[i] = 1
        yield make_const(unit.reshape(like.shape), like.device).astype(like.dtype)


def stacked(parts: list[Tensor], axis: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
    if not parts:
        return zeros(*shape, device=like.device, dtype=like.dtype)
    return ops.stack(parts, axis).reshape(shape)


def matching(name: str, what: str, given: Any, tree: Any, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the Tensors of `given`, in like's dtypes. Raises ValueError if `given` is nested
    differently from `tree`, and ShapeError if shapes differ from like's."""
    found, leaves = flatten(given, what, _is_tensor)
    wrong = difference(tree, found, what)
    if wrong is not None:
        raise ValueError(f"{name}: {wrong}")
    for (path, x), other in zip(leaves, like, strict=True):
        if x.shape != other.shape:
            raise ShapeError(f"{name}: {path} has shape {x.shape}, expected {other.shape}")
    return [x.astype(o.dtype) for (_, x), o in zip(leaves, like, strict=True)]
