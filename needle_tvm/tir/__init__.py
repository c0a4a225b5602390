"""Helpers for TVM's loops (TIR). Importing this package registers our additions to lowering.

TVM treats integers as unbounded. In CPU code, `integers` makes integer data wrap around, and keeps
divisions of integer data from crashing the process.
"""

from needle_tvm.tir import lowering

lowering.register()
