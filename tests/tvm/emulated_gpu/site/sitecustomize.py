"""Python imports this when it starts; see `emulated_gpu.environment`."""

from tests.tvm.emulated_gpu import install

install()
