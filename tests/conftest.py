"""What all tests share."""

import signal

import pytest

import needle as ndl
from needle import rng as needle_rng
from needle.backend_ndarray import Device

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell: the programs that tests interrupt would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)

CPU_DEVICES = [device for device in (ndl.cpu(), ndl.cpu_numpy()) if device.enabled()]


@pytest.fixture(params=CPU_DEVICES, ids=repr)
def device(request: pytest.FixtureRequest) -> Device:
    """Every CPU device that can be used here."""
    return request.param


@pytest.fixture(autouse=True)
def generator_as_found():
    """A test that seeds needle's generator leaves it as it was for the next one."""
    before = needle_rng.get_state()
    yield
    needle_rng.set_state(before)
