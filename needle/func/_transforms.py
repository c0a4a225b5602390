"""The functions of `needle.func`; see the docstring of the package."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autograd.tensor import Tensor
from ..common.state import state
from ..common.tree import unflatten
from ..errors import ShapeError
from ..init import ones_like
from ._call import Call, Push, matching, stacked, units

Argnums = int | tuple[int, ...]


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradients of `func`, whose result is a scalar: one
    gradient for an integer `argnums`, a tuple of gradients for a tuple. With `has_aux`, `func`
    returns (scalar, aux), and the new function returns (gradients, aux).

    The new function raises ShapeError unless the result of `func` is a 0-d Tensor. It raises
    TypeError for arguments that are not floating Tensors, and ValueError if the call has no
    argument at one of the `argnums`.

    >>> ndl.func.grad(ndl.func.grad(lambda x: x**3))(ndl.Tensor(2.0)).item()
    12.0
    """

    def gradients(*args: Any, **kwargs: Any) -> Any:
        (_, found), aux = _value_and_grad("grad", func, argnums, has_aux, args, kwargs)
        return (found, aux) if has_aux else found

    return _named(gradients, func)


def value_and_grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Like `grad` for `func`, `argnums` and `has_aux`, but the new function returns (value,
    gradients) or, with `has_aux`, ((value, aux), gradients), as in JAX."""

    def both(*args: Any, **kwargs: Any) -> Any:
        name = "value_and_grad"
        (value, found), aux = _value_and_grad(name, func, argnums, has_aux, args, kwargs)
        return ((value, aux) if has_aux else value), found

    return _named(both, func)


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Like `grad` for `func`, `argnums` and `has_aux`, but the new function returns (gradients,
    value) or, with `has_aux`, (gradients, (value, aux)), as in PyTorch."""

    def both(*args: Any, **kwargs: Any) -> Any:
        name = "grad_and_value"
        (value, found), aux = _value_and_grad(name, func, argnums, has_aux, args, kwargs)
        return found, ((value, aux) if has_aux else value)

    return _named(both, func)


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return (func(*primals), pull). If `has_aux`, `func` returns (result, aux), and vjp returns
    (result, pull, aux). `pull(cotangents)` takes Tensors nested like the result and returns the
    tuple of vector-Jacobian products for `primals`. It may be called any number of times.

    Raises TypeError for primals that are not floating Tensors. `pull` raises ValueError or
    ShapeError for cotangents that do not fit the result.

    >>> y, pull = ndl.func.vjp(lambda x: x * x, ndl.Tensor([1.0, 2.0]))
    >>> pull(ndl.ones(2))[0].tolist()
    [2.0, 4.0]
    """
    call = Call("vjp", func, primals, {}, tuple(range(len(primals))), has_aux)

    def pull(cotangents: Any) -> Any:
        given = matching("vjp", "cotangent", cotangents, call.out_tree, call.outs)
        keeps = call.keeps or (state.grad and any(x.requires_grad for x in given))
        return call.by_argument(call.pulled(given, keeps, retain=True))

    return (call.result, pull, call.aux) if has_aux else (call.result, pull)


def jvp(
    func: Callable[..., Any],
    primals: tuple[Any, ...],
    tangents: tuple[Any, ...],
    *,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Return (func(*primals), derivative). The derivative is in the direction of `tangents`, a
    tuple like `primals`. If `has_aux`, `func` returns (result, aux), and jvp returns (result,
    derivative, aux).

    The vector-Jacobian product is linear in its vector. So its gradient with respect to that
    vector, weighted by the tangents, is the product that forward mode would compute (Townsend 2017,
    "A new trick for calculating Jacobian vector products").

    Raises TypeError for primals that are not a tuple of floating Tensors, and ValueError or
    ShapeError for tangents that do not fit the primals.

    >>> ndl.func.jvp(lambda x: x**2, (ndl.Tensor(3.0),), (ndl.Tensor(1.0),))[1].item()
    6.0
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        given = f"{type(primals).__name__} and {type(tangents).__name__}"
        raise TypeError(f"jvp: primals and tangents must be tuples, not {given}")
    call = Call("jvp", func, primals, {}, tuple(range(len(primals))), has_aux)
    directions = matching("jvp", "tangent", tangents, call.in_tree, call.ends)
    push = Push(call)
    found = unflatten(call.out_tree, iter(push(list(enumerate(directions)))))
    return (call.result, found, call.aux) if has_aux else (call.result, found)


def jacrev(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `func` with respect to the arguments
    `argnums`. The Jacobian is nested like func's result, but each Tensor is replaced by Tensors of
    shape (*result's shape, *argument's shape), which are nested like the argument (a tuple for a
    tuple of `argnums`). The computation takes one backward pass for each element of the result.
    With `has_aux`, `func` returns (result, aux), and the new function returns (Jacobian, aux). It
    raises the errors of `grad`, but accepts a result of any shape.

    >>> ndl.func.jacrev(lambda x: x * x)(ndl.Tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    def jacobians(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacrev", func, args, kwargs, argnums, has_aux)
        blocks = []
        for number, out in enumerate(call.outs):
            rows = [
                call.pulled([unit if i == number else None for i in range(len(call.outs))])
                for unit in units(out)
            ]
            blocks.append(
                call.by_argument(
                    [
                        stacked([row[i] for row in rows], 0, (*out.shape, *end.shape), end)
                        for i, end in enumerate(call.ends)
                    ]
                )
            )
        found = unflatten(call.out_tree, iter(blocks))
        return (found, call.aux) if has_aux else found

    return _named(jacobians, func)


def jacfwd(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Like `jacrev` for `func`, `argnums` and `has_aux`, but the new function takes one pass for
    each element of the arguments (see `jvp`). This is cheaper if the result has more elements than
    the arguments."""

    def jacobians(*args: Any, **kwargs: Any) -> Any:
        call = Call("jacfwd", func, args, kwargs, argnums, has_aux)
        push = Push(call)
        columns = [[push([(i, unit)]) for unit in units(end)] for i, end in enumerate(call.ends)]
        blocks = [
            call.by_argument(
                [
                    stacked([x[k] for x in columns[i]], -1, (*out.shape, *end.shape), out)
                    for i, end in enumerate(call.ends)
                ]
            )
            for k, out in enumerate(call.outs)
        ]
        found = unflatten(call.out_tree, iter(blocks))
        return (found, call.aux) if has_aux else found

    return _named(jacobians, func)


jacobian = jacrev


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that computes the second derivatives of `func` with respect to the
    arguments `argnums`, as the Jacobian of the Jacobian. Both Jacobians use `jacrev`, because
    `jacfwd` would cost another backward pass. The errors are those of `jacrev`.

    >>> ndl.func.hessian(lambda x: (x**3).sum())(ndl.Tensor([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    return jacrev(jacrev(func, argnums), argnums)


def _value_and_grad(
    name: str,
    func: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, Any], Any]:
    call = Call(name, func, args, kwargs, argnums, has_aux)
    if not isinstance(call.result, Tensor) or call.result.shape:
        got = call.result.spec if isinstance(call.result, Tensor) else type(call.result).__name__
        raise ShapeError(
            f"{name}: func must return a Tensor without axes, not {got}; vjp and jacrev allow any"
        )
    found = call.pulled([ones_like(call.result)], retain=call.shares)
    return (call.result, call.by_argument(found)), call.aux


def _named(wrapper: Callable[..., Any], func: Callable[..., Any]) -> Callable[..., Any]:
    return functools.wraps(func)(wrapper) if callable(func) else wrapper
