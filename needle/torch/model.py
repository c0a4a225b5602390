"""`TorchModel` is a PyTorch program as a needle Module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..backend_ndarray import NDArray
from ..common import tree as trees
from ..common.state import state
from ..conversion.values import tensor
from ..errors import ModelError, UnsupportedError
from ..nn.layout import IncompatibleKeys
from ..nn.module import Module
from ..nn.parameter import Parameter
from .execute import Run
from .program import Program
from .structure import flattened


def _check_free(holder: Module, name: str) -> None:
    if name in vars(TorchModel) and isinstance(holder, TorchModel):
        raise UnsupportedError(f"the model has a part {name!r}, a name that needle's module uses")


class Part(Module):
    """A module of the PyTorch model: it holds parameters, buffers and other parts."""


class TorchModel(Part):
    """A PyTorch program as a needle Module, called with the arguments of the PyTorch model. It
    returns the structure that the PyTorch model returns, with needle Tensors for tensors and dicts
    for dataclasses.

    Parameters and floating-point buffers have the names and shapes of PyTorch's `state_dict`;
    integer buffers that the program does not write are constants. If the program writes to
    parameters or buffers, each call outside a trace writes to the module's copies.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, tuple[np.ndarray, str]],
        arguments: Sequence[Mapping[str, Any]],
        output_tree: Any,
    ) -> None:
        super().__init__()
        self._program, self._arguments, self._output_tree = program, list(arguments), output_tree
        made: dict[int, Tensor] = {}  # by the id of the array
        for name, (array, kind) in weights.items():
            if id(array) not in made:
                is_learned = kind == "parameter"
                made[id(array)] = (
                    Parameter(array) if is_learned else Tensor(array, requires_grad=False)
                )
            self._put(name, made[id(array)], kind == "unsaved")
        self.call_signature = _signature(self._arguments)
        self.eval()

    def load_state_dict(
        self, values: Mapping[str, Any], strict: bool = True, layout: str = "needle"
    ) -> IncompatibleKeys:
        """Load `values` with the `strict` and `layout` of `Module.load_state_dict`. A whole PyTorch
        `state_dict` is accepted: tensors that the program does not read are ignored. Tensors that
        became constants of the program must keep their values. Raises ValueError if they differ."""
        if not isinstance(values, Mapping):
            return super().load_state_dict(values, strict, layout)
        for name, constant in self._program.fixed.items():
            if name in values and constant is not None:
                given = NDArray(values[name]).numpy()
                if given.shape != constant.shape or not np.array_equal(given, constant):
                    self._refuse_state(f"{name!r} is a constant of the program; its values differ")
        held = {n: each for n, each in values.items() if n not in self._program.fixed}
        return super().load_state_dict(held, strict, layout)

    def _put(self, name: str, value: Tensor, is_unsaved: bool) -> None:
        """Store a weight under its dotted name."""
        *path, last = name.split(".")
        holder: Module = self
        for part in path:
            if not isinstance(vars(holder).get(part), Module):
                _check_free(holder, part)
                setattr(holder, part, Part())
            holder = vars(holder)[part]
        _check_free(holder, last)
        setattr(holder, last, value)
        if is_unsaved:
            holder._unsaved = holder._unsaved | {last}

    def _place(self, name: str) -> tuple[Module, str]:
        """Return the module that holds a weight, and the weight's name in that module."""
        *path, last = name.split(".")
        return functools.reduce(lambda holder, part: vars(holder)[part], path, self), last

    @property
    def arguments(self) -> list[Mapping[str, Any]]:
        """The arguments of a call, as `structure.Flat` describes them."""
        return self._arguments

    @property
    def output_tree(self) -> Any:
        """The structure of the results."""
        return self._output_tree

    @property
    def program(self) -> Program:
        """The program that calls run."""
        return self._program

    @property
    def written(self) -> list[str]:
        """The names of the parameters and buffers that each call writes."""
        return [write.target for write in self._program.writes]

    def weight_named(self, name: str) -> Tensor:
        """Return the parameter or buffer called `name`."""
        holder, last = self._place(name)
        found: Tensor = vars(holder)[last]
        return found

    def is_unsaved(self, name: str) -> bool:
        """Return whether the weight called `name` is missing from `state_dict`."""
        holder, last = self._place(name)
        return last in holder._unsaved

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the PyTorch model's results for these arguments."""
        inputs = flattened(self._arguments, args, kwargs)
        outputs, written = self.functional(inputs)
        for name, value in zip(self.written, written, strict=True):
            holder, last = self._place(name)
            if state.trace is not None:  # the trace refuses the write and names the weight
                setattr(holder, last, value)
            vars(holder)[last].data = value.detach()
        return trees.unflatten(_as_dicts(self._output_tree), iter(outputs))

    def functional(
        self, inputs: Sequence[Any], weights: Mapping[str, Tensor] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the output tensors, and the new values of the `written` weights, for a flat list
        of `inputs`. `weights` replace the module's own, by name."""
        arguments = [x if isinstance(x, Tensor) else Tensor(x, requires_grad=False) for x in inputs]
        program = self._program
        if len(arguments) != len(program.inputs):
            raise ModelError(f"expected {len(program.inputs)} tensors, got {len(arguments)}")
        values: dict[str, Any] = {
            name: x for (name, _), x in zip(program.inputs, arguments, strict=True)
        }
        for name, target in program.weights.items():
            values[name] = (weights or {}).get(target)
            if values[name] is None:
                values[name] = self.weight_named(target)
        outputs, written = Run(program, values).results([x.shape for x in arguments])
        tensors = [tensor(x) for x in outputs if isinstance(x, (Tensor, np.ndarray))]
        return tensors, [tensor(x) for x in written]


def _signature(arguments: Sequence[Mapping[str, Any]]) -> inspect.Signature:
    parameters = []
    for each in arguments:
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if each.get("keyword"):
            kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(_Argument(each["name"], kind))
    return inspect.Signature(parameters)


class _Argument(inspect.Parameter):
    """A signature parameter whose name need not be an identifier."""

    __slots__ = ("_given",)

    def __init__(self, name: str, kind: Any) -> None:
        super().__init__("argument", kind)
        self._given = name

    @property
    def name(self) -> str:
        """The argument's name in PyTorch."""
        return self._given


def _as_dicts(tree: Any) -> Any:
    """Return a tree with only the kinds that `needle.common.tree` has: objects become dicts of
    their parts."""
    if tree == trees.LEAF:
        return tree
    ((kind, parts),) = tree.items()
    if kind == "static":
        return tree
    if kind in ("tuple", "list"):
        return {kind: [_as_dicts(part) for part in parts]}
    pairs: Iterator[tuple[Any, Any]] = iter(parts.items() if kind != "numbered" else parts)
    return {"dict": {key: _as_dicts(part) for key, part in pairs}}
