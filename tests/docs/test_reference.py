"""The reference has every public name, its docstrings say what arguments mean, its examples run."""

import doctest
import functools
import html
import importlib
import inspect
import re

import numpy as np
import pytest
from markdown_it import MarkdownIt

pytest.importorskip("tvm", reason="the pages of needle_tvm need the [tvm] extra")

import needle as ndl
import needle.nn.functional as F
import needle_runtime
import needle_tvm
from docs import reference
from needle import nn
from needle_tvm.compiler.request import Choices

ENTRIES = reference.documented()
TEXTS = {entry.name: reference.text_of(entry.value) for entry in ENTRIES}
# Everything with a docstring of its own: its page, its name and itself.
DOCUMENTED = [
    (entry.page, f"{entry.full_name}{name}", value)
    for entry in ENTRIES
    if reference.home_of(entry) == entry
    for name, value in [
        ("", entry.value),
        *((f".{name}", value) for name, value in reference.members(entry)),
    ]
]
EXAMPLES = [(name, value) for _, name, value in DOCUMENTED if ">>>" in reference.text_of(value)]
OPERANDS = {"a", "b", "x", "X", "y", "args", "kwargs", "self", "cls"}  # what everything is about


def told(name, text, seen=()):
    """The words of a docstring and of those that it refers to, as in "otherwise like Conv2d"."""
    words = set(re.findall(r"\w+", text))
    for other in words & TEXTS.keys() - {name, *seen}:
        if re.search(rf"(like|those of|[Aa]s|[Ss]ee|than)\s+(in\s+)?`?(\w+\.)*{other}\b", text):
            words |= told(other, TEXTS[other], (name, *seen))
    return words


def test_docstrings_say_what_each_argument_means():
    """In their own words, in those of a page, or by naming a function that does."""
    silent = {}
    for page, name, value in DOCUMENTED:
        text = reference.text_of(value)
        if reference.signature_of(value) and not isinstance(value, property):
            words = told(name.rpartition(".")[2], text)
            words |= set(re.findall(r"\w+", reference.about(page)))
            arguments = set(inspect.signature(value).parameters)
            if "choices" in arguments:
                arguments = arguments - {"choices"} | Choices.__annotations__.keys()
            silent[name] = sorted(arguments - OPERANDS - words)
        elif not text:
            silent[name] = "has no docstring"
    assert not {name: missing for name, missing in silent.items() if missing}


def test_methods_have_docstrings():
    """Of their own, of what they override, or of the function of `needle.ops`."""
    for _, name, kind in DOCUMENTED:
        for each in dir(kind) if inspect.isclass(kind) else ():
            method = inspect.getattr_static(kind, each)
            if each[0] != "_" and (callable(method) or isinstance(method, property)):
                assert inspect.getdoc(getattr(kind, each)) or each in ndl.ops.FUNCTIONS, (
                    name,
                    each,
                )


@pytest.mark.parametrize("name, value", EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_examples_run(name, value, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(tmp_path / "cache"))
    ndl.manual_seed(0)
    names = {
        "ndl": ndl,
        "np": np,
        "nn": nn,
        "F": F,
        "needle_tvm": needle_tvm,
        "needle_runtime": needle_runtime,
    }
    example = doctest.DocTestParser().get_doctest(reference.text_of(value), names, name, name, 0)
    failures = []
    doctest.DocTestRunner().run(example, out=failures.append)
    assert not failures, "".join(failures)


page_text = functools.cache(reference.page_text)


@pytest.mark.parametrize("page", reference.PAGES)
def test_pages_have_every_name_and_links_lead_to_them(page):
    text = page_text(page)
    files = {reference.page_name(other): page_text(other) for other in reference.PAGES}
    links = re.findall(r"\[(\w+)\]\(([\w.]*)#(\w+)\)", text)
    assert {name for name, _, _ in links} >= {entry.name for entry in reference.entries(page)}
    for _, file, anchor in links:
        assert f'<a id="{anchor}"></a>' in (files[file] if file else text)


def test_markdown_shows_the_text_of_docstrings():
    """Stars and brackets of formulas are no markup."""
    for _, name, value in DOCUMENTED:
        text = reference.text_of(value)
        shown = html.unescape(re.sub("<[^>]*>", "", MarkdownIt().render(reference.markdown(text))))
        assert _characters(shown) == _characters(text), name


def _characters(text):
    """Those that are no white space and no marks of code, emphasis and lists."""
    return re.sub(r"[\s`*-]", "", text)


def test_pages_have_the_registry_and_all_exports():
    names = {entry.full_name for entry in ENTRIES}
    assert names >= {f"needle.ops.{name}" for name in ndl.ops.FUNCTIONS}
    for page in set(reference.PAGES) - {"needle.ops", "needle_runtime.errors"}:
        module = importlib.import_module(page)
        for name in module.__all__:
            here = {f"{page}.{name}"} | ({f"needle.ops.{name}"} if page == "needle" else set())
            assert here & names or inspect.ismodule(getattr(module, name)), f"{page}.{name}"
