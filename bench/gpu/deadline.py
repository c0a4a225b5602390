"""A pytest plugin for limited time: tests that would begin after it are skipped, and say so.

Killing pytest would lose what it found so far; a skip is counted apart (`steps.count_tests`).
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from bench.gpu.steps import REASON, UNTIL


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    until = os.environ.get(UNTIL)
    if until and time.time() > float(until):
        pytest.skip(REASON)
