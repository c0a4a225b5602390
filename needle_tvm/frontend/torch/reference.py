"""PyTorch's outputs of an exported program, and the errors that may propagate to them."""

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
_CANCELLED = 0.1  # size of terms that cancelled in an element, relative to the tensor's largest

# The algorithm decides whether a zero between the pixels, or a weight of 0, meets an infinite
# element. With such an element the results of these operators are not compared.
_INTERPOLATING = ("aten.convolution", "aten.grid_sampler", "aten.upsample")

# PyTorch leaves open which of several equal elements these take or put first.
_ORDERING = ("aten.topk", "aten.sort.default")

# These subtract a mean from their elements or from the factors of these: the two may cancel.
_NORMS = ("aten.native_group_norm", "aten.native_layer_norm", "aten._native_batch_norm_legit")

_SURE = 48  # runs before a difference counts: each misses a tie with probability 1/2


def of(taken: Taken) -> Callable[..., list[Array]]:
    """A function of inputs and weights by name that runs the exported program in PyTorch. It raises
    TranslationError if PyTorch refuses the inputs."""
    import torch

    # Buffers are constants of the code, while the model's owner may change them later.
    exported = taken.exported
    module = exported.module(check_guards=not taken.shapes.dims)  # they are for no size of 1
    constants = {name: tensor.detach().clone() for name, tensor in exported.named_buffers()}

    def run(inputs: Sequence[Array], params: Mapping[str, Array]) -> list[Array]:
        tensors = tuple(tensor(array) for array in inputs)
        state = {name: tensor(array) for name, array in params.items()}
        with torch.no_grad():
            # Tied parameters have separate tensors here; `set_params` has compared them.
            try:
                result = torch.func.functional_call(
                    module, {**constants, **state}, tensors, tie_weights=False
                )
            except (RuntimeError, IndexError) as error:  # for an index out of range
                raise TranslationError(
                    f"PyTorch itself does not run the model on these inputs ({error})"
                ) from error
        leaves = torch.utils._pytree.tree_leaves(result)
        return [array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    return run


class Reference:
    """Expected values of a program for given inputs, with the allowed error of each.

    The operators run in PyTorch one by one, and each result is disturbed by the error that an
    implementation may have. The spread of the results of such runs is the allowed error
    (`frontend.bounds`). Every other run computes in float64, because PyTorch's own results need not
    be the nearest: it rounds the coordinates of `grid_sample` to bfloat16, and its vectorised
    float32 `gelu` of inf is NaN. Whole numbers are taken to be exact. Operands of matmuls and
    convolutions may be rounded to `precision`. The values are those of `nodes` of the functional
    program, by default its outputs.
    """

    def __init__(
        self,
        taken: Taken,
        inputs: Sequence[Array],
        precision: str = FLOAT32,
        nodes: Sequence[Any] | None = None,
    ) -> None:
        self._taken, self._inputs, self._precision = taken, inputs, precision
        self._nodes = torch_graph.outputs(taken.functional) if nodes is None else nodes
        self._exact = _run(taken, inputs, self._nodes)
        # The model's own outputs must be within the bounds as well.
        self._eager = of(taken)(inputs, taken.params) if nodes is None else self._exact
        self._runs: list[list[Array]] = []
        # A decomposition (upsampling, `nn.Bilinear`) may multiply an infinite element by a weight
        # of 0 where PyTorch's own kernel leaves it out.
        given = [*inputs, *taken.params.values()]
        self._finite = all(np.isfinite(bounds.widened(each)).all() for each in given)

    def difference(self, found: Sequence[Array]) -> str | None:
        """Describe what is wrong with results; None if they are within the bounds."""
        wrong = self.first_wrong(found)
        return None if wrong is None else f"output {wrong[0]}: {wrong[1]}"

    def first_wrong(self, found: Sequence[Array]) -> tuple[int, str] | None:
        """The number of the first wrong result and what is wrong with it; None if all are right."""
        return None if self._wrong(found, _RUNS) is None else self._wrong(found, _SURE)

    def expected(self, runs: int = _SURE) -> list[bounds.Expected]:
        """The expected outputs, from `runs` disturbed runs."""
        while len(self._runs) < runs:
            interpreter = _disturbed(self._taken, self._precision, len(self._runs))
            self._runs.append(_run(self._taken, self._inputs, self._nodes, interpreter))
        found = []
        for number, (value, eager) in enumerate(zip(self._exact, self._eager, strict=True)):
            wanted = bounds.expected(value, [each[number] for each in self._runs])
            if not self._finite and bounds.is_float(value):
                wanted = bounds.agreed(wanted, eager)
            found.append(wanted)
        return found

    def _wrong(self, found: Sequence[Array], runs: int) -> tuple[int, str] | None:
        for number, (wanted, value, eager, have) in enumerate(
            zip(self.expected(runs), self._exact, self._eager, found, strict=True)
        ):
            for whose, result in (("PyTorch's own, beside its operators': ", eager), ("", have)):
                what = wanted.difference(result)
                if result.dtype != value.dtype:
                    what = f"dtype {result.dtype}, expected {value.dtype}"
                if what is not None:
                    return number, whose + what
        return None


def _run(
    taken: Taken, inputs: Sequence[Array], nodes: Sequence[Any], interpreter: Any = None
) -> list[Array]:
    """The nodes' values for these inputs, computed by an `interpreter` class like
    `torch.fx.Interpreter`."""
    import torch

    program, given = taken.functional, iter(map(tensor, inputs))
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
    """An interpreter class that disturbs each operator's result. With an odd seed it computes in
    float64 if the operator can."""
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
    """An operator computed by its decomposition, with the result of each step disturbed."""
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
    """An operator that sorts along an axis, applied to a random permutation of its input, so that
    equal elements come from other places."""
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
    """An operator's result for its operands in float64, cast to the dtypes of `result`; `result`
    itself if the operator does not take float64."""
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
    """A tensor in the dtype of another; anything but a tensor unchanged."""
    return value.to(before.dtype) if hasattr(value, "is_floating_point") else value


def _disturbance(taken: Taken, precision: str, seed: int) -> Callable[..., Any]:
    """A function that disturbs a floating-point tensor: each element by a fraction of itself, and
    with `sums`, whose terms may have cancelled, by a fraction of the largest element."""
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
