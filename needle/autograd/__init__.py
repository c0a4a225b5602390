"""Tensors, the graph behind them, and gradients.

`tensor` has the class Tensor and `node` the nodes of the graph. `dispatch` runs an op and records
it, `engine` differentiates, and `recompute` drops values that the engine computes again when it
needs them. `hooks` has the hooks that users attach to gradients, `anomaly` the mode that finds NaN
in gradients. `shapes` has Spec and the rules for shapes, `dtypes` the rules for dtypes.
"""

from ..common.keywords import name_functions
from .anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
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
    "detect_anomaly",
    "from_dlpack",
    "grad",
    "is_anomaly_enabled",
    "make_const",
    "set_detect_anomaly",
    "topological_order",
]

globals().update(name_functions([("grad", grad)]))
