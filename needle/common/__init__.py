"""Modules that do not depend on tensors: a thread's state, keywords and names of arguments, trees,
files, and the line of user code that an error names."""
