"""Names from needle_runtime, which runs exported models without this package."""

from needle_runtime import Program, load, load_with_params, read_arrays, self_test

__all__ = ["Program", "load", "load_with_params", "read_arrays", "self_test"]
