"""What all tests share."""

import pytest

import needle as ndl
from needle.backend_ndarray import Device

CPU_DEVICES = [device for device in (ndl.cpu(), ndl.cpu_numpy()) if device.enabled()]


@pytest.fixture(params=CPU_DEVICES, ids=repr)
def device(request: pytest.FixtureRequest) -> Device:
    """Every CPU device that can be used here."""
    return request.param
