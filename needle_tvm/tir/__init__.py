"""Helpers for TVM's loops (TIR); importing this package registers our additions to lowering.

`integers` makes integer data wrap around and keeps its divisions from ending the process (in CPU
code only), because TVM treats integers as unbounded.
"""

from needle_tvm.tir import lowering

lowering.register()
