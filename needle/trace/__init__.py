"""Trace models: a model runs on shapes instead of values, and its ops are recorded in a `Graph`.

`tracer` records, `graph` holds the result, and `input_specs` creates the specs of the inputs.
`captures` finds the outer values that a function reads, by the names in its bytecode (`bytecode`);
`library_code` says which code this search does not step into. `guards` check cheaply whether a
value is still where it was found, and `weights` whether a weight has changed. `summary` binds
`Module.summary`.
"""

from .graph import Graph, Leaf
from .tracer import Node, Trace, trace, trace_flat

__all__ = ["Graph", "Leaf", "Node", "Trace", "trace", "trace_flat"]
