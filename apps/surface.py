"""Count which of the names that people expect needle has: python apps/surface.py [--all] [--out F].

Each name's example runs eagerly, and then compiled by `needle_tvm.jit`, where it must give the same
values or be refused by a TraceError. It ends with 1 if an example fails or gives other values.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import needle as ndl
import needle_tvm
from apps.surface_examples import SECTIONS
from needle import nn, optim
from needle_tvm.artifact.tolerance import MODEL, compare

COMPILED, ALIAS, REFUSED, EAGER = "compiled", "alias", "refused when compiled", "eager"
ABSENT, WRONG = "absent", "wrong"
_COLUMNS = (COMPILED, ALIAS, REFUSED, EAGER, ABSENT, WRONG)
_MEANINGS = {
    COMPILED: "runs eagerly and compiled, with equal results",
    ALIAS: "so does it, under this and another name",
    REFUSED: "runs eagerly; compiling refuses it by name",
    EAGER: "a part of training, which is eager",
    ABSENT: "there is no such name",
    WRONG: "its example fails, or compiled code gives other values",
}


@dataclass(frozen=True)
class Found:
    """What became of a name, and why."""

    section: str
    name: str
    example: str
    status: str
    reason: str = ""


class Each(nn.Module):
    """Applies what a container of modules or parameters holds, one after the other."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: ndl.Tensor) -> ndl.Tensor:
        for part in self.held.values() if hasattr(self.held, "values") else self.held:
            x = part(x) if isinstance(part, nn.Module) else x * part
        return x


def operands() -> dict[str, ndl.Tensor]:
    """The tensors that examples are called on, by name."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.uniform(0.1, 0.9, shape).astype(np.float32)

    square = drawn(4, 4)
    arrays = {
        "x": drawn(3, 4),
        "y": drawn(3, 4),
        "m": rng.random((3, 4)) < 0.5,
        "i": rng.permuted(np.tile(np.arange(4), (3, 1)), axis=1),
        "spd": square @ square.T + np.eye(4, dtype=np.float32),
        "batch": drawn(3, 3, 4),
        "heads": drawn(1, 2, 6, 4),
        "signal": drawn(2, 4, 8),
        "image": drawn(1, 4, 8, 8),
        "volume": drawn(1, 4, 4, 4, 4),
        "grid": drawn(1, 5, 5, 2),
    }
    return {name: ndl.Tensor(array, requires_grad=False) for name, array in arrays.items()}


def function_of(example: str, names: list[str]) -> Callable[..., Any]:
    """The example as a function of the operands. A layer before a colon is made here, once."""
    scope = {"ndl": ndl, "nn": nn, "optim": optim, "F": nn.functional, "Each": Each}
    made, _, called = example.partition(" : ")
    if called:
        scope["layer"] = eval(made, scope).eval()
        example = f"layer({called})"
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {example}", scope)
    return function


def examine(section: str, name: str, example: str) -> Found:
    """Run the example of a name eagerly and compiled."""

    def found(status: str, reason: Any = "") -> Found:
        return Found(section, name, example, status, " ".join(str(reason).split()))

    tensors = operands()
    try:
        if section == "Optimizers":
            train(example)
            return found(EAGER)
        function = function_of(example, list(tensors))
        expected = list(leaves(function(*tensors.values())))
    except Exception as error:  # whatever it is, the table tells it
        lacks = isinstance(error, AttributeError) and error.name == name.rpartition(".")[2]
        return found(ABSENT if lacks else WRONG, f"{type(error).__name__}: {error}")
    try:
        results = list(leaves(needle_tvm.jit(function)(*tensors.values())))
    except ndl.TraceError as error:
        return found(REFUSED, error)
    except Exception as error:
        return found(WRONG, f"compiled: {type(error).__name__}: {error}")
    if len(results) != len(expected) or not all(
        compare(want, have, MODEL).right for want, have in zip(expected, results, strict=True)
    ):
        return found(WRONG, "compiled code gives other values than eager code")
    return found(ALIAS if is_alias(name, example) else COMPILED)


def is_alias(name: str, example: str) -> bool:
    """Whether the example calls something whose own name is another one."""
    call = re.search(rf"\b(ndl|nn|F)(\.\w+)*\.{re.escape(name)}\b", example)
    if call is None:
        return False
    value = eval(call[0], {"ndl": ndl, "nn": nn, "F": nn.functional})
    return bool(getattr(value, "__name__", name) != name)


def leaves(value: Any) -> Iterator[np.ndarray]:
    """The arrays of nested results."""
    if isinstance(value, (tuple, list, ndl.TensorTuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value.numpy() if isinstance(value, ndl.Tensor) else np.asarray(value)


def train(example: str) -> None:
    """Take the step of training that the example describes; RuntimeError if no weight changes."""
    model = nn.Linear(4, 2)
    weights = list(model.parameters())
    x = operands()["x"]

    def loss() -> ndl.Tensor:
        value = model(x).square().mean()
        value.backward()
        return value

    def step(optimizer: Any, schedule: Any = None) -> None:
        optimizer.step()
        if schedule is not None:
            schedule.step()

    loss()
    scope = {"optim": optim, "weights": weights, "model": model, "loss": loss, "step": step}
    before = [weight.numpy() for weight in weights]
    eval(example, {**scope, "o": optim.SGD(weights, lr=0.1)})
    unchanged = all(map(np.array_equal, before, (weight.numpy() for weight in weights)))
    if "step(" in example and "Plateau" not in example and unchanged:
        raise RuntimeError("the step changes no weight")


def table(results: list[Found]) -> Table:
    """How many names of each section have each status."""
    out = Table(title="Names that people expect", caption_justify="left")
    out.add_column("section")
    for column in _COLUMNS:
        out.add_column(column, justify="right")
    counts = collections.Counter((r.section, r.status) for r in results)
    for section in SECTIONS:
        out.add_row(section, *(str(counts[section, column] or "") for column in _COLUMNS))
    totals = collections.Counter(r.status for r in results)
    out.add_section()
    out.add_row("all", *(str(totals[column] or "") for column in _COLUMNS))
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--all", action="store_true", help="print every name, not only the exceptions"
    )
    parser.add_argument("--section", choices=list(SECTIONS), help="examine one section only")
    parser.add_argument("--out", type=Path, help="write the results there as JSON")
    arguments = parser.parse_args(argv)
    todo = [
        (section, name, example)
        for section, examples in SECTIONS.items()
        for name, example in examples.items()
        if arguments.section in (None, section)
    ]
    progress = Console(stderr=True)
    results = [examine(*one) for one in track(todo, "examples", console=progress, transient=True)]
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table(results))
    for status, meaning in _MEANINGS.items():
        console.print(f"{status}: {meaning}", highlight=False)
    if not arguments.all:
        refused = " ".join(r.name for r in results if r.status == REFUSED)
        console.print(f"\n{REFUSED}: {refused}", highlight=False)
    for r in results:
        if arguments.all or r.status in (ABSENT, WRONG):
            line = f"{r.section}, {r.name}: {r.status}: {r.example}" + (
                r.reason and f": {r.reason}"
            )
            console.print(line, highlight=False, markup=False)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return int(any(r.status == WRONG for r in results))


if __name__ == "__main__":
    sys.exit(main())
