"""Compilation targets, CPUs and GPUs, and the tools for them.

`spec` resolves the `target` of `compile`. `needle_runtime.target` describes the machine itself.
"""
