"""The course's methods of tensors, and the functions of its `autograd`."""

from __future__ import annotations

import functools
import gc
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import autograd
from .. import backend_ndarray as nd
from ..autograd.dispatch import apply
from ..autograd.engine import topological_order
from ..autograd.node import Node
from ..autograd.tensor import Tensor, TensorTuple, Value, handle, make_const
from ..backend_ndarray import Device, NDArray
from ..errors import ShapeError
from ..op import Op
from ..ops import make_tuple
from .flag import callable_property
from .ops import TensorOp, TensorTupleOp
from .patches import Patches


def find_topo_sort(node_list: Iterable[Value]) -> list[Any]:
    """Return the values in `node_list` and all values that they depend on, inputs first.

    A value that no gradient reads was freed in the forward pass, so only its shape is left;
    `install(semantics="course")` keeps all values.
    """
    roots = list(node_list)
    order = topological_order([root.node for root in roots])
    values: dict[Node, Any] = {}
    for node in order:
        if type(node.saved) is tuple:
            values.update(zip(node.input_nodes, node.saved, strict=True))
        if node.output is not None:
            values[node] = node.output
    values.update((root.node, root._data) for root in roots)
    return [handle(node, values.get(node)) for node in order]


def topo_sort_dfs(node: Value, visited: set[Any], topo_order: list[Any]) -> None:
    """Append to `topo_order` the values that `node` depends on, unless they are in `visited`, and
    then `node`."""
    for value in find_topo_sort([node]):
        if value.node not in visited:
            visited.add(value.node)
            topo_order.append(value)


def compute_gradient_of_variables(output_tensor: Tensor, out_grad: Tensor) -> None:
    """Compute the gradients of all leaves: `output_tensor.backward(out_grad)`."""
    output_tensor.backward(out_grad)


def sum_node_list(node_list: Iterable[Any]) -> Any:
    """Return the sum of the Tensors in `node_list`, without adding a zero first."""
    return functools.reduce(operator.add, node_list)


def make_from_op(op: Op, inputs: Iterable[Value]) -> Any:
    """Apply `op` to the inputs."""
    return apply(op, tuple(inputs))


def _const(data: Any, requires_grad: bool = False) -> Tensor:
    out = make_const(data)
    return Tensor(out, requires_grad=True) if requires_grad else out


def _set_data(self: Tensor, value: Any) -> None:
    """Replace the value; reshape the new one if it has the same size but another shape."""
    if isinstance(value, Tensor) and value.shape != self.shape and value.size == self.size:
        value = value.reshape(self.shape)
    _needle_set_data(self, value)


def _set_cached_data(self: Tensor, value: Any) -> None:
    array = value if isinstance(value, NDArray) else nd.array(value, device=self.device)
    if array.shape != self.shape:
        raise ShapeError(f"cached_data of {self.spec} cannot be set to shape {array.shape}")
    self._replace(array)


def _add_tuples(self: TensorTuple, other: TensorTuple) -> TensorTuple:
    if not isinstance(other, TensorTuple) or len(other) != len(self):
        raise TypeError(f"cannot add {other!r} to {self!r}")
    result: TensorTuple = make_tuple(*[a + b for a, b in zip(self, other, strict=True)])
    return result


def _init_as_numpy(self: Tensor, array: Any, **options: Any) -> None:
    """Run Tensor's constructor, but store Python floats as float64."""
    if options.get("dtype") is None and not hasattr(array, "dtype"):
        array = np.asarray(array)
    _needle_init(self, array, **options)


def _count(name: str) -> int:
    if name != "TENSOR_COUNTER":
        raise AttributeError(f"module 'needle.autograd' has no attribute {name!r}")
    return sum(issubclass(type(thing), Value) for thing in gc.get_objects())


_needle_init: Any = Tensor.__init__
_needle_data: Any = vars(Tensor)["data"]
_needle_set_data: Any = _needle_data.fset


def install(patches: Patches, backend: str) -> None:
    """Add the methods and functions."""
    patches.set(Value, "is_leaf", callable_property(vars(Value)["is_leaf"]))
    patches.set(Tensor, "data", _needle_data.setter(_set_data))
    patches.set(Value, "cached_data", vars(Value)["cached_data"].setter(_set_cached_data))
    if backend == "np":
        patches.set(Tensor, "__init__", _init_as_numpy)
    patches.add(Tensor, make_from_op=staticmethod(make_from_op), make_const=staticmethod(_const))
    patches.add(TensorTuple, make_from_op=staticmethod(make_from_op))
    patches.set(TensorTuple, "__add__", _add_tuples)
    patches.add(
        autograd,
        Op=Op,
        TensorOp=TensorOp,
        TensorTupleOp=TensorTupleOp,
        NDArray=NDArray,
        Device=Device,
        cpu=nd.cpu,
        all_devices=nd.all_devices,
        default_device=nd.default_device,
        array_api=np if backend == "np" else nd,
        LAZY_MODE=False,
        find_topo_sort=find_topo_sort,
        topo_sort_dfs=topo_sort_dfs,
        compute_gradient_of_variables=compute_gradient_of_variables,
        sum_node_list=sum_node_list,
        __getattr__=_count,
    )
