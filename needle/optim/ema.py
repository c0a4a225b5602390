"""Moving averages of weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..backend_ndarray.arguments import share
from ..backend_ndarray.dtypes import compute_dtype
from ..common.state import state
from ..nn.module import Module
from .optimizer import wide, write


class EMA:
    """Exponential moving averages of parameters (Polyak and Juditsky 1992):
    average = decay * average + (1 - decay) * p, at each `update`.

    `params` are Tensors, or a Module, whose parameters are averaged. The averages start as copies
    of the parameters; for half-precision parameters they are float32. Raises TypeError for
    anything else, ValueError for a decay outside [0, 1].

    >>> model = nn.Linear(2, 1)
    >>> ema = ndl.optim.EMA(model, decay=0.9)
    >>> ema.update()  # after each step
    >>> with ema.applied():
    ...     y = model(ndl.ones(1, 2))  # with the averages as weights
    """

    tells_traces: ClassVar[bool] = True  # `update` reports its reads and writes to a trace

    def __init__(self, params: Module | Iterable[Tensor], decay: float = 0.999) -> None:
        self.params = params.parameters() if isinstance(params, Module) else list(params)
        self.decay = share("EMA", "decay", decay)
        for i, param in enumerate(self.params):
            if not isinstance(param, Tensor):
                raise TypeError(f"EMA: parameter {i} is a {type(param).__name__}, not a Tensor")
        self.averages: list[NDArray] = [_copy(param) for param in self.params]
        self.updates = 0

    def __repr__(self) -> str:
        return f"EMA(decay={self.decay}, {len(self.params)} tensors, {self.updates} updates)"

    def update(self) -> None:
        """Move the averages towards the parameters; call it after each step of the optimizer."""
        trace = state.trace
        if trace is not None:
            for i, param in enumerate(self.params):
                mean = self._average(i)
                now = param.detach().astype(mean.dtype)
                trace.write(mean, mean * self.decay + now * (1 - self.decay))
            trace.at_each_call(self._count)
            return
        self._count()
        for average, param in zip(self.averages, self.params, strict=True):
            value = wide(param.realize_cached_data())
            write(average, average * self.decay + value * (1 - self.decay))

    def _count(self) -> None:
        self.updates += 1

    def _average(self, i: int) -> Tensor:
        """Return average number `i` as a Tensor that shares the average's memory or, in a trace, as
        the Tensor that stands for the average."""
        trace = state.trace
        if trace is None:
            return Tensor(self.averages[i], requires_grad=False)
        mean: Tensor = trace.array(self, f"averages.{i}", lambda: self.averages[i])
        return mean

    def copy_to(self) -> None:
        """Set the parameters to the averages."""
        for i, param in enumerate(self.params):
            param.data = self._average(i).clone().astype(param.dtype)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the parameters have the values of the averages. On exit they
        get their own values back."""
        before = [param.data for param in self.params]
        self.copy_to()
        try:
            yield
        finally:
            for param, value in zip(self.params, before, strict=True):
                param.data = value

    def state_dict(self) -> dict[str, Any]:
        """Return {"averages": [Tensor, ...], "decay": number, "updates": number}. The tensors share
        memory with the averages."""
        averages = [self._average(i) for i in range(len(self.params))]
        return {"averages": averages, "decay": self.decay, "updates": self.updates}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Load `values`, a result of `state_dict`; the averages are copied. Raises ValueError,
        without any change, if the values do not fit."""
        averages = values.get("averages") if isinstance(values, Mapping) else None
        if not isinstance(averages, (list, tuple)) or not {"decay", "updates"} <= set(values):
            raise ValueError("load_state_dict: EMA: not a result of state_dict")
        specs = [str(getattr(each, "spec", type(each).__name__)) for each in averages]
        needed = [str(Tensor(average, requires_grad=False).spec) for average in self.averages]
        if specs != needed:
            raise ValueError(f"load_state_dict: EMA: averages are {specs}, not {needed}")
        self.averages = [
            value.realize_cached_data().to(average.device).copy()
            for average, value in zip(self.averages, averages, strict=True)
        ]
        self.decay, self.updates = values["decay"], values["updates"]


def _copy(param: Tensor) -> NDArray:
    data = param.realize_cached_data()
    return data.astype(compute_dtype(data.dtype)).copy()
