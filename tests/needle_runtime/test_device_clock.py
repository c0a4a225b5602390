"""The GPU's clock, with a driver made for the test: a stream that queues a number of launches."""

import threading

import pytest

from needle_runtime import cuda_driver, device_clock
from needle_runtime.device_clock import DeviceClock

LAUNCH = 2.0  # seconds by the driver's clock


class Driver:
    """A stream that runs its work in a thread of its own. Beyond `queue` pieces of work, whoever
    submits waits for it, as with CUDA."""

    def __init__(self, queue):
        self.places = threading.Semaphore(queue)
        self.now, self.work, self.order = 0.0, [], threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            with self.order:
                self.order.wait_for(lambda: self.work)
                function = self.work[0]
            function()
            with self.order:
                self.work.pop(0)
                self.order.notify_all()
            self.places.release()

    def submit(self, function):
        self.places.acquire()
        with self.order:
            self.work.append(function)
            self.order.notify_all()

    def enter(self):
        pass

    def event(self):
        return []

    def record(self, event, stream):
        self.submit(lambda: event.append(self.now))

    def call_in_order(self, function, stream):
        self.submit(function)

    def synchronize(self, stream):
        with self.order:
            self.order.wait_for(lambda: not self.work)

    def elapsed(self, start, end):
        return end.pop() - start.pop()

    def launch(self):
        def tick():
            self.now += LAUNCH

        self.submit(tick)


@pytest.fixture
def driver(monkeypatch):
    def make(queue):
        found = Driver(queue)
        monkeypatch.setattr(cuda_driver, "of", lambda index: found)
        monkeypatch.setattr(device_clock, "_HELD_SECONDS", 0.05)
        return found

    return make


def test_the_time_is_that_of_one_call(driver):
    found = driver(100)
    clock = DeviceClock(found.launch)
    assert [clock(calls) for calls in (1, 3, 20)] == [LAUNCH] * 3


def test_as_many_calls_are_timed_as_the_stream_queues(driver):
    found = driver(10)
    launched = []

    def launch():
        launched.append(None)
        found.launch()

    clock = DeviceClock(launch)
    assert clock(16) == LAUNCH
    launched.clear()
    assert clock(16) == LAUNCH and len(launched) <= 8  # it does not try too many again


def test_a_call_that_waits_for_the_stream_has_no_time(driver):
    found = driver(100)

    def launch():
        found.launch()
        found.synchronize(0)

    assert DeviceClock(launch)(8) is None


def test_an_error_of_a_call_frees_the_stream(driver):
    found = driver(100)

    def launch():
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        DeviceClock(launch)(4)
    found.synchronize(0)
