"""The time that a GPU spends on calls, measured by its own clock.

A small kernel takes less time than the host takes to launch it. Launched one by one, all kernels
would seem to take as long as a launch. So the stream is held while the host launches several calls,
and then runs them back to back, between two events.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from needle_runtime import cuda_driver
from needle_runtime.process.timing import ClockedCalls, Outputs

MOST_CALLS = 64
_HELD_SECONDS = 0.25  # a driver queues about a thousand launches, then waits for the stream


class DeviceClock:
    """Times calls of `launch`, which puts work on a GPU's stream and does not wait for it."""

    def __init__(self, launch: Callable[[], object], stream: int = 0, index: int = 0) -> None:
        self._launch, self._stream = launch, stream
        self._driver = cuda_driver.of(index)
        self._driver.enter()
        self._start, self._end = self._driver.event(), self._driver.event()
        self._most = MOST_CALLS

    def __call__(self, calls: int) -> float | None:
        """Return the mean seconds of `calls` calls, or of as many as can be launched ahead.

        Returns None if not even one call can be launched ahead, because it waits for the GPU
        or launches a thousand kernels.
        """
        while self._most:
            count = max(1, min(calls, self._most))
            seconds = self._held(count)
            if seconds is not None:
                return seconds / count
            self._most = count // 2
        return None

    def _held(self, calls: int) -> float | None:
        """Return the seconds that `calls` calls take; None if the stream did not wait for
        all launches."""
        driver, stream = self._driver, self._stream
        launched, tell = os.pipe()
        late: list[bool] = []

        def wait() -> None:
            late.append(not select.select([launched], [], [], _HELD_SECONDS)[0])

        driver.enter()
        try:
            held = driver.call_in_order(wait, stream)
            try:
                driver.record(self._start, stream)
                for _ in range(calls):
                    self._launch()
                driver.record(self._end, stream)
            finally:
                os.write(tell, b"1")
                driver.synchronize(stream)
            del held  # the stream has called it
        finally:
            os.close(launched)
            os.close(tell)
        return None if True in late else driver.elapsed(self._start, self._end)


def contestant(
    launch: Callable[[], object], wait: Callable[[], object], outputs: Callable[[], Outputs]
) -> ClockedCalls:
    """Return a contestant of `process.timing` whose calls launch work on the first GPU's default
    stream and wait for it; the contestant also has that GPU's clock."""

    def call() -> None:
        launch()
        wait()

    return call, outputs, DeviceClock(launch)
