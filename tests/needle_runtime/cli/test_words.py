"""Numbers in sentences, and text escaped for printing."""

import pytest

from needle_runtime.text import (
    compared,
    counted,
    digits,
    duration,
    interval,
    one_line,
    printable,
    quartiles,
)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.50 s"),
        (0.0138, "13.8 ms"),
        (0.000249, "249 µs"),
        (4.7e-05, "47.0 µs"),
        (2.5e-7, "250 ns"),
        (123.0, "123 s"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds, text):
    assert duration(seconds) == text


def test_an_interval_has_one_unit():
    assert interval(9.5e-4, 1.2e-3) == "0.95-1.20 ms"


@pytest.mark.parametrize(
    ("value", "text"), [(4.256, "4.26"), (12.34, "12.3"), (250.4, "250"), (0.0138, "0.014")]
)
def test_numbers_have_three_digits(value, text):
    assert digits(value) == text


def test_quartiles_stand_in_brackets():
    assert quartiles(2.0, 1.96, 2.04) == "2.00 (1.96-2.04)"


@pytest.mark.parametrize(
    ("median", "lower", "upper", "text"),
    [
        (1.4, 1.3, 1.5, "1.4 times faster"),
        (2.0, 1.99, 2.01, "2 times faster"),
        (6.938, 6.5, 7.1, "6.94 times faster"),
        (1 / 6.9, 1 / 7.1, 1 / 6.8, "6.9 times slower"),
        (0.0071, 0.0070, 0.0072, "141 times slower"),
        (1 / 1243.7, 1 / 1300, 1 / 1200, "1,240 times slower"),
        (1_234_567.0, 1.2e6, 1.3e6, "1,230,000 times faster"),
        (1.3, 0.95, 1.8, "as fast"),  # within noise
        (0.8, 0.7, 1.0, "as fast"),
        (1.0, 1.0, 1.0, "as fast"),
        (1.004, 1.002, 1.006, "as fast"),  # nothing that three digits show
        (0.996, 0.995, 0.997, "as fast"),
        (1.04, 1.02, 1.06, "1.04 times faster"),
        (0.96, 0.95, 0.97, "1.04 times slower"),
    ],
)
def test_a_ratio_is_said_in_words(median, lower, upper, text):
    assert compared(median, lower, upper) == text
