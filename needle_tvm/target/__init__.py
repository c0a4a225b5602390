"""Targets of compilation: CPUs and GPUs, their precisions, and the tools that belong to them.

`spec` resolves the `target` of `compile`. `features` reads the processor's features, and `host`
describes this machine; artifacts check the features that they need.
"""
