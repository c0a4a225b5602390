"""Warnings are ignored while any thread is inside, and come again after the last one."""

import threading
import warnings

import pytest

from needle.torch.silence import no_warnings


def test_the_last_thread_to_leave_puts_the_filters_back():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with no_warnings():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with no_warnings():
        thread.start()
        inside.wait(60)
    warnings.warn("ignored: the other thread is inside", stacklevel=1)
    leave.set()
    thread.join()
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", stacklevel=1)
