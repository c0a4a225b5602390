"""Numbers in sentences."""

import pytest

from needle_tvm.words import counted


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (4096, "4,096 threads")],
)
def test_only_one_is_singular(number, text):
    assert counted(number, "thread") == text
