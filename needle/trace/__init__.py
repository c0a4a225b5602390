"""Trace models: a model runs on shapes instead of values, and its ops are recorded in a `Graph`.

`tracer` records, `graph` holds the result, and `input_specs` makes the specs of the inputs.
`captures` finds the outer values that a function reads, by the names in its byte code (`bytecode`);
`library_code` says which code it does not follow. `guards` tell cheaply whether a value is still
where it was found, and `weights` whether a weight has changed. `summary` binds `Module.summary`.
"""

from .graph import Graph, Leaf
from .tracer import Node, Trace, trace, trace_flat

__all__ = ["Graph", "Leaf", "Node", "Trace", "trace", "trace_flat"]
