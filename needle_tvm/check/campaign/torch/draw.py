"""A `torch.nn` module under construction, as source text that runs by itself.

`recipes` chooses what to add. PyTorch computes the values while a module is drawn, so a step is
drawn again if PyTorch refuses it or its result is out of range.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

_HEAD = """\
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from math import inf, nan


def array(seed, shape, dtype, low=-2.0, high=2.0, special=False):
    rng = np.random.default_rng(seed)
    if dtype == torch.bool:
        return torch.from_numpy(np.asarray(rng.random(shape) < 0.5))
    if not dtype.is_floating_point:
        return torch.from_numpy(np.asarray(rng.integers(low, high, shape))).to(dtype)
    drawn = rng.uniform(low, high, shape)
    if special:
        numbers = np.resize([nan, inf, -inf, -0.0, 0.0], shape)
        drawn = np.where(rng.random(shape) < 0.2, numbers, drawn)
    return torch.from_numpy(np.asarray(drawn)).to(dtype)
"""

# The scales, shifts and statistics of norms start as ones and zeros; make them random numbers.
_TAIL = """
with torch.no_grad():
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.dim() == 1 and tensor.is_floating_point():
            tensor.uniform_(0.5 if name.endswith("running_var") else -0.7, 1.5)
"""

_NAME = re.compile(r"\b[xpv]\d+\b|\bself\.m\d+\b")


@dataclasses.dataclass(frozen=True)
class Step:
    """The values of an expression that reads earlier values and members (`self.m0`)."""

    names: tuple[str, ...]
    expression: str


@dataclasses.dataclass(frozen=True)
class TorchProgram:
    """Inputs and members by name, each an expression; then steps; then the returned expression."""

    seed: int
    inputs: tuple[tuple[str, str], ...]
    members: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    returned: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TorchProgram:
        fields = json.loads(text)
        return cls(
            fields["seed"],
            tuple((name, value) for name, value in fields["inputs"]),
            tuple((name, value) for name, value in fields["members"]),
            tuple(Step(tuple(s["names"]), s["expression"]) for s in fields["steps"]),
            fields["returned"],
        )

    def source(self) -> str:
        """Return the source of a module that defines `model` and `inputs`."""
        lines = [_HEAD, "", "class Model(nn.Module):"]
        if self.members:
            lines += ["    def __init__(self):", "        super().__init__()"]
            lines += [f"        {name} = {value}" for name, value in self.members] + [""]
        lines.append(f"    def forward({', '.join(['self', *(n for n, _ in self.inputs)])}):")
        lines += [f"        {', '.join(s.names)} = {s.expression}" for s in self.steps]
        lines += [f"        return {self.returned}", ""]
        lines += ["", f"torch.manual_seed({self.seed})", "model = Model().eval()", _TAIL]
        lines += ["inputs = (", *(f"    {value}," for _, value in self.inputs), ")"]
        return "\n".join(lines) + "\n"

    def load(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the model and its inputs, as defined by the source."""
        namespace: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.source(), "<program>", "exec"), namespace)
        return namespace["model"], namespace["inputs"]

    def operations(self) -> list[str]:
        """Return the names of everything that the program calls."""
        texts = [*(s.expression for s in self.steps), *(value for _, value in self.members)]
        return sorted(
            {name for text in texts for name in re.findall(r"(?!m\d)\b([A-Za-z_]\w*)\(", text)}
        )

    def pruned(self, returned: str) -> TorchProgram:
        """Return the program that returns `returned`, without the parts it does not need."""
        needed, steps = set(_NAME.findall(returned)), []
        for step in reversed(self.steps):
            if needed & set(step.names):
                needed |= set(_NAME.findall(step.expression))
                steps.append(step)
        inputs = [each for each in self.inputs if each[0] in needed]
        return TorchProgram(
            self.seed,
            tuple(inputs or self.inputs[:1]),
            tuple(each for each in self.members if each[0] in needed),
            tuple(reversed(steps)),
            returned,
        )


@dataclasses.dataclass
class Made:
    name: str
    tensor: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        return str(self.tensor.dtype)

    @property
    def floating(self) -> bool:
        return bool(self.tensor.dtype.is_floating_point)

    def __str__(self) -> str:
        return self.name


_EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 8, 11, 13, 16, 17, 24, 31, 32, 48, 64)
_MOST_ELEMENTS = 1 << 12
_LARGE_EXTENTS = (1, 2, 3, 5, 16, 127, 128, 257, 512, 1000, 4099, 20000)  # for a few programs
_MOST_OF_LARGE = 1 << 17


class Drawer:
    """A program under construction."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(f"torch {seed}")
        self.values: list[Made] = []
        self.inputs: list[tuple[str, str]] = []
        self.members: list[tuple[str, str]] = []
        self.steps: list[Step] = []
        dtypes = ["float32", "float64", "float16", "bfloat16"]
        self.dtype = "torch." + self.rng.choices(dtypes, [70, 12, 9, 9])[0]
        self.special, self.empty = self.rng.random() < 0.08, self.rng.random() < 0.03
        self.set_size(is_large=self.rng.random() < 0.06)
        self._numbers = 0
        self._namespace: dict[str, Any] = {"__name__": "draw"}
        exec(_HEAD + "class Self(nn.Module): pass\nself = Self()\n", self._namespace)
        self._torch = self._namespace["torch"]

    def set_size(self, is_large: bool) -> None:
        self._extents = _LARGE_EXTENTS if is_large else _EXTENTS
        self._most = _MOST_OF_LARGE if is_large else _MOST_ELEMENTS

    def program(self, recipes: Recipes) -> TorchProgram:
        rng = self.rng
        with self._torch.random.fork_rng(), self._torch.no_grad():
            self._torch.manual_seed(self.seed)
            for _ in range(rng.choice([1, 1, 2, 3])):
                self.input(self.shape())
            wanted = rng.choice([2, 3, 4, 6, 8, 12])
            for _ in range(8 * wanted):
                if len(self.steps) >= wanted:
                    break
                kinds, weights = zip(*recipes, strict=True)
                rng.choice(rng.choices(kinds, weights)[0])(self)
        returned = self._returned()
        whole = TorchProgram(
            self.seed, tuple(self.inputs), tuple(self.members), tuple(self.steps), returned
        )
        return whole.pruned(returned)

    def _returned(self) -> str:
        """Return the returned expression: mostly unread values, sometimes nested or with a leaf."""
        rng = self.rng
        read = {name for step in self.steps for name in _NAME.findall(step.expression)}
        made = [name for step in self.steps for name in step.names]
        known = {value.name for value in self.values}
        sinks = [name for name in made if name in known and name not in read]
        names = sinks[: rng.randint(1, 5)] or [self.values[-1].name]
        if rng.random() < 0.2:
            names.append(rng.choice(self.values).name)
        parameters = [n for n, text in self.members if text.startswith("nn.Parameter")]
        if parameters and rng.random() < 0.1:
            names.append(rng.choice(parameters))
        rng.shuffle(names)
        if len(names) > 1 and rng.random() < 0.3:
            names[:2] = [f"({names[0]}, [{names[1]}])"]
        if rng.random() < 0.1:
            return "{" + ", ".join(f"'k{i}': {name}" for i, name in enumerate(names)) + "}"
        return (
            ", ".join(names) if len(names) == 1 or rng.random() < 0.8 else f"[{', '.join(names)}]"
        )

    # Leaves

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers - 1

    def extent(self) -> int:
        if self.empty and self.rng.random() < 0.15:
            return 0
        return self.rng.choice(self._extents)

    def shape(self, rank: int | None = None) -> list[int]:
        rank = self.rng.choice([0, 1, 2, 2, 3, 3, 4]) if rank is None else rank
        shape = [self.extent() for _ in range(rank)]
        while rank and size_of(shape) > self._most:
            axis = shape.index(max(shape))
            shape[axis] = max(1, shape[axis] // 2)
        return shape

    def array(self, shape: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> str:
        special = ", special=True" if self.special and self.rng.random() < 0.5 else ""
        limits = f", {low}, {high}" if (low, high) != (-2.0, 2.0) else ""
        return f"array({self._number()}, {tuple(shape)}, {dtype}{limits}{special})"

    def input(
        self, shape: Sequence[int], dtype: str | None = None, low: float = -2.0, high: float = 2.0
    ) -> Made:
        name, text = f"x{self._number()}", self.array(shape, dtype or self.dtype, low, high)
        made = Made(name, self._evaluated(text))
        self._namespace[name] = made.tensor
        self.inputs.append((name, text))
        self.values.append(made)
        return made

    def parameter(self, shape: Sequence[int], dtype: str | None = None) -> Made:
        """Add a parameter or a buffer."""
        text = self.array(shape, dtype or self.dtype)
        if self.rng.random() < 0.8:
            member = self.member(f"nn.Parameter({text})")
        else:
            member = self.member(f"nn.Buffer({text})")
        return Made(member, self._evaluated(member))

    def index(self, extent: int, shape: Sequence[int]) -> Made:
        """Add an input of positions along an axis of this extent, some of them negative."""
        low = -extent if self.rng.random() < 0.5 else 0
        return self.input(
            shape, self.rng.choice(["torch.int64"] * 4 + ["torch.int32"]), low, extent
        )

    def member(self, text: str) -> str:
        name = f"self.m{self._number()}"
        self.members.append((name, text))
        exec(f"{name} = {text}", self._namespace)
        return name

    def module(self, text: str, dtype: str | None = None) -> str:
        """Return a submodule in eval mode, possibly an existing one with the same text."""
        dtype = dtype or self.dtype
        text = text if dtype == "torch.float32" else f"{text}.to({dtype})"
        same = [name for name, other in self.members if other == text]
        if same and self.rng.random() < 0.7:
            return self.rng.choice(same)
        name = self.member(text)
        exec(f"{name}.eval()", self._namespace)
        return name

    # Values so far

    def pick(self, fits: Callable[[Made], bool]) -> Made | None:
        """Return one of the values that fit, the last one most often."""
        known = [value for value in self.values if fits(value)]
        if not known:
            return None
        return known[-1] if self.rng.random() < 0.6 else self.rng.choice(known)

    def any(self, *ranks: int) -> Made:
        """Return a value of any dtype."""
        found = self.pick(lambda v: not ranks or len(v.shape) in ranks)
        return found or self.input(self.shape(self.rng.choice(ranks) if ranks else None))

    def floating(self, *ranks: int) -> Made:
        """Return a value of the program's floating-point dtype and one of these ranks."""
        found = self.pick(lambda v: v.dtype == self.dtype and (not ranks or len(v.shape) in ranks))
        return found or self.input(self.shape(self.rng.choice(ranks) if ranks else None))

    def axis(self, value: Made) -> int:
        rank = len(value.shape)
        return self.rng.randint(-rank, rank - 1)

    # Steps

    def step(self, text: str, results: int = 1) -> list[Made] | None:
        """Add a step; return its values, or None, without any change, if it is refused."""
        try:
            found = self._evaluated(text)
        except Exception:  # PyTorch may raise anything; the step is drawn again
            return None
        tensors = list(found) if results > 1 else [found]
        if len(tensors) != results or not all(map(self._taken, tensors)):
            return None
        made = [Made(f"v{self._number()}", tensor) for tensor in tensors]
        self._namespace |= {value.name: value.tensor for value in made}
        self.values += made
        self.steps.append(Step(tuple(value.name for value in made), text))
        return made

    def _evaluated(self, text: str) -> Any:
        return eval(text, self._namespace)

    def _taken(self, tensor: Any) -> bool:
        if not isinstance(tensor, self._torch.Tensor) or tensor.is_complex():
            return False
        if tensor.numel() > self._most or (tensor.numel() == 0 and not self.empty):
            return False
        if not tensor.is_floating_point() or tensor.numel() == 0:
            return True
        most = 1e2 if tensor.dtype.itemsize == 2 else 1e4
        return self.special or bool((tensor.abs() < most).all())


def size_of(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


Recipe = Callable[[Drawer], None]
Recipes = Sequence[tuple[Sequence[Recipe], int]]  # groups of similar recipes, and their weights
