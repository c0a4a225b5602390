"""A digest of code follows helpers, closures, constants, modules and methods of objects."""

import functools
import importlib
import itertools
import re
import sys
import threading

import numpy as np
import pytest

from needle.reach import digest

NUMBERS = itertools.count()

BASE = """
import functools
import numpy as np
import {helper} as helpers
from {helper} import scaled

FACTOR = 3
TABLE = np.array([1.0, 2.0])
NESTED = {{"a": [1, (2, 3)]}}

def helper(x):
    return inner(x)

def inner(x):
    return x + 1

class Holder:
    rate = 2
    def __init__(self, n):
        self.n = n
    def twice(self, x):
        return self.once(x)
    def once(self, x):
        return x * self.n

HOLDER = Holder(4)

def made(power):
    def raised(x):
        return x ** power
    return raised

RAISED = made(2)
CACHED = functools.lru_cache(helper)
PARTIAL = functools.partial(helper)

class Base:
    def shared(self, x):
        return x

class Rule(Base):
    def emit(self, x, also=lambda x: x):
        return helper(x)
    def with_constant(self, x):
        return x * FACTOR
    def with_table(self, x):
        return x * TABLE
    def with_nested(self, x):
        return NESTED["a"]
    def with_object(self, x):
        return HOLDER.twice(x)
    def with_closure(self, x):
        return RAISED(x)
    def with_module(self, x):
        return helpers.shifted(x)
    def with_import(self, x):
        import {helper} as inside
        return inside.shifted(x)
    def with_name(self, x):
        return scaled(x)
    def with_cache(self, x):
        return CACHED(x) + PARTIAL(x)
    def with_inner(self, x):
        return [helper(y) for y in x]
    def with_base(self, x):
        return self.shared(x)
"""
HELPER = """
OFFSET = 5

def shifted(x):
    return x + OFFSET

def scaled(x):
    return below(x)

def below(x):
    return x * 2
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a module and its helper with text replaced, and returns its Rule."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Python would use stale bytecode for a file replaced within a second by one of equal size.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = []

    def write(*replacements):
        number = next(NUMBERS)
        helper, main = f"reach_helper_{number}", f"reach_main_{number}"
        texts = {main: BASE, helper: HELPER}
        for old, new in replacements:
            assert any(old in text for text in texts.values())
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        for name, text in texts.items():
            source = text.format(helper=helper) if name == main else text
            (tmp_path / f"{name}.py").write_text(source)
        names.extend(texts)
        importlib.invalidate_caches()
        return importlib.import_module(main).Rule

    yield write
    for name in names:
        sys.modules.pop(name, None)


def of(rule, method):
    """The digest of one method."""
    found, unknown = digest(getattr(rule, method))
    assert unknown == []
    return found


CHANGES = {
    "emit": [("return x + 1", "return x + 2"), ("return inner(x)", "return inner(x) * 1"),
             ("also=lambda x: x", "also=lambda x: -x")],
    "with_constant": [("FACTOR = 3", "FACTOR = 4"), ("FACTOR = 3", "FACTOR = 3.0")],
    "with_table": [("[1.0, 2.0]", "[1.0, 2.5]")],
    "with_nested": [("(2, 3)", "(2, 4)")],
    "with_object": [("return x * self.n", "return x / self.n"), ("Holder(4)", "Holder(5)"),
                    ("rate = 2", "rate = 3")],
    "with_closure": [("made(2)", "made(3)"), ("x ** power", "x * power")],
    "with_module": [("OFFSET = 5", "OFFSET = 6"), ("x + OFFSET", "x - OFFSET")],
    "with_import": [("OFFSET = 5", "OFFSET = 6")],
    "with_name": [("return x * 2", "return x * 3")],
    "with_cache": [("return x + 1", "return x + 2")],
    "with_inner": [("return x + 1", "return x + 2")],
}  # fmt: skip


@pytest.mark.parametrize(
    "method, change", [(m, c) for m, changes in CHANGES.items() for c in changes], ids=str
)
def test_a_change_of_what_is_reached_is_seen(written, method, change, monkeypatch):
    # Both modules under one name, as two versions of one file are.
    monkeypatch.setattr("tests.needle.test_reach.NUMBERS", itertools.repeat(0), raising=False)
    before = of(written(), method)
    assert of(fresh(written), method) == before
    assert of(fresh(written, change), method) != before


def fresh(written, *changes):
    for name in [n for n in sys.modules if n.startswith("reach_")]:
        del sys.modules[name]
    return written(*changes)


def test_a_class_is_all_its_methods_and_those_of_its_bases(written):
    rule = written()
    before, _ = digest(rule)
    original = rule.__mro__[1].shared
    rule.__mro__[1].shared = lambda self, x: -x
    assert digest(rule)[0] != before
    rule.__mro__[1].shared = original
    assert digest(rule)[0] == before


def test_what_is_not_reached_makes_no_difference(written):
    rule = written()
    before = of(rule, "with_constant")
    sys.modules[rule.__module__].TABLE = None
    assert of(rule, "with_constant") == before


def test_values_are_followed_and_what_cannot_be_is_named():
    lock = threading.Lock()

    def locked(x):
        with lock:
            return x

    found, unknown = digest(locked)
    assert len(found) == 64
    assert unknown == ["lock in " + locked.__qualname__ + ": a lock"]

    def searching(x, pattern=re.compile("a")):
        return pattern.search(x)

    assert digest(searching)[1] == []
    assert digest(np.arange(3))[0] != digest(np.arange(4))[0]
    assert digest(1)[0] != digest(1.0)[0] != digest("1")[0]
    assert digest(functools.partial(int, "1"))[0] != digest(functools.partial(int, "2"))[0]


def test_circles_and_depth_come_to_an_end():
    circle = []
    circle.append(circle)
    deep = ()
    for _ in range(100_000):
        deep = (deep,)
    assert digest(circle)[1] == digest(deep)[1] == []
