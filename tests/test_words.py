"""Numbers in sentences, and text escaped for printing."""

import pytest

from needle_tvm.words import counted, one_line, printable


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 threads"), (1, "1 thread"), (2, "2 threads"), (4096, "4,096 threads")],
)
def test_only_one_is_singular(number, text):
    assert counted(number, "thread") == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, grün, 数, 🙂", "plain, grün, 数, 🙂"),
        ("\x1b[31mred\x9b0m", r"\x1b[31mred\x9b0m"),
        ("a\rb\nc\td\0", r"a\rb\nc\td\x00"),
        ("left\u202etfel", r"left\u202etfel"),
        ("no\u2028line", r"no\u2028line"),
        ("not text: \udcff", r"not text: \udcff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown
    shown.encode()


def test_one_line_is_one_line():
    assert one_line(" a\n  b\x85\u2028c\x1b ") == r"a b c\x1b"
