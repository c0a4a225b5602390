"""Public names of autograd: tensors, graph nodes and gradients, defined in other files."""

from .apply import apply
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
