"""Helpers over TVM's loops (TIR); importing them registers what our code needs of its lowering."""

from needle_tvm.tir import lowering

lowering.register()
