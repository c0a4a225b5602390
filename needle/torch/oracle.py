"""Compare a loaded module with PyTorch, on the example inputs and at other sizes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..autograd.tensor import Tensor
from ..common.state import no_grad
from ..errors import DimError, ModelError, UnsupportedError
from ..sizes.extents import at_sizes
from ..testing import difference
from .arrays import array_of
from .attributes import put_back
from .complexes import OF_PARTS, TO_PARTS, Complex
from .dims import Asked
from .execute import Run, convert
from .model import TorchModel
from .program import Node, refs
from .refusals import first_line
from .silence import no_warnings
from .structure import Flat

# Tolerances relative to a tensor's largest element, for the rounding of a whole network.
_CLOSE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 8e-2}

# Operators whose results PyTorch does not fully define: bases of vectors, the order of equal
# elements.
_DECOMPOSING = frozenset(
    f"aten.{name}" for name in "linalg_eigh _linalg_eigh linalg_svd _linalg_svd linalg_qr".split()
)
_PLACING = frozenset(
    f"aten.{name}" for name in "kthvalue median nanmedian mode topk sort argsort".split()
)

# Operators whose results have no defined values.
_UNSET = frozenset(
    f"aten.{name}"
    for name in "empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)


def check(model: TorchModel, flat: Flat, functional: Any, asked: Asked) -> None:
    """Compare a `model` with PyTorch. Raises ModelError, which names the first node whose result
    differs from PyTorch's, and DimError if, at some sizes of the dims, the PyTorch model computes
    something other than its exported program.

    `flat` and `functional` are PyTorch's model and program. The module runs on the example inputs
    and, if `asked` has dims, on inputs of the dims' least and largest sizes.
    """
    dims = asked.dims
    ends = [{dim.name: getattr(dim, end) for dim in dims} for end in ("min", "max")]
    for sizes in [{}, *(ends if dims else [])]:
        inputs = asked.resized(sizes) if sizes else [value for _, value in flat.tensors]
        wanted = of_pytorch(flat, inputs, model.written, sizes)
        with no_grad():
            outputs, written = model.functional([array_of(each) for each in inputs])
        found = [each.numpy() for each in (*outputs, *written)]
        compare(model, functional, inputs, found, wanted, sizes)


def compare(
    model: TorchModel,
    functional: Any,
    inputs: Sequence[Any],
    found: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    sizes: Mapping[str, int],
) -> None:
    """Compare the values `found`, the results of a `model` for these `inputs` followed by the
    values that it wrote, with PyTorch's values `wanted`. `functional` is PyTorch's program, `sizes`
    are the sizes of dims in the inputs. Raises the errors of `check`."""
    if are_close(found, wanted):
        return
    results = name_difference(model, functional, inputs)
    if sizes and not are_close(results, wanted):
        raise DimError(
            f"dims: at {described(sizes)} the model computes something other than its "
            "exported program: load it for that size separately"
        )


def described(sizes: Mapping[str, int]) -> str:
    """Return `sizes` in words: "n = 1, m = 2"."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def of_pytorch(
    flat: Flat, inputs: Sequence[Any], written: Sequence[str], sizes: Mapping[str, int]
) -> list[np.ndarray]:
    """Return PyTorch's results for these `inputs`, then the values of the `written` parameters and
    buffers. The model of `flat` runs on copies. Raises ModelError if it fails; the message names
    the `sizes`."""
    import torch

    state = {**dict(flat.module.named_parameters()), **dict(flat.module.named_buffers())}
    copies = {name: each.detach().clone() for name, each in state.items()}
    arguments = tuple(each.detach().clone() for each in inputs)
    try:
        with (
            no_warnings(),  # the model has run on the example already
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            put_back(flat.module),
        ):
            result = torch.func.functional_call(flat.module, copies, arguments)
    except Exception as error:  # the model's own code may raise anything
        where = f"inputs with {described(sizes)}, which dims allow" if sizes else "these inputs"
        raise ModelError(
            f"{type(flat.model).__name__}: PyTorch itself does not run it on {where} "
            f"({first_line(error)})"
        ) from error
    leaves = [each for each in result if isinstance(each, torch.Tensor)]
    return [array_of(each) for each in (*leaves, *(copies[name] for name in written))]


def run_program(functional: Any, inputs: Sequence[Any]) -> tuple[dict[Any, Any], list[np.ndarray]]:
    """Run a program in PyTorch. Return the values of its nodes, and its results and written values
    in the order of `of_pytorch`."""
    import torch

    signature, arguments, given = functional.graph_signature, [], iter(inputs)
    for spec in signature.input_specs:
        if spec.target is None:
            arguments.append(next(given).detach().clone())
        else:
            held = functional.state_dict.get(spec.target)
            arguments.append(functional.constants[spec.target] if held is None else held)
    interpreter = torch.fx.Interpreter(functional.graph_module, garbage_collect_values=False)
    with torch.no_grad():
        results = interpreter.run(*arguments)
    of_kind: dict[bool, list[Any]] = {True: [], False: []}  # whether they are written
    for spec, value in zip(signature.output_specs, results, strict=True):
        if isinstance(value, torch.Tensor):
            of_kind[spec.target is not None].append(array_of(value))
    return interpreter.env, [*of_kind[False], *of_kind[True]]


def are_close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> bool:
    """Return whether the arrays `found` equal `wanted` up to the rounding of a network's
    operations."""
    return len(found) == len(wanted) and all(map(is_close, found, wanted))


def is_close(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Return whether the array `found` equals `wanted` up to the rounding of a network's
    operations."""
    if found is None or wanted is None:
        return False
    return difference(found, wanted, scale=1e-30, rtol=_CLOSE.get(found.dtype.name)) is None


def name_difference(model: TorchModel, functional: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Compare a `model` with PyTorch's program `functional` node by node, each on PyTorch's own
    values for `inputs`. Raises ModelError, which names the first node whose result differs. If no
    single node differs, the results differ by accumulated rounding or by the choice among equal
    elements; the latter gives a warning. Return the program's results in PyTorch, in the order of
    `of_pytorch`."""
    env, results = run_program(functional, inputs)
    values = {node.name: _value(each) for node, each in env.items()}
    sizes = model.program.sizes([tuple(each.shape) for each in inputs])
    tied = []
    theirs = {node.name: node for node in functional.graph.nodes}
    for node in model.program.nodes:
        call = at_sizes(node, sizes) if sizes else node
        what = _difference(call, values, model)
        if what is not None and node.name in theirs:
            exact = _in_float64(theirs[node.name], env)
            if exact is not None and _difference(call, values | {node.name: exact}, model) is None:
                continue  # PyTorch's own rounding: it stores positions in half precision
        if what is not None:
            kind = node.operator.rpartition(".")[0]
            if kind in _UNSET:
                continue
            if kind in _PLACING and _places_equals(call, values, model):
                tied.append(f"{node}")
                continue
            if kind in _DECOMPOSING:
                raise UnsupportedError(
                    f"{node}: needle's result differs from PyTorch's (the sign of each "
                    f"vector is arbitrary, and so is the basis for vectors of equal values): {what}"
                )
            raise ModelError(f"{node}: needle's result differs from PyTorch's: {what}")
    if tied:
        warnings.warn(
            f"{tied[0]}: among equal elements, needle and PyTorch select different ones; "
            "PyTorch does not document its choice, so results that depend on it differ",
            stacklevel=5,
        )
    return results


def _places_equals(node: Node, values: Mapping[str, Any], model: TorchModel) -> bool:
    """Return whether a node's results differ from PyTorch's only in the positions of equal
    elements."""
    run = Run(model.program, {n: _tensors(v) for n, v in values.items() if v is not None})
    with no_grad():
        made = convert(node, run.value(node.args))
    if not isinstance(made, tuple):
        return False
    return is_close(_array(made[0]), values[node.name][0])


def _in_float64(node: Any, env: Mapping[Any, Any]) -> Any:
    """Compute a node in PyTorch in float64, then round the results. Return None if PyTorch
    cannot."""
    import torch

    def widened(value: Any) -> Any:
        return (
            value.double()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
        )

    try:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: widened(env[n]))
        with torch.no_grad():
            found = node.target(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        return None
    return torch.utils._pytree.tree_map(
        lambda new, old: _value(new.to(old.dtype) if isinstance(new, torch.Tensor) else new),
        found,
        env[node],
    )


def _value(value: Any) -> Any:
    import torch

    if isinstance(value, (tuple, list)):
        return tuple(map(_value, value))
    if not isinstance(value, torch.Tensor):
        return value
    found = array_of(value)
    return (
        Complex(*np.moveaxis(found, -1, 0)) if found is not None and value.is_complex() else found
    )


def _difference(node: Node, values: Mapping[str, Any], model: TorchModel) -> str | None:
    if node.operator in (OF_PARTS, TO_PARTS):
        return None  # PyTorch has no such node
    known = ((name, values.get(name)) for name in refs(node.args))
    run = Run(model.program, {n: _tensors(v) for n, v in known if v is not None})
    try:
        with no_grad():
            made = convert(node, run.value(node.args))
    except KeyError:
        return None
    made, wanted = (x if isinstance(x, tuple) else (x,) for x in (made, values[node.name]))
    for index, (a, b) in enumerate(zip(made, wanted, strict=False)):
        if isinstance(a, Complex) and isinstance(b, Complex):
            a, b = (np.stack([_array(part) for part in each.parts], -1) for each in (a, b))
        if a is None or not isinstance(b, np.ndarray):
            continue
        found = _array(a)
        if not is_close(found, b):
            return f"result {index} is {_excerpt(found)}, and PyTorch's {_excerpt(b)}"
    return None


def _array(value: Any) -> Any:
    return value.numpy() if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, Complex):
        return Complex(*map(_tensors, value.parts))
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    return Tensor(value, requires_grad=False) if isinstance(value, np.ndarray) else value


def _excerpt(array: np.ndarray) -> str:
    shown = ", ".join(f"{x}" for x in array.reshape(-1)[:4])
    return f"{array.dtype}{list(array.shape)} [{shown}{', ...' if array.size > 4 else ''}]"
