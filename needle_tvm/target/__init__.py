"""Targets of compilation: CPUs and GPUs, and the tools that belong to them.

`spec` resolves the `target` of `compile`. `needle_runtime.target` describes the machine itself.
"""
