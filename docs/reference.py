"""Write the reference as Markdown pages, from the docstrings: `python docs/reference.py OUT`.

A page has all public names of one module: the names in its `__all__`, or, for `needle.ops`, the
functions of the registry. A site builder can use the pages as they are. Examples are fenced as
`pycon`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

# A name on several pages is documented on the first of them; the other pages link to it.
PAGES = (
    "needle.init",
    "needle.ops",
    "needle",
    "needle.accelerator",
    "needle.autograd",
    "needle.nn",
    "needle.nn.functional",
    "needle.nn.init",
    "needle.nn.utils",
    "needle.nn.utils.rnn",
    "needle.optim",
    "needle.optim.lr_scheduler",
    "needle.data",
    "needle.linalg",
    "needle.fft",
    "needle.func",
    "needle.distributed",
    "needle.onnx",
    "needle_tvm",
    "needle_runtime",
    "needle_runtime.errors",
    "needle_tvm.errors",
)

# Users get these from functions and do not construct them, so their constructors are not shown.
_GIVEN = ("Device", "Executable", "Group", "Node", "IndexUpdate", "Program", "TensorTuple", "Value")
_MORE = {"needle": ("needle.methods.indexed_update.IndexUpdate", "needle.backend_ndarray.Device")}

_INSIDE = "\n\nFor developers of this package:"

_OPS = """\
Each function is also `ndl.NAME`, and a method of Tensor if NumPy or PyTorch has such a method.
(Functions that only other functions need, such as `getitem` for `x[key]` and `make_tuple`, are in
`ndl.ops` alone.)

- Tensors of different dtypes, and numbers in place of a Tensor, follow NumPy's [promotion
  rules](https://numpy.org/neps/nep-0050-scalar-promotion.html), and shapes follow its broadcasting
  rules. Sums and products of bools or integers, including cumulative ones, are int64.
- `axis` is one axis, and `axes` is one or several; None means all axes, and negative numbers count
  from the end. `keepdims` keeps the axes that a function would remove, with extent 1. PyTorch's
  names `dim` and `keepdim` are accepted as well.
- `dtype` is the name of a dtype. `device` is a Device, by default the CPU.
- A floating result has a gradient of any order, unless the text says that no gradient flows back.
- Every function can be traced and compiled, unless the text says that tracing raises a TraceError,
  or names a condition for compiled code.
"""


class Entry(NamedTuple):
    """A public name, its value, and the page that documents it."""

    page: str
    name: str
    value: Any

    @property
    def full_name(self) -> str:
        return f"{self.page}.{self.name}"


def entries(page: str) -> list[Entry]:
    """Return the public names of a module, except submodules, in alphabetical order."""
    module = importlib.import_module(page)
    if page == "needle.ops":
        found = dict(module.FUNCTIONS)
    else:
        names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0].isupper()]
        found = {name: getattr(module, name) for name in names}
    for path in _MORE.get(page, ()):
        home, _, name = path.rpartition(".")
        found[name] = getattr(importlib.import_module(home), name)
    if page == "needle":  # needle also has every op
        ops = importlib.import_module("needle.ops").FUNCTIONS
        found = {name: value for name, value in found.items() if ops.get(name) is not value}
    return [
        Entry(page, name, found[name])
        for name in sorted(found, key=lambda name: (name.lower(), name))
        if not isinstance(found[name], ModuleType)
    ]


@functools.cache
def documented() -> list[Entry]:
    """Return the entries of all pages."""
    return [entry for page in PAGES for entry in entries(page)]


def text_of(value: Any) -> str:
    """Return an object's own docstring, not that of its type or of a method that it overrides."""
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def signature_of(value: Any) -> str:
    """Return the arguments and the result of a call, or "" if they are unknown or not shown."""
    if not callable(value):
        return ""
    if inspect.isclass(value):
        if issubclass(value, BaseException) or value.__name__ in _GIVEN:
            return ""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=_Bare(parameter.annotation))
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    result = signature.empty if inspect.isclass(value) else _Bare(signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=result))


class _Bare:
    """An annotation that is shown as it is written, without quotes."""

    def __new__(cls, annotation: Any) -> Any:
        text = getattr(annotation, "__forward_arg__", annotation)
        if not isinstance(text, str):
            return annotation
        bare = super().__new__(cls)
        bare.text = text
        return bare

    def __repr__(self) -> str:
        return self.text


def members(entry: Entry) -> Iterator[tuple[str, Any]]:
    """Yield the methods and properties of a class that have a docstring, except functions of
    `needle.ops` and members of a base class that has its own entry."""
    if not inspect.isclass(entry.value):
        return
    public = {other.value for other in documented() if inspect.isclass(other.value)}
    inherited = [
        base
        for base in entry.value.__mro__[1:]
        if base in public or base.__module__ in ("builtins", "typing")
    ]
    ops = importlib.import_module("needle.ops").FUNCTIONS
    for name in sorted(dir(entry.value)):
        value = inspect.getattr_static(entry.value, name)
        value = getattr(value, "__func__", value)
        if (name.startswith("_") and name != "__call__") or not text_of(value):
            continue
        if name in ops and text_of(value) == text_of(ops[name]):
            continue
        if inspect.isroutine(value) or isinstance(value, property):
            if not any(inspect.getattr_static(base, name, None) is value for base in inherited):
                yield name, value


def markdown(text: str) -> str:
    """Return a docstring as Markdown: with fenced examples and escaped stars."""
    blocks = []
    for block in re.split(r"\n{2,}", text):
        if block.startswith(">>>"):
            blocks.append(f"```pycon\n{block}\n```")
        else:
            parts = re.split(r"(`[^`]*`|(?<![\w*])\*\w[^*]*\w\*(?![\w*]))", block)
            parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
            blocks.append("".join(parts))
    return "\n\n".join(blocks)


def call(text: str) -> str:
    """Return a name and its arguments as a block of code, with line breaks only between
    arguments."""
    glued = text.replace(" ", "\0").replace(",\0", ", ")  # so that lines end only after commas
    lines = textwrap.wrap(glued, 88, subsequent_indent="    ", break_long_words=False)
    return "\n".join(["```python", *lines, "```"]).replace("\0", " ")


def home_of(entry: Entry) -> Entry:
    """Return the first entry with the same value: the entry that shows the docstring."""
    return next(other for other in documented() if other.value is entry.value)


def section(entry: Entry) -> str:
    """Return an entry's heading, signature and docstring; a class's methods follow in the same
    form."""
    lines = [f'<a id="{entry.name}"></a>', "", f"## {entry.name}", ""]
    if signature := signature_of(entry.value):
        lines += [call(entry.full_name + signature), ""]
    lines += [markdown(text_of(entry.value)), ""]
    for name, value in members(entry):
        signature = "" if isinstance(value, property) else signature_of(value)
        lines += [f"### {entry.name}.{name}", ""]
        lines += [call(name + signature), "", markdown(text_of(value)), ""]
    if entry.name == "Tensor":
        ops = importlib.import_module("needle.ops").FUNCTIONS
        names = [name for name in ops if hasattr(entry.value, name)]
        links = ", ".join(f"[{name}](ops.md#{name})" for name in sorted(names))
        lines += [f"These functions of `needle.ops` are methods, too: {links}.", ""]
    return "\n".join(lines)


def index(found: list[Entry]) -> str:
    """Return a table of the page's names, grouped by the first sentence of their module's
    docstring."""
    groups: dict[str, list[str]] = {}
    for entry in found:
        file = sys.modules.get(getattr(entry.value, "__module__", None) or entry.page)
        title = re.split(r"(?<!et al)[.;](?:\s|$)", text_of(file), maxsplit=1)[0]
        home = home_of(entry)
        page = "" if home.page == entry.page else page_name(home.page)
        link = f"[{entry.name}]({page}#{home.name})"
        groups.setdefault(" ".join(title.split()), []).append(link)
    rows = [f"| {markdown(title)} | {' '.join(groups[title])} |" for title in sorted(groups)]
    return "\n".join(["| group | names |", "|---|---|", *rows])


def page_name(page: str) -> str:
    """Return the name of a page's file: `nn.functional.md` for `needle.nn.functional`."""
    return f"{page.removeprefix('needle.')}.md"


def about(page: str) -> str:
    """Return the text at the top of a page: the module's docstring without its notes for
    developers."""
    if page == "needle.ops":
        return _OPS
    return markdown(text_of(importlib.import_module(page)).partition(_INSIDE)[0])


def page_text(page: str) -> str:
    """Return the text of a whole page."""
    found = entries(page)
    own = [section(entry) for entry in found if home_of(entry) == entry]
    return "\n".join([f"# {page}", "", about(page), "", index(found), "", *own])


def write(out: Path) -> None:
    """Write all pages and an index of them into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (out / page_name(page)).write_text(page_text(page).rstrip("\n") + "\n")
    rows = [f"- [{page}]({page_name(page)}): {len(entries(page))} names" for page in sorted(PAGES)]
    (out / "index.md").write_text("\n".join(["# Reference", "", *rows, ""]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder to write to")
    write(parser.parse_args().out)
