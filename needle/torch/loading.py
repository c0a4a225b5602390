"""`load` converts a PyTorch model to a needle Module that computes the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import UnsupportedError
from . import oracle
from .arrays import array_of, is_held
from .attributes import check_settled, put_back
from .dims import Asked, asked
from .exporting import exported_program
from .model import TorchModel
from .model_forms import module_of
from .program import Program
from .refusals import not_taken
from .shared_state import check_apart
from .size_one_check import check_ones
from .structure import Flat


def load(
    model: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    dims: Mapping[Any, Any] | Sequence[Any] | None = None,
    trusted: bool = False,
    check: bool = True,
) -> TorchModel:
    """Convert a PyTorch model to a needle Module for inputs like `inputs`.

    `model` is a `torch.nn.Module`, an `ExportedProgram` of `torch.export`, or the path of a file
    (`.pt2`) that `torch.export.save` wrote. Reading a file runs no code from it; a file that cannot
    be read without running code is refused unless `trusted`. If no inputs are given, the example
    inputs of the export are used.

    `inputs` are the model's positional arguments and `kwargs` its keyword arguments: tensors;
    tuples, lists, dicts and dataclasses of tensors; and objects that hold tensors. Numbers, strings
    and None are fixed. `dims` leaves the size of some input axes open: for example,
    {"x": {0: needle.Dim("n", max=64)}}, or the form of `torch.export`'s `dynamic_shapes`. The
    module then accepts any size within the dims' bounds.

    The module behaves as the model does in its current mode: call `model.eval()` first for
    inference. In training mode, batch norm uses each call's statistics and updates its running
    statistics; dropout is refused, because it draws random numbers. If `forward` writes to
    parameters or buffers, each call of the module writes to the module's copies. A model whose
    `forward` changes other attributes from call to call is refused; the error names the attribute.

    The weights are copied. They keep PyTorch's shapes and the names of its `state_dict`. Unless
    `check` is False, the module and the PyTorch model run on the inputs (with dims, at the least
    and largest sizes) and their results are compared; a ModelError names the first node whose
    result differs.

    Raises ImportError without PyTorch; ModelError if PyTorch itself cannot run the model on these
    inputs, or if the file holds no model; UnsupportedError if the model cannot be exported, uses an
    operator that has no converter, draws random numbers, or has shapes that depend on values;
    DimError for dims that the model cannot leave open.

    >>> import torch  # doctest: +SKIP
    >>> model = needle.torch.load(torch.nn.Linear(8, 4).eval(), torch.randn(3, 8))  # doctest: +SKIP
    """
    found = loaded(model, inputs, kwargs or {}, dims, trusted)
    if check:
        oracle.check(found.module, found.flat, found.functional, found.asked)
    return found.module


@dataclass(frozen=True)
class Loaded:
    """A needle module and its sources: the PyTorch model as a function of a list of tensors, the
    model's functional program, and the extents of the inputs."""

    module: TorchModel
    flat: Flat
    functional: Any
    asked: Asked


def loaded(
    model: Any,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    dims: Mapping[Any, Any] | Sequence[Any] | None = None,
    trusted: bool = False,
) -> Loaded:
    """Convert a model as `load` does, without the comparison with PyTorch. Raises the errors of
    `load`."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ImportError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    module, args, named = module_of(model, inputs, kwargs, trusted)
    flat = Flat(module, args, named)
    check_tensors(module, flat.placed)
    request = asked(flat.names, flat.values, dims)
    request.example_sizes()  # raises for an example that does not fit
    tensors = tuple(each for _, each in flat.tensors)
    with put_back(flat.module) as attributes:
        functional, program = exported_program(flat.module, tensors, request)
        is_changed = bool(attributes.changed())
    if is_changed:
        check_settled(flat, tensors)
    # Two dims may have become one dim, and a dim may have become a number.
    if request.dims:
        request = replace(request, shapes=[result.shape for _, result in program.inputs])
        check_ones(flat, functional, [write.target for write in program.writes], request)
    for write in program.writes:
        if write.kind == "input":
            raise not_taken(
                flat.module,
                f"it writes to its input {write.target!r}: return the new value instead",
            )
    check_apart(flat.module, [write.target for write in program.writes])
    weights = _weights(flat.model, functional, program)
    converted = TorchModel(program, weights, flat.arguments, flat.output_tree)
    return Loaded(converted, flat, functional, request)


def _weights(model: Any, functional: Any, program: Program) -> dict[str, tuple[Any, str]]:
    """Return the arrays of a program's weights and their kinds ("parameter", "buffer", "unsaved"),
    by name, in the model's order. A weight with several names in the model is one array under each
    name."""
    signature = functional.graph_signature
    kinds = dict.fromkeys(signature.inputs_to_parameters.values(), "parameter")
    weights = {}
    for target in program.weights.values():
        value = functional.state_dict.get(target)
        kind = kinds.get(target, "buffer")
        if value is None:
            value, kind = functional.constants[target], "unsaved"
        is_floating = value.is_floating_point() or value.is_complex()
        if kind == "parameter" and not is_floating:
            kind = "buffer"
        weights[target] = (array_of(value), kind)
    places = dict(model.named_parameters(remove_duplicate=False))
    places |= model.named_buffers(remove_duplicate=False)
    known = {id(places[name]): weight for name, weight in weights.items() if name in places}
    order = dict.fromkeys([*model.state_dict(), *places])
    named = {name: known[id(places[name])] for name in order if id(places.get(name)) in known}
    return named | {name: weight for name, weight in weights.items() if name not in named}


def check_tensors(model: Any, inputs: Sequence[tuple[str, Any]]) -> None:
    """Raise UnsupportedError for an input (name, tensor) or a weight that needle cannot hold."""
    parameters = [(f"parameter {name!r}", each) for name, each in model.named_parameters()]
    buffers = [(f"buffer {name!r}", each) for name, each in model.named_buffers()]
    for name, tensor in (*inputs, *parameters, *buffers):
        reason = _unreadable(tensor)
        if reason is not None:
            raise UnsupportedError(f"{name} is {reason}")


def _unreadable(tensor: Any) -> str | None:
    """Return the reason why needle cannot hold a tensor, or None if it can."""
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        return "not initialized: call the model once first"
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        return f"a tensor that is {kind}, but only dense tensors are supported"
    if tensor.is_meta:
        return "a tensor on the device 'meta', which holds no values"
    if not is_held(tensor.dtype):
        return f"of {tensor.dtype}, which needle does not have"
    return None
