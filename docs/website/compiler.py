"""The pages *How the compiler works*, made by the pipeline itself, so they are never out of date.

The passes of the tuned stage run one by one on small models. Each pass is shown with its docstring
and with its changes to the first model that it changed.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docs.website.drawing import picture
from docs.website.models import COMMON, Example, examples
from docs.website.normal import normal
from kernel_lab.ir_views import tvmscript, unified
from needle.trace import trace
from needle_tvm._tvm.names import Target, structural_equal, transform
from needle_tvm.frontend.axis_dims import axis_dims
from needle_tvm.frontend.lowering import translated
from needle_tvm.lower import pipeline
from needle_tvm.lower.in_place import updating
from needle_tvm.lower.variant import Variant
from needle_tvm.target import spec

STAGE = "tuned"
_MOST_LINES = 140  # the most lines of a difference that a page shows


@dataclass
class Step:
    """One run of a pass on a model: the module's text before and after. `changed` is False if only
    names or the order of lines differ."""

    name: str
    model: str
    before: str
    after: str
    changed: bool


@dataclass
class Shown:
    """A pass of the pipeline: its function, its positions in the list, the steps that changed a
    model."""

    name: str
    apply: Any
    places: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


def target_for(processor: str) -> Target:
    """Return the target for an example's code: two threads of a processor."""
    return spec.resolve({"kind": "llvm", "mcpu": processor, "num-cores": 2}).to_tvm()


def steps(example: Example) -> list[Step]:
    """Run each pass of the pipeline on a model, in order; return one Step for each."""
    target = target_for(example.processor)
    graph = trace(example.model, *example.inputs, dims=example.dims)
    passes = pipeline.in_precision(pipeline.of(target, STAGE), example.precision)
    variant = Variant(STAGE, precision=example.precision)
    module = updating(translated(graph.at(axis_dims(graph)), target, variant), example.updates)
    found, text = [], tvmscript(module)
    for apply in (*passes.graph, *passes.schedule):
        before, old = text, module.clone()  # a pass may change a module in place
        module = pipeline.run((apply,), module, target)
        text = tvmscript(module)
        changed = not _same_lines(text, before) and not structural_equal(old, module)
        found.append(Step(name_of(apply), example.name, before, text, changed))
    return found


def _same_lines(one: str, other: str) -> bool:
    return sorted(one.splitlines()) == sorted(other.splitlines())


def name_of(apply: Any) -> str:
    """Return the name of a pass, as `disable=[...]` takes it."""
    return str(getattr(apply, "func", apply).__name__).lstrip("_")


def shown(ways: Iterable[list[Step]]) -> list[Shown]:
    """Return each pass of the tuned stage once, in order, with the steps that changed a model."""
    listed = pipeline.PIPELINES["llvm"][STAGE]
    found: dict[str, Shown] = {}
    for place, apply in enumerate((*listed.graph, *listed.schedule), 1):
        name = name_of(apply)
        found.setdefault(name, Shown(name, apply)).places.append(place)
    for way in ways:
        for step in way:
            if step.changed:
                found[step.name].steps.append(step)
    return list(found.values())


def write(out: Path) -> None:
    """Write index.md, passes.md and their pictures into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    models = examples()
    ways = {each.name: steps(each) for each in models}
    passes = shown(ways.values())
    pictures = out / "pictures"
    pictures.mkdir(exist_ok=True)
    for name, text in (
        ("index", _index(models, ways, passes, pictures)),
        ("passes", _passes(models, passes, pictures)),
    ):
        (out / f"{name}.md").write_text(normal(text), encoding="utf-8")


def _index(
    models: list[Example], ways: dict[str, list[Step]], passes: list[Shown], pictures: Path
) -> str:
    first, second = models[:2]
    way = ways[first.name]
    lines = [
        "# How the compiler works",
        "",
        "The compiler itself made these pages. They show the passes that `compile` runs at stage"
        f" `{STAGE}`, in order, and the code of a small model after each pass, for a processor"
        f" `{COMMON}`. [Architecture](../architecture.md) says which folder does what.",
        "",
        "A model goes through four forms:",
        "",
        "1. a *graph* of needle's operations, recorded by running the model on shapes;",
        "2. a *Relax module*: one function `main` that calls operators on whole tensors;",
        "3. the same module with *kernels*: each operator, or several fused ones, is a function of"
        " loops (`T.prim_func`), which `main` calls by `R.call_tir`;",
        "4. the same module with *schedules*: its loops are tiled, vectorised and divided among"
        " threads. LLVM compiles this module.",
        "",
        f"## {first.what[0].upper()}{first.what[1:]}",
        "",
        "This is the translated graph. Weights are parameters of `main`:",
        "",
        _fence(way[0].before, "python"),
        "",
        "The table shows the module after each pass. *Calls* counts the calls of operators and"
        " kernels in `main`; *kernels* counts the functions of loops, including those that prepare"
        " the weights once:",
        "",
        "| pass | calls in `main` | kernels | lines |",
        "|---|---:|---:|---:|",
        f"| *translated* | {_calls(way[0].before)} | {_kernels(way[0].before)} |"
        f" {_length(way[0].before)} |",
    ]
    lines += [
        f"| [{step.name}](passes.md#{_anchor(step.name)}) | {_calls(step.after)} |"
        f" {_kernels(step.after)} | {_length(step.after)} |"
        for step in way
        if step.changed
    ]
    lines += [
        "",
        "The pictures show the first and the last module. A box is a call that depends on the"
        " input: of an operator on the left, of a kernel on the right. Work on weights alone is"
        " not drawn. The right picture leaves out `merge_kernels`, which merges all kernels into"
        " one.",
        "",
        *_drawn(way[0].before, way[-1].before, first.name, "first", pictures),
        f"These are the pictures of *{second.name}*, {second.what}:",
        "",
        *_drawn(
            ways[second.name][0].before,
            ways[second.name][-1].before,
            second.name,
            "second",
            pictures,
        ),
    ]
    unused = [each.name for each in passes if not any(s.model == first.name for s in each.steps)]
    lines += [
        "",
        f"The other passes find nothing to do in *{first.name}*: "
        + ", ".join(f"[{name}](passes.md#{_anchor(name)})" for name in unused)
        + ".",
        "",
        "LLVM gets this code:",
        "",
        _fence(_cut(way[-1].after, 220), "python"),
        "",
        "## The lists of passes",
        "",
        "`needle_tvm/lower/pipeline.py` has one list for each kind of processor and stage. Passes"
        " after the bar schedule loops, and a search does its work there:",
        "",
    ]
    for kind, stages in pipeline.PIPELINES.items():
        for stage, passes_ in stages.items():
            graph, loops = (
                ", ".join(f"`{name_of(apply)}`" for apply in part)
                for part in (passes_.graph, passes_.schedule)
            )
            lines.append(f"- **{kind}, {stage}**: {graph} | {loops}")
    lines.append("")
    return "\n".join(lines)


def _passes(models: list[Example], passes: list[Shown], pictures: Path) -> str:
    lines = [
        "# The passes, one by one",
        "",
        f"The {sum(len(each.places) for each in passes)} passes of stage `{STAGE}` on a processor,"
        " in order. A pass that runs several times is shown once. Each section has the pass's"
        " docstring, and its changes to one of these models, traced with small inputs:",
        "",
        *[f"- *{each.name}*: {each.what}" for each in models],
        "",
        "`needle_tvm.compile(..., disable=[NAME])` leaves a pass out, to measure its effect."
        " TVM's own documentation also describes the passes of TVM, such as `LiftTransformParams`.",
        "",
    ]
    for each in passes:
        lines += _section(each, pictures)
    return "\n".join(lines)


def _section(each: Shown, pictures: Path) -> list[str]:
    places = " and ".join(str(place) for place in each.places).replace(
        " and ", ", ", len(each.places) - 2
    )
    lines = [
        f"## {each.name} {{ #{_anchor(each.name)} }}",
        "",
        f"Position{'s' if len(each.places) > 1 else ''} {places} in the list:"
        f" {_source(each.apply)}.",
        "",
        about(each.apply),
        "",
    ]
    if not each.steps:
        return [*lines, "The pass finds nothing to do in the models above.", ""]
    step = each.steps[0]
    others = sorted({other.model for other in each.steps} - {step.model})
    also = f" (it also changes {', '.join(others)})" if others else ""
    if len(others) > 4:
        also = f" (it also changes {len(others)} of the other models)"
    return [
        *lines,
        f"Its changes to *{step.model}*{also}:",
        "",
        _fence(_cut(unified(step.before, step.after), _MOST_LINES), "diff"),
        "",
        *_drawn(step.before, step.after, step.model, _anchor(each.name), pictures, folded=True),
    ]


def _drawn(
    before: str, after: str, model: str, name: str, pictures: Path, *, folded: bool = False
) -> list[str]:
    """Return two pictures of `main` side by side as Markdown lines; [] if both are the same."""
    both = [
        picture(text, f"{model}, {when}") for text, when in ((before, "before"), (after, "after"))
    ]
    if both[0].replace(", before", "") == both[1].replace(", after", ""):
        return []
    lines = ['<div class="beside" markdown="1">', ""]
    for when, drawing in zip(("before", "after"), both, strict=True):
        file = f"{name}-{when}.svg"
        (pictures / file).write_text(drawing, encoding="utf-8")
        lines.append(f"![{model}, {when}](pictures/{file}){{ loading=lazy }}")
    lines += ["", "</div>", ""]
    if folded:
        return ['<details markdown="1">', "<summary>Drawn</summary>", "", *lines, "</details>", ""]
    return lines


def about(apply: Any) -> str:
    """Return the description of a pass: the docstring of its module, or of TVM's pass."""
    function = getattr(apply, "func", apply)
    own = inspect.getmodule(function)
    theirs = getattr(transform, name_of(apply), None)
    if theirs is not None and own is pipeline:
        return _paragraphs(inspect.getdoc(theirs) or "", 1)
    if own is pipeline:
        return _paragraphs(inspect.getdoc(function) or "", 1)
    text = inspect.getdoc(own) or inspect.getdoc(function) or ""
    return _paragraphs(text)


def _paragraphs(text: str, most: int | None = None) -> str:
    kept = re.split(r"\n{2,}(?!\s)", text)[:most]
    return "\n\n".join(kept)


def _source(apply: Any) -> str:
    function = getattr(apply, "func", apply)
    own = inspect.getmodule(function)
    if own is pipeline and getattr(transform, name_of(apply), None) is not None:
        return f"TVM's `relax.transform.{name_of(apply)}`"
    path = Path(inspect.getsourcefile(function) or "")
    root = Path(str(importlib.import_module("needle_tvm").__file__)).parents[1]
    return f"`{path.relative_to(root)}`"


def _cut(text: str, most: int) -> str:
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join([*lines[:most], f"... {len(lines) - most} more lines"])


def _fence(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _anchor(name: str) -> str:
    return f"pass-{name.lower()}"


def _calls(script: str) -> int:
    body = re.search(r"^    def main\(.*?(?=^    @|\Z)", script, re.M | re.S)
    return len(re.findall(r" = (?:R\.|cls\.)", body[0])) if body else 0


def _kernels(script: str) -> int:
    return len(re.findall(r"^ *@T\.prim_func", script, re.M))


def _length(script: str) -> int:
    return len(script.splitlines())
