"""Decompositions of PyTorch operators that PyTorch itself does not decompose: operators on lists of
tensors, and random operators that draw nothing in eval mode. Imports PyTorch when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def own_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator."""
    import torch

    aten = torch.ops.aten
    found: dict[Any, Callable[..., Any]] = {
        aten.rrelu.default: _rrelu,
        aten.rrelu_with_noise_functional.default: _rrelu_and_noise,
    }
    names = {
        name.rstrip("_")
        for name in dir(torch._C._VariableFunctions)
        if name.startswith("_foreach_")
    }
    for name in sorted(names):
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if not overload.endswith("out"):
                operator = getattr(packet, overload)
                rule = _of_lists(operator, name.removeprefix("_foreach_"))
                if rule is not None:
                    found[operator] = rule
    return found


def _rrelu(
    x: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, _: Any = None
) -> Any:
    import torch

    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2)


def _rrelu_and_noise(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    _: Any = None,
) -> Any:
    return NotImplemented if training else (_rrelu(x, lower, upper), noise)


def _of_lists(operator: Any, name: str) -> Callable[..., Any] | None:
    """Decompose an operator on lists into calls to PyTorch's function for single tensors. Return
    None if there is no such function."""
    lists = [
        position
        for position, argument in enumerate(operator._schema.arguments)
        if str(argument.type).startswith("List[") or argument.name == "scalars"
    ]

    import torch

    single: Callable[..., Any] | None = _ONE.get(name, getattr(torch, name, None))
    if single is None:
        return None

    def of(*args: Any, **options: Any) -> list[Any]:
        given = [position for position in lists if position < len(args)]
        parts = zip(*(args[position] for position in given), strict=True)
        return [
            single(
                *(
                    part[given.index(position)] if position in given else each
                    for position, each in enumerate(args)
                ),
                **options,
            )
            for part in parts
        ]

    return of


def _added(sign: str) -> Callable[..., Any]:
    """Return the function x + value * a * b ("mul") or x + value * a / b ("div")."""

    def of(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return x + value * (a * b if sign == "mul" else a / b)
        return getattr(torch, f"addc{sign}")(x, a, b, value=value)

    return of


def _norm(x: Any, order: Any = 2, dtype: Any = None) -> Any:
    import torch

    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    return source.to(x.dtype).expand_as(x).clone()


def _zeros(x: Any) -> Any:
    return x.new_zeros(x.shape)


_ONE: dict[str, Callable[..., Any]] = {
    "addcmul": _added("mul"),
    "addcdiv": _added("div"),
    "norm": _norm,
    "copy": _copied,
    "zero": _zeros,
}
