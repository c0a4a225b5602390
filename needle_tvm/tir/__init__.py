"""Helpers for TVM's loops (TIR). Importing this package registers our additions to lowering.

TVM treats integers as unbounded. `integers` makes integer data wrap around, and keeps divisions of
integer data from ending the process (in CPU code only).
"""

from needle_tvm.tir import lowering

lowering.register()
