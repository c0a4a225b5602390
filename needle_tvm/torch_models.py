"""PyTorch models through `torch.export`, TVM's front end and this package's pipeline."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.graph import positional_names
from needle_tvm import torch_divergence, torch_export, torch_graph, torch_reference, trees
from needle_tvm.compiler import Progress, compile_source
from needle_tvm.errors import InstallError, StageError, TranslationError
from needle_tvm.executable import Executable
from needle_tvm.faults import blamed_on
from needle_tvm.precision import FLOAT32
from needle_tvm.precision import check as check_precision
from needle_tvm.products import Choice, choice
from needle_tvm.products import check as check_products
from needle_tvm.source import FixedWeights, Source
from needle_tvm.stages import OWN, STAGES
from needle_tvm.target import TargetSpec, resolve
from needle_tvm.tolerance import estimated_tolerances
from needle_tvm.torch_indices import index_ranges
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm import IRModule, Target
    from needle_tvm.runtime import Program

Array = np.ndarray[Any, Any]


def compile_torch(
    model: Any,
    *inputs: Any,
    target: str | dict[str, Any] = "cpu",
    stage: str = "tuned",
    dtype: str | None = None,
    trials: int = 0,
    minutes: float | None = None,
    threads: int | None = None,
    recompile: bool = False,
    seed: int = 0,
    tracker: str | None = None,
    key: str | None = None,
    disable: Collection[str] = (),
    products: str = OWN,
    check: bool = True,
    progress: Progress | None = None,
) -> Executable:
    """Compile a `torch.nn.Module` in eval mode for inputs like these; else as `compile`.

    `inputs` are tensors, or tuples, lists and dicts of them. `dtype` is for stage "tuned" alone,
    and for convolutions of one and two dimensions. Parameters keep their `state_dict` names;
    buffers (batch norm's statistics) become constants of the code. The weights are those of this
    moment: later changes of the model reach the code by `set_params`. The result takes torch
    tensors, NumPy arrays and needle Tensors, and exports as any other. PyTorch and TVM are
    imported and the model exported at each call, also when the code itself is in the cache.

    Raises InstallError without PyTorch; TranslationError for a model in training mode, for one that
    PyTorch itself does not run on these inputs, and for one that cannot be exported, has an
    operator without a translation, draws random numbers, writes to its buffers or inputs, computes
    tensors whose shapes depend on values, or takes or returns anything but dense tensors of real
    numbers; and what `compile` raises.
    """
    options = Options(trials, minutes, seed, tracker, key)
    options.check(stage)
    if disable and options.searches:
        raise StageError(f"disable={sorted(disable)}: a search uses every pass and rule")
    spec = resolve(target, threads)
    precision = check_precision(dtype, spec, stage)
    check_products(products, spec, stage, options)
    if precision != FLOAT32 and stage != STAGES[-1]:  # other layouts, which no pass of ours knows
        raise StageError(
            f"dtype={dtype!r}: a PyTorch model takes it at stage 'tuned', not {stage!r}"
        )
    try:
        import torch
    except ImportError as error:
        raise InstallError(f"PyTorch cannot be imported ({error}): pip install torch") from error
    if not isinstance(model, torch.nn.Module):
        raise TranslationError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    if model.training:
        raise TranslationError("model is in training mode: call model.eval() first")
    taken = take(model, inputs)
    return compile_taken(
        taken,
        spec,
        stage,
        options,
        recompile=recompile,
        progress=progress,
        disable=disable,
        check=check,
        precision=precision,
        by_library=choice(products, spec),
    )


@dataclass(frozen=True)
class Taken:
    """A PyTorch model as its front end took it: the exported program, its functional form, how its
    inputs are nested, the Relax module, the manifest's signature, and example inputs and weights as
    NumPy arrays."""

    exported: Any
    functional: Any
    arguments: list[Any]
    module: IRModule
    signature: dict[str, Any]
    example: list[Array]
    params: dict[str, Array]


def take(model: Any, inputs: tuple[Any, ...]) -> Taken:
    """Export a model in eval mode and translate it; TranslationError where that cannot be done."""
    import torch

    arguments = [_tree(value, torch.Tensor, f"input {i}") for i, value in enumerate(inputs)]
    tensors = [
        (f"input {i}", tensor)
        for i, (value, tree) in enumerate(zip(inputs, arguments, strict=True))
        for tensor in trees.flatten(tree, value, f"input {i}")
    ]
    torch_export.check(model, tensors)
    module, exported, functional = torch_export.translate(model, inputs)
    signature = _signature(model, module, exported, arguments)
    state = exported.state_dict
    names = [entry["name"] for entry in signature["params"]]
    return Taken(
        exported,
        functional,
        arguments,
        module,
        signature,
        [torch_reference.array(tensor) for _, tensor in tensors],
        {name: torch_reference.array(state[name]) for name in names},
    )


def compile_taken(
    taken: Taken,
    spec: TargetSpec,
    stage: str,
    options: Options,
    recompile: bool = False,
    progress: Progress | None = None,
    disable: Collection[str] = (),
    check: bool = True,
    precision: str = FLOAT32,
    by_library: Choice | None = None,
) -> Executable:
    """What `compile_torch` does with what it took."""

    def lower(target: Target) -> tuple[IRModule, dict[str, Any]]:
        module = lowered(taken.module, target, stage, precision, by_library, disable)
        return module, taken.signature

    def explain(found: list[Any]) -> str | None:
        return torch_reference.Reference(taken, precision).difference(found)

    def diverges(program: Program, at: str) -> str | None:
        how = (precision, by_library, disable) if at == stage else (FLOAT32, None, ())
        return torch_divergence.first_divergence(taken, spec, at, *how)

    outputs, weights = taken.signature["outputs"], taken.signature["params"]
    source = Source(
        fingerprint=_fingerprint(taken.module, taken.signature),
        lower=lower,
        weights=FixedWeights(taken.params),
        example=taken.example,
        reference=torch_reference.of(taken),
        tolerances=lambda: estimated_tolerances(outputs, weights, precision),
        explain=explain,
        diverges=diverges,
        precision=precision,
        by_library=by_library,
    )
    return compile_source(source, spec, stage, options, recompile, progress, disable, check)


# Without a word of its own, a transposed convolution takes the layout of what it is given, in
# which neither TVM nor `passes.conv_transpose` knows it.
_LAYOUTS = {
    "relax.nn.conv2d": ["NHWC", "HWIO"],
    "relax.nn.conv2d_transpose": ["NCHW", "IOHW"],
}


def lowered(
    module: IRModule,
    target: Target,
    stage: str,
    precision: str = FLOAT32,
    by_library: Choice | None = None,
    disable: Collection[str] = (),
) -> IRModule:
    """The stage's module, prepared before so that its passes know what the front end made."""
    from needle_tvm import build, legalize
    from needle_tvm._tvm import transform
    from needle_tvm.passes.conv1d_as_conv2d import conv1d_as_conv2d
    from needle_tvm.passes.conv_transpose import conv_transpose
    from needle_tvm.passes.norm_as_scale import norm_as_scale
    from needle_tvm.passes.plain_views import plain_views
    from needle_tvm.passes.sink_views import sink_permutes, sink_units

    with target, blamed_on("what prepares PyTorch's program"):
        if stage == "tuned":
            for prepare in (norm_as_scale, plain_views):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
            module = transform.DecomposeOpsForInference()(module)
            # The front end views a layer's input once for each product of it.
            module = transform.EliminateCommonSubexpr()(module)
            module = transform.ConvertLayout(_LAYOUTS)(module)
            for prepare in (conv1d_as_conv2d, conv_transpose, sink_permutes, sink_units):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
        elif stage == "noopt":
            module = transform.LegalizeOps(legalize.RULES)(module)
    return build.lower_module(
        module, target, stage, disable=disable, precision=precision, by_library=by_library
    )


def result_types(module: IRModule) -> list[Any]:
    """The types of what `main` returns, one tensor or a tuple of them."""
    ty = module["main"].ret_ty
    return list(getattr(ty, "fields", [ty]))


def _signature(model: Any, module: IRModule, exported: Any, arguments: list[Any]) -> dict[str, Any]:
    """What `main` takes and gives, as a manifest holds it."""
    main = module["main"]
    count = int(main.attrs["num_input"])
    names = positional_names(inspect.signature(model.forward), len(arguments))
    parameters = list(exported.graph_signature.inputs_to_parameters.values())
    if count != sum(map(trees.leaves, arguments)) or len(main.params) != count + len(parameters):
        raise TranslationError(f"{type(model).__name__}: takes a parameter that is no weight")
    results = result_types(module)
    leaves = [0 if value is None else value for value in torch_graph.fixed(exported)]
    tree = exported.call_spec.out_spec.unflatten(leaves)
    inputs = [str(variable.name) for variable in main.params[:count]]
    ranges = index_ranges(exported)
    return {
        "inputs": [
            _entry(name, variable.ty) | ({"range": list(ranges[name])} if name in ranges else {})
            for name, variable in zip(inputs, main.params[:count], strict=True)
        ],
        "params": [
            _entry(name, variable.ty)
            for name, variable in zip(parameters, main.params[count:], strict=True)
        ],
        "ties": _ties(model),
        "outputs": [described(result) for result in results],
        "bare_output": len(results) == 1,
        "arguments": [
            {"name": name, "tree": argument}
            for name, argument in zip(names, arguments, strict=True)
        ],
        "output_tree": _tree(tree, int, "output"),
    }


def _ties(model: Any) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def _entry(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, **described(type_)}


def described(type_: Any) -> dict[str, Any]:
    return {"shape": [int(extent) for extent in type_.shape.values], "dtype": str(type_.dtype)}


_PLAIN = (bool, int, float, str, type(None))


def _tree(value: Any, leaf: type, where: str) -> Any:
    """The structure of nested values; TranslationError for one that is no leaf."""
    if isinstance(value, leaf):
        return trees.LEAF
    if isinstance(value, torch_graph.Fixed) and isinstance(value.value, _PLAIN):
        return {"static": value.value}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TranslationError(f"{where} has the key {name!r}: only strings are taken")
        return {"dict": {name: _tree(part, leaf, where) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_tree(part, leaf, where) for part in value]}
    what = "None" if value is None else f"a value of type {type(value).__name__}"
    raise TranslationError(f"{where} is {what}: only tensors are taken")


def _fingerprint(module: IRModule, described: dict[str, Any]) -> str:
    from needle_tvm._tvm import tvm

    text = tvm.ir.save_json(module) + repr(described)
    return "torch:" + hashlib.sha256(text.encode()).hexdigest()
