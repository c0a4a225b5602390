"""What all tests share."""

import signal

import pytest

import needle as ndl
from needle.backend_ndarray import Device

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell: the programs that tests interrupt would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)

CPU_DEVICES = [device for device in (ndl.cpu(), ndl.cpu_numpy()) if device.enabled()]


@pytest.fixture(params=CPU_DEVICES, ids=repr)
def device(request: pytest.FixtureRequest) -> Device:
    """Every CPU device that can be used here."""
    return request.param
