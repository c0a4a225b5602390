"""autocast: the dtypes in which ops compute, chosen for each op as in torch.autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import HALVES
from ..common.state import state
from .elementwise import Cast

F = TypeVar("F", bound=Callable[..., Any])

# Ops that compute float32 inputs in the lower dtype: products, which become faster.
LOW = frozenset(("matmul", "grouped_matmul", "conv", "conv_input", "conv_weight"))
# Ops that compute inputs of the lower dtype in float32: normalizations, reductions, the ops of
# losses, and functions whose results need float32's range. These are the lists of torch.autocast
# for GPUs; on CPUs, PyTorch computes many of these ops in the dtype of their inputs.
WIDE = frozenset(
    (
        *("layer_norm", "group_norm", "batch_norm_train", "normalize"),
        *("softmax", "logsoftmax", "logsumexp"),
        *("summation", "mean", "var", "cumsum", "cumprod", "logcumsumexp", "segment_sum"),
        *("exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "power", "power_scalar"),
        *("acos", "asin", "cosh", "erfinv", "rsqrt", "sinh", "softplus", "tan"),
        *("linear_scan", "lstm_gates", "gru_gates"),
    )
)


class _Caster:
    """Casts the inputs of ops, for one lower dtype."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"autocast({self.dtype!r})"

    def cast(self, op: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs in the dtype in which `op` computes; float64 and integers are not
        cast."""
        name = op.name
        if name in LOW:
            return self.lowered(inputs)
        return tuple([self._to(x, "float32", HALVES) for x in inputs]) if name in WIDE else inputs

    def lowered(self, inputs: Iterable[Any]) -> tuple[Any, ...]:
        """Return the inputs of a product in the lower dtype."""
        return tuple([self._to(x, self.dtype, ("float32", *HALVES)) for x in inputs])

    def _to(self, x: Any, dtype: str, kinds: tuple[str, ...]) -> Any:
        if not isinstance(x, Tensor) or x.dtype == dtype or x.dtype not in kinds:
            return x
        return Cast(dtype)(x)


_CASTERS = {dtype: _Caster(dtype) for dtype in HALVES}


class autocast:
    """A context manager and decorator that lets this thread's ops choose their dtypes. Products
    (linear layers, convolutions, attention, matmul and einsum) compute in `dtype`, "bfloat16" or
    "float16"; normalizations, softmax, losses and reductions compute in float32. float64 is not
    cast. With `enabled` False nothing is cast, even within another autocast.

    Weights stay float32 and get float32 gradients. Put the forward pass and the loss inside; a
    backward pass is never cast, and uses the dtypes of the forward pass. Recurrent layers compute
    their steps in float32. Traces record the casts, so compiled code computes them too. Raises
    TypeError for any other dtype.

    >>> layer, x = nn.Linear(3, 4), ndl.ones(2, 3)
    >>> with ndl.autocast("bfloat16"):
    ...     y = layer(x)
    ...     loss = F.softmax(y).sum()
    >>> y.dtype, loss.dtype, layer.weight.dtype
    ('bfloat16', 'float32', 'float32')
    """

    def __init__(self, dtype: Any = "bfloat16", enabled: bool = True) -> None:
        if dtype not in HALVES:
            raise TypeError(f"autocast: dtype {dtype!r} is not one of {', '.join(HALVES)}")
        self._caster = _CASTERS[dtype] if enabled else None
        self._previous: list[Any] = []  # a stack: one object may be entered more than once

    def __enter__(self) -> None:
        self._previous.append(state.autocast)
        state.autocast = self._caster

    def __exit__(self, *_: object) -> None:
        state.autocast = self._previous.pop()

    def __call__(self, fn: F) -> F:
        dtype, enabled = ("bfloat16", False) if self._caster is None else (self._caster.dtype, True)

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with autocast(dtype, enabled):
                return fn(*args, **kwargs)

        return cast(F, wrapper)
