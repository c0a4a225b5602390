"""The models that the runtime's tests run are made as in the compiler's tests."""

from tests.needle_tvm.conftest import rng

__all__ = ["rng"]
