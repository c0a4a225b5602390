"""Modules that do not depend on tensors: per-thread state, argument names, trees, files, and the
line of user code that an error names."""
