"""Python imports this when it starts; see `emulated_gpu.environment`."""

from tests.needle_tvm.emulated_gpu import install

install()
