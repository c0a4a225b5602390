"""Targets of compilation: CPUs and GPUs, their precisions, and the tools that belong to them."""
