"""Helpers for TVM's loops (TIR); importing this package registers our additions to lowering."""

from needle_tvm.tir import lowering

lowering.register()
