"""Shared by the ndarray tests: how many cases hypothesis draws, and the native device.

NEEDLE_CASES sets the cases per property (make test-all raises it); the default makes more than
20,000 over all properties.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from needle import backend_ndarray as nd

settings.register_profile(
    "needle",
    max_examples=int(os.environ.get("NEEDLE_CASES", "1300")),
    deadline=None,  # the machine may be shared; time is no property of the code here
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("needle")


@pytest.fixture(params=["cpu", "cpu_numpy"])
def device(request):
    return {"cpu": nd.cpu, "cpu_numpy": nd.cpu_numpy}[request.param]()
