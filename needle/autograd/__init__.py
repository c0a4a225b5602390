"""Tensors, the graph behind them, and gradients.

`tensor` has the class, `node` the nodes of the graph, `dispatch` runs an op and records it, and
`engine` differentiates. `shapes` has Spec and the rules for shapes, `dtypes` those for dtypes.
"""

from .dispatch import apply
from .engine import grad, topological_order
from .node import Node
from .tensor import Tensor, TensorTuple, Value, from_dlpack, make_const

__all__ = [
    "Node",
    "Tensor",
    "TensorTuple",
    "Value",
    "apply",
    "from_dlpack",
    "grad",
    "make_const",
    "topological_order",
]
