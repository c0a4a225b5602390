"""Restore the course's behaviour where needle differs on purpose, for
`install(semantics="course")`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autograd import dispatch as applying
from ..autograd import engine
from ..autograd.tensor import Tensor
from ..backend_ndarray.dtypes import is_floating
from ..ops import add, negate
from .patches import Patches

_FLOATS = {"nd": "float32", "np": "float64"}


def backward(self: Tensor, out_grad: Tensor | None = None, *args: Any, **kwargs: Any) -> None:
    """Set the gradient of every leaf that this tensor depends on. The new gradient replaces the old
    one and has its own graph; this tensor's graph is kept."""
    for node in engine.topological_order((self.node,), requires_grad=True):
        node.grad = None
    engine.backward(self, out_grad, create_graph=True, retain=True)


def subtract(self: Tensor, other: Any) -> Any:
    """Return a + (-b), which adds two nodes to the graph."""
    return add(self, negate(other)) if isinstance(other, Tensor) else self + (-other)


_needle_record: Any = applying._record


def record(op: Any, inputs: tuple[Any, ...], data: Any) -> Any:
    """Record an op and keep all its values, whether or not its gradient reads them."""
    out = _needle_record(op, inputs, data)
    node = out._node
    node.saved = tuple([x._data for x in inputs])
    node.output = data
    first = data[0] if type(data) is tuple else data
    node.made = first.device.kernels.writes()
    return out


def _init(before: Any, dtype: str, arrays: bool) -> Any:
    """Wrap Tensor's constructor so that it converts integers in lists to floats and, if `arrays`,
    integers in arrays too."""

    def wrapped(self: Tensor, array: Any, **options: Any) -> None:
        if options.get("dtype") is None:
            kept = hasattr(array, "dtype")
            found = str(array.dtype) if kept else np.asarray(array).dtype.name
            if (arrays or not kept) and not _floats(found):
                options["dtype"] = dtype
        before(self, array, **options)

    return wrapped


def _floats(name: str) -> bool:
    return is_floating(name) or not name.startswith(("int", "uint", "bool"))


def install(patches: Patches, backend: str) -> None:
    """Restore the course's behaviour."""
    patches.set(Tensor, "backward", backward)
    patches.set(Tensor, "__sub__", subtract)
    patches.set(applying, "_record", record)
    made = _init(Tensor.__init__, _FLOATS[backend], arrays=backend == "nd")
    patches.set(Tensor, "__init__", made)
