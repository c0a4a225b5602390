"""Compare needle's defaults with PyTorch's, in Markdown tables: python docs/defaults.py [--write].

One table lists the default arguments of every layer, loss, optimizer and schedule that both
libraries have; the other lists the distributions of initial values. --write puts the tables into
docs/coming-from-pytorch.md.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

import needle as ndl
from needle import nn, optim

PAGE = Path(__file__).with_name("coming-from-pytorch.md")
BEGIN, END = "<!-- python docs/defaults.py --write -->\n", "<!-- end -->\n"

TWINS = {"Conv": "Conv2d", "LayerNorm1d": "LayerNorm"}  # the course's layers, and PyTorch's names
_OTHERS = {"Module", "Parameter", "Sequential", "Transformer"}  # these have only the name in common
_NAMED = {  # PyTorch's names of arguments, and needle's names for the same arguments
    "num_features": "dim", "parameters": "items", "modules": "items", "values": "items",
    "input": "x", "target": "y", "input1": "x1", "input2": "x2",
}  # fmt: skip
_DEPRECATED = {"size_average", "reduce", "min_value", "max_value", "_stacklevel"}
_PLACES = {"self", "args", "kwargs", "device", "dtype"}  # these have no defaults to compare
# All layers with initial values, with arguments that give each tensor enough elements.
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Linear", (64, 100), {}),
    ("Bilinear", (16, 9, 100), {}),
    ("Embedding", (50, 40), {}),
    ("EmbeddingBag", (50, 40), {}),
    ("PReLU", (100,), {}),
    ("Conv", (12, 100, 3), {}),
    ("Conv1d", (12, 100, 3), {"groups": 2}),
    ("Conv2d", (12, 100, 3), {}),
    ("Conv3d", (4, 100, 2), {}),
    ("ConvTranspose1d", (100, 12, 3), {}),
    ("ConvTranspose2d", (100, 12, 3), {"groups": 2}),
    ("ConvTranspose3d", (100, 4, 2), {}),
    ("BatchNorm1d", (100,), {}),
    ("BatchNorm2d", (100,), {}),
    ("BatchNorm3d", (100,), {}),
    ("InstanceNorm1d", (100,), {"affine": True, "track_running_stats": True}),
    ("InstanceNorm2d", (100,), {"affine": True, "track_running_stats": True}),
    ("InstanceNorm3d", (100,), {"affine": True, "track_running_stats": True}),
    ("LayerNorm", (100,), {}),
    ("LayerNorm1d", (100,), {}),
    ("RMSNorm", (100,), {}),
    ("GroupNorm", (10, 100), {}),
    ("RNNCell", (8, 100), {}),
    ("LSTMCell", (8, 100), {}),
    ("GRUCell", (8, 100), {}),
    ("RNN", (8, 100), {"num_layers": 2}),
    ("LSTM", (8, 100), {"num_layers": 2}),
    ("GRU", (8, 100), {"num_layers": 2}),
    ("MultiheadAttention", (100, 4), {"add_bias_kv": True}),
    ("MultiheadAttention", (100, 4), {"kdim": 30, "vdim": 50}),
    ("TransformerEncoderLayer", (100, 4, 60), {}),
    ("TransformerDecoderLayer", (100, 4, 60), {}),
]  # fmt: skip


class Arguments(NamedTuple):
    """Default arguments by name: those equal in both libraries, and those of each library that the
    other lacks or has with another value."""

    both: dict[str, Any]
    needle: dict[str, Any]
    torch: dict[str, Any]


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, needle's object, PyTorch's object) for the names in both, by section."""
    sections: list[tuple[str, ModuleType, tuple[Any, ...]]] = [
        ("nn.", nn, (torch.nn,)),
        ("nn.functional.", nn.functional, (torch.nn.functional,)),
        ("nn.init.", nn.init, (torch.nn.init,)),
        ("nn.utils.", nn.utils, (torch.nn.utils,)),
        ("optim.", optim, (torch.optim, torch.optim.lr_scheduler, torch.nn.utils)),
    ]
    for prefix, mine, theirs in sections:
        for name in mine.__all__:
            found = [getattr(each, TWINS.get(name, name), None) for each in theirs]
            twin = next(filter(None, found), None)
            if callable(twin) and name not in _OTHERS:
                yield prefix + name, getattr(mine, name), twin


def arguments(mine: Any, theirs: Any) -> Arguments:
    """Return the default arguments of needle's class or function, and of PyTorch's."""
    ours, others = _defaults(mine), _defaults(theirs)
    if ours.get("betas", ()) is None:
        ours["betas"] = ours.pop("beta1"), ours.pop("beta2")
    both = {name: ours[name] for name in ours if name in others and _same(ours[name], others[name])}
    return Arguments(
        both,
        {name: value for name, value in ours.items() if name not in both},
        {name: value for name, value in others.items() if name not in both},
    )


def _defaults(thing: Any) -> dict[str, Any]:
    if thing in (torch.nn.RNN, torch.nn.LSTM, torch.nn.GRU):
        found = _defaults(torch.nn.RNNBase) | {"bias": True}
        return found | ({"nonlinearity": "tanh"} if thing is torch.nn.RNN else {})
    call = thing.__init__ if isinstance(thing, type) else thing
    if inspect.isbuiltin(call) or getattr(call, "__text_signature__", "") is None:
        return {}  # PyTorch's built-in functions do not show their arguments
    return {
        _NAMED.get(name, name): parameter.default
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.default is not parameter.empty
        and name not in _DEPRECATED | _PLACES
        and not name.startswith("_")
    }


def _same(one: Any, other: Any) -> bool:
    return bool(_shown(one) == _shown(other) or (type(other) is not str and one == other))


def _shown(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def initial(
    framework: Any, name: str, args: tuple[Any, ...], options: dict[str, Any], count: int
) -> dict[str, np.ndarray]:
    """Return at least `count` initial values of each tensor of a layer, by PyTorch's names.
    `framework` is needle.nn or torch.nn."""
    drawn: dict[str, list[np.ndarray]] = {}
    while True:
        layer = getattr(framework, name if framework is nn else TWINS.get(name, name))
        made = layer(*args, **options)
        state = made.state_dict(layout="torch") if framework is nn else made.state_dict()
        for key, value in state.items():
            if key != "num_batches_tracked":  # needle has no such tensor if there is a momentum
                drawn.setdefault(key, []).append(value.numpy().ravel())
        if all(len(each) * each[0].size >= count for each in drawn.values()):
            return {key: np.concatenate(each) for key, each in drawn.items()}


def described(values: np.ndarray) -> str:
    """Return the distribution that values were drawn from: constant, uniform or normal."""
    first, scale = values.flat[0], float(values.std())
    if (values == first).all():
        return f"{first:g}"
    kurtosis = float(
        (((values - values.mean()) / scale) ** 4).mean()
    )  # 1.8 if uniform, 3 if normal
    if kurtosis < 2.4:
        return f"uniform, ±{np.abs(values).max():.2g}"
    return f"normal, std {scale:.1g}"


def tables() -> str:
    """Return both tables as Markdown."""
    lines = ["| | the same in both | needle | PyTorch |", "|---|---|---|---|"]
    for name, mine, theirs in pairs():
        if name.startswith(("nn.functional.", "nn.init.", "nn.utils.")):
            continue  # their defaults are those of the layers, or of PyTorch's functions
        columns = arguments(mine, theirs)
        if any(columns):
            cells = [", ".join(f"{k}={_shown(v)}" for k, v in each.items()) for each in columns]
            lines.append(f"| `{name}` | {' | '.join(cell and f'`{cell}`' for cell in cells)} |")
    lines += ["", "| layer | tensors | needle | PyTorch |", "|---|---|---|---|"]
    ndl.manual_seed(0)
    torch.manual_seed(0)
    for name, args, options in LAYERS:
        mine, theirs = (initial(each, name, args, options, 4_000) for each in (nn, torch.nn))
        rows: dict[tuple[str, str], list[str]] = {}
        for key, values in mine.items():
            rows.setdefault((described(values), described(theirs[key])), []).append(f"`{key}`")
        given = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in options.items())])
        for (ours, others), keys in rows.items():
            lines.append(f"| `{name}({given})` | {', '.join(keys)} | {ours} | {others} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"replace the tables in {PAGE.name}")
    if not parser.parse_args(argv).write:
        sys.stdout.write(tables())
        return 0
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
