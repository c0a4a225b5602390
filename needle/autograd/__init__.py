"""Tensors, the graph behind them, and gradients.

`tensor` has the class, `node` the nodes of the graph, `dispatch` runs an op and records it,
`engine` differentiates, and `recompute` drops values that the engine then computes again. `shapes`
has Spec and the rules for shapes, `dtypes` those for dtypes.
"""

from .dispatch import apply
from .engine import grad, topological_order
from .node import Node
from .recompute import checkpoint
from .tensor import Tensor, TensorTuple, Value, from_dlpack, make_const

__all__ = [
    "Node",
    "Tensor",
    "TensorTuple",
    "Value",
    "apply",
    "checkpoint",
    "from_dlpack",
    "grad",
    "make_const",
    "topological_order",
]
