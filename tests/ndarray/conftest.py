"""Shared by the ndarray tests."""

import pytest

from needle import backend_ndarray as nd


@pytest.fixture(params=["cpu", "cpu_numpy"])
def device(request):
    return {"cpu": nd.cpu, "cpu_numpy": nd.cpu_numpy}[request.param]()
