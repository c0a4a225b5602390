"""What PyTorch gives for an exported program, and what errors may have travelled to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.testing import tolerance
from needle_tvm.artifact.tolerance import estimated_tolerances
from needle_tvm.errors import TranslationError
from needle_tvm.frontend import bounds
from needle_tvm.frontend.torch import graph as torch_graph
from needle_tvm.frontend.torch.arrays import Array, array, tensor
from needle_tvm.target.precision import FLOAT32

if TYPE_CHECKING:
    from needle_tvm.frontend.torch.taken import Taken

_RUNS = 12  # disturbed evaluations of the whole program
_SUMMING = tuple(
    f"aten.{name}"
    for name in "addmm baddbmm bmm convolution cumsum dot linear matmul mean mm mv sum".split()
)
_CANCELLED = 0.1  # of the largest of a tensor: the terms of an element that cancelled

# Whether what counts for nothing, a zero between the pixels or a weight of 0, meets an infinite
# element is a matter of how these are computed: with one, their results tell nothing.
_INTERPOLATING = ("aten.convolution", "aten.grid_sampler", "aten.upsample")

# Which of equals are taken, or come first, PyTorch leaves open.
_ORDERING = ("aten.topk", "aten.sort.default")

# These take a mean from their elements, or from what they multiply these by: the two may cancel.
_NORMS = ("aten.native_group_norm", "aten.native_layer_norm", "aten._native_batch_norm_legit")

_SURE = 48  # of them before a difference counts: a tie is missed by one run in two


def of(taken: Taken) -> Callable[..., list[Array]]:
    """A function of inputs and weights by name that runs the exported program in PyTorch; it raises
    TranslationError where PyTorch does."""
    import torch

    # The model's owner may change its buffers later; in the code they are constants.
    exported = taken.exported
    constants = {name: tensor.detach().clone() for name, tensor in exported.named_buffers()}

    def run(inputs: Sequence[Array], params: Mapping[str, Array]) -> list[Array]:
        nested = _nested(taken, [tensor(array) for array in inputs])
        state = {name: tensor(array) for name, array in params.items()}
        with torch.no_grad():
            # Each name has its own tensor here, a tied one too: `set_params` has compared them.
            try:
                result = torch.func.functional_call(
                    exported.module(), {**constants, **state}, nested, tie_weights=False
                )
            except (RuntimeError, IndexError) as error:  # of an index that is out of range
                raise TranslationError(
                    f"PyTorch itself does not run the model on these inputs ({error})"
                ) from error
        leaves = torch.utils._pytree.tree_leaves(result)
        return [array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    return run


class Reference:
    """What values of the program are for its example, and which errors are no fault.

    Its operators run in PyTorch one by one, each result disturbed by what an implementation may be
    off by: as far as the results of such runs lie apart a right one may be off (`check.bounds`).
    Every other run computes in float64, for PyTorch's own results need not be the nearest: it
    rounds the coordinates of `grid_sample` to bfloat16, and its `gelu` of inf is NaN in vectors of
    float32. Whole numbers are taken to be exact. `precision` is what operands of products may be
    rounded to. The values are those of `nodes` of the functional program, by default of its
    outputs.
    """

    def __init__(
        self, taken: Taken, precision: str = FLOAT32, nodes: Sequence[Any] | None = None
    ) -> None:
        self._taken, self._precision = taken, precision
        self._nodes = torch_graph.outputs(taken.functional) if nodes is None else nodes
        self._exact = _run(taken, self._nodes)
        # What the model itself gives must be within the bounds as well.
        self._eager = of(taken)(taken.example, taken.params) if nodes is None else self._exact
        self._runs: list[list[Array]] = []
        # What PyTorch decomposes may multiply an infinite element by a weight of 0 where its own
        # kernel leaves it out: upsampling and `nn.Bilinear` do.
        given = [*taken.example, *taken.params.values()]
        self._finite = all(np.isfinite(bounds.widened(each)).all() for each in given)

    def difference(self, found: Sequence[Array]) -> str | None:
        """What is wrong with results, in words; None where they are as near as can be asked."""
        wrong = self.first_wrong(found)
        return None if wrong is None else f"output {wrong[0]}: {wrong[1]}"

    def first_wrong(self, found: Sequence[Array]) -> tuple[int, str] | None:
        """The number of the first wrong result, and what is wrong with it."""
        return None if self._wrong(found, _RUNS) is None else self._wrong(found, _SURE)

    def _wrong(self, found: Sequence[Array], runs: int) -> tuple[int, str] | None:
        while len(self._runs) < runs:
            interpreter = _disturbed(self._taken, self._precision, len(self._runs))
            self._runs.append(_run(self._taken, self._nodes, interpreter))
        for number, (value, eager, have) in enumerate(
            zip(self._exact, self._eager, found, strict=True)
        ):
            wanted = bounds.expected(value, [each[number] for each in self._runs])
            if not self._finite and bounds.is_float(value):
                wanted = bounds.agreed(wanted, eager)
            for whose, result in (("PyTorch's own, beside its operators': ", eager), ("", have)):
                what = wanted.difference(result)
                if result.dtype != value.dtype:
                    what = f"dtype {result.dtype}, expected {value.dtype}"
                if what is not None:
                    return number, whose + what
        return None


def _run(taken: Taken, nodes: Sequence[Any], interpreter: Any = None) -> list[Array]:
    """The values of nodes for the example; `interpreter` is a class like `torch.fx.Interpreter`."""
    import torch

    program, given = taken.functional, iter(map(tensor, taken.example))
    arguments = []
    for spec in program.graph_signature.input_specs:
        if spec.target in taken.params:
            arguments.append(tensor(taken.params[spec.target]))
        elif spec.target is None:
            arguments.append(next(given))
        else:
            held = program.state_dict.get(spec.target)
            arguments.append(program.constants[spec.target] if held is None else held)
    run = (interpreter or torch.fx.Interpreter)(program.graph_module, garbage_collect_values=False)
    with torch.no_grad():
        run.run(*arguments)
    return [array(run.env[node]) for node in nodes]


def _disturbed(taken: Taken, precision: str, seed: int) -> Any:
    """An interpreter that disturbs what each operator gives; with an odd seed it computes in
    float64 where the operator can."""
    import torch

    disturb = _disturbance(taken, precision, seed)
    generator = torch.Generator().manual_seed(seed)

    class Disturbed(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            name, operator = str(target), target
            if name.startswith(_NORMS):
                operator = _in_steps(target, disturb)
            elif name.startswith(_ORDERING):
                operator = _of_equals(target, generator)
            result = operator(*args, **kwargs)
            if seed % 2 == 1:
                result = _in_float64(operator, args, kwargs, result)
                if name.startswith(_INTERPOLATING) and not _are_finite(args):
                    drawn = torch.randint(len(bounds.ANYTHING), result.shape, generator=generator)
                    result = torch.tensor(bounds.ANYTHING, dtype=result.dtype)[drawn]
            return result

        def run_node(self, node: Any) -> Any:
            result = super().run_node(node)
            if node.op == "output":
                return result
            off = functools.partial(disturb, sums=str(node.target).startswith(_SUMMING))
            return torch.utils._pytree.tree_map(off, result)

    return Disturbed


def _in_steps(operator: Any, disturb: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that is computed of simpler ones, whose results are disturbed."""
    import torch
    from torch._decomp import decomposition_table

    class Steps(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, step: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = step(*args, **(kwargs or {}))
            return torch.utils._pytree.tree_map(functools.partial(disturb, sums=False), result)

    def run(*args: Any, **kwargs: Any) -> Any:
        with Steps():
            return decomposition_table[operator](*args, **kwargs)

    return run


def _of_equals(operator: Any, generator: Any) -> Callable[..., Any]:
    """An operator that orders elements along an axis, given those in another order: equal ones
    come from other places then."""
    import torch

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if x.dim() == 0:
            return operator(x, *args, **kwargs)
        axis = torch_graph.bound(operator, (x, *args), kwargs)["dim"]
        order = torch.randperm(x.shape[axis], generator=generator)
        values, places = operator(x.index_select(axis, order), *args, **kwargs)
        return values, order[places]

    return run


def _in_float64(operator: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> Any:
    """What an operator gives of its operands in float64, in the dtypes of `result`; the result
    itself where it takes no such operands."""
    import torch

    map_tensors = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor)
    args, kwargs = map_tensors(_widened, (args, kwargs))
    try:
        found = operator(*args, **kwargs)
    except (RuntimeError, TypeError):
        return result
    return torch.utils._pytree.tree_map(_as_before, found, result)


def _are_finite(args: Any) -> bool:
    import torch

    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    return all(bool(each.isfinite().all()) for each in tensors)


def _widened(value: Any) -> Any:
    return value.double() if value.is_floating_point() else value


def _as_before(value: Any, before: Any) -> Any:
    """A tensor in the dtype of another, where both hold floating-point numbers."""
    return value.to(before.dtype) if hasattr(value, "is_floating_point") else value


def _disturbance(taken: Taken, precision: str, seed: int) -> Callable[..., Any]:
    """A function that puts a floating-point tensor off by a little: each element by a part of
    itself, and where it `sums` terms, which may have cancelled, by a part of the largest."""
    import torch

    amplitudes: dict[Any, float] = {}
    generator = torch.Generator().manual_seed(seed)
    weights = taken.signature["params"]

    def amplitude(dtype: Any) -> float:
        if dtype not in amplitudes:
            name = str(dtype).partition(".")[2]
            spec = [{"shape": [1], "dtype": name}]
            narrow, full = (
                max(estimated_tolerances(spec, weights, each)) for each in (precision, FLOAT32)
            )
            amplitudes[dtype] = tolerance(name) / 4 + narrow - full
        return amplitudes[dtype]

    def disturbed(value: Any, sums: bool) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        wide = value.to(torch.float64)
        if bool((wide == wide.round()).all()):
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator, dtype=wide.dtype) * 2 - 1
        largest = wide.nan_to_num(0, 0, 0).abs().max() if sums else 0.0
        off = amplitude(value.dtype) * signs
        return (wide * (1 + off) + _CANCELLED * largest * off).to(value.dtype)

    return disturbed


def _nested(taken: Taken, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The model's arguments, of these tensors, in the containers that it was exported with."""
    import torch

    spec = taken.exported.call_spec.in_spec  # of positional arguments and those by name
    arguments: tuple[Any, ...] = torch.utils._pytree.tree_unflatten(tensors, spec)[0]
    return arguments
