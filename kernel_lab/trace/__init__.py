"""The memory accesses of a scheduled kernel, in execution order, and their statistics.

`fragments` executes tensor-core instructions.
"""

from kernel_lab.trace.errors import NotInterpreted, NotLowered, TraceError, TraceTooLarge
from kernel_lab.trace.events import BufferInfo, LoopValues, Region, Site, Trace
from kernel_lab.trace.interpreter import trace

__all__ = [
    "BufferInfo",
    "LoopValues",
    "NotInterpreted",
    "NotLowered",
    "Region",
    "Site",
    "Trace",
    "TraceError",
    "TraceTooLarge",
    "trace",
]
