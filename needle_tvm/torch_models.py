"""PyTorch models through `torch.export`, TVM's front end and this package's pipeline."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.graph import positional_names
from needle_tvm import golden, trees
from needle_tvm.compiler import Executable, Progress, Source, compile_source
from needle_tvm.errors import InstallError, StageError, TranslationError
from needle_tvm.precision import FLOAT32
from needle_tvm.precision import check as check_precision
from needle_tvm.products import Choice, choice
from needle_tvm.products import check as check_products
from needle_tvm.stages import OWN, STAGES
from needle_tvm.target import resolve
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm import IRModule, Target


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
    products: str = OWN,
    progress: Progress | None = None,
) -> Executable:
    """Compile a `torch.nn.Module` in eval mode for inputs like these; else as `compile`.

    `inputs` are tensors, or tuples, lists and dicts of them. `dtype` is for stage "tuned" alone,
    and for convolutions of one and two dimensions. Parameters keep their `state_dict` names;
    buffers (batch norm's statistics) become constants of the code. The result takes torch
    tensors, NumPy arrays and needle Tensors, and exports as any other. PyTorch and TVM are
    imported and the model exported at each call, also when the code itself is in the cache.

    Raises InstallError without PyTorch, TranslationError when the model is in training mode,
    cannot be exported, has an operator TVM's front end does not know, or takes or returns anything
    but tensors; and what `compile` raises.
    """
    options = Options(trials, minutes, seed, tracker, key)
    options.check(stage)
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
    arguments = [_tree(value, torch.Tensor, f"input {i}") for i, value in enumerate(inputs)]
    module, exported = _translated(torch, model, inputs)
    described = _signature(model, module, exported, arguments)
    tensors = [
        tensor
        for i, (value, tree) in enumerate(zip(inputs, arguments, strict=True))
        for tensor in trees.flatten(tree, value, f"input {i}")
    ]
    state = exported.state_dict
    by_library = choice(products, spec)
    source = Source(
        fingerprint=_fingerprint(module, described),
        lower=lambda target: (_lower(module, target, stage, precision, by_library), described),
        params={entry["name"]: _array(state[entry["name"]]) for entry in described["params"]},
        example=[_array(tensor) for tensor in tensors],
        reference=_reference(torch, exported, arguments),
        tolerances=lambda: golden.estimated_tolerances(
            described["outputs"], described["params"], precision
        ),
        precision=precision,
        by_library=by_library,
    )
    return compile_source(source, spec, stage, options, recompile, progress)


def _reference(torch: Any, exported: Any, arguments: list[Any]) -> Callable[..., list[Any]]:
    """A function of inputs and weights by name that runs the exported program in PyTorch."""
    # The model's owner may change its buffers later; in the code they are constants.
    constants = {name: array.detach().clone() for name, array in exported.named_buffers()}

    def run(inputs: list[Any], params: Mapping[str, Any]) -> list[Any]:
        tensors = iter([torch.from_numpy(np.array(array)) for array in inputs])
        nested = [
            trees.unflatten(tree, list(itertools.islice(tensors, trees.leaves(tree))))
            for tree in arguments
        ]
        state = {name: torch.from_numpy(np.array(array)) for name, array in params.items()}
        with torch.no_grad():
            result = torch.func.functional_call(
                exported.module(), {**constants, **state}, tuple(nested)
            )
        leaves, _ = torch.utils._pytree.tree_flatten(result)
        return [_array(leaf) for leaf in leaves]

    return run


def _translated(torch: Any, model: Any, inputs: tuple[Any, ...]) -> tuple[IRModule, Any]:
    """The Relax module and the exported program it was made from."""
    from needle_tvm import _tvm, torch_ops

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # PyTorch's export warns of its own internals
            exported = torch.export.export(model, inputs)
            return _tvm.from_exported_program(exported, torch_ops.converters(exported)), exported
    except Exception as error:  # both raise many types of their own for a model they cannot take
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise TranslationError(f"{type(model).__name__}: {reason}") from error


def _lower(
    module: IRModule,
    target: Target,
    stage: str,
    precision: str = FLOAT32,
    by_library: Choice | None = None,
) -> IRModule:
    """The stage's module, prepared before so that its passes know what the front end made."""
    from needle_tvm import build
    from needle_tvm._tvm import transform
    from needle_tvm.passes.conv1d_as_conv2d import conv1d_as_conv2d
    from needle_tvm.passes.conv_transpose import conv_transpose
    from needle_tvm.passes.norm_as_scale import norm_as_scale
    from needle_tvm.passes.plain_views import plain_views
    from needle_tvm.passes.sink_views import sink_permutes, sink_units

    with target:
        if stage == "tuned":
            for prepare in (norm_as_scale, plain_views):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
            module = transform.DecomposeOpsForInference()(module)
            # The front end views a layer's input once for each product of it.
            module = transform.EliminateCommonSubexpr()(module)
            module = transform.ConvertLayout({"relax.nn.conv2d": ["NHWC", "HWIO"]})(module)
            for prepare in (conv1d_as_conv2d, conv_transpose, sink_permutes, sink_units):
                module = prepare(module, target)
            module = transform.DeadCodeElimination()(module)
        elif stage == "noopt":
            module = transform.LegalizeOps()(module)
    return build.lower_module(module, target, stage, precision=precision, by_library=by_library)


def _signature(model: Any, module: IRModule, exported: Any, arguments: list[Any]) -> dict[str, Any]:
    """What `main` takes and gives, as a manifest holds it."""
    main = module["main"]
    count = int(main.attrs["num_input"])
    names = positional_names(inspect.signature(model.forward), len(arguments))
    parameters = list(exported.graph_signature.inputs_to_parameters.values())
    if count != sum(map(trees.leaves, arguments)) or len(main.params) != count + len(parameters):
        raise TranslationError(f"{type(model).__name__}: takes a parameter that is no weight")
    results = list(getattr(main.ret_ty, "fields", [main.ret_ty]))
    tree = exported.call_spec.out_spec.unflatten(list(range(len(results))))
    inputs = [str(variable.name) for variable in main.params[:count]]
    return {
        "inputs": [
            _entry(name, variable.ty)
            for name, variable in zip(inputs, main.params[:count], strict=True)
        ],
        "params": [
            _entry(name, variable.ty)
            for name, variable in zip(parameters, main.params[count:], strict=True)
        ],
        "outputs": [_described(result) for result in results],
        "bare_output": len(results) == 1,
        "arguments": [
            {"name": name, "tree": argument}
            for name, argument in zip(names, arguments, strict=True)
        ],
        "output_tree": _tree(tree, int, "output"),
    }


def _entry(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, **_described(type_)}


def _described(type_: Any) -> dict[str, Any]:
    return {"shape": [int(extent) for extent in type_.shape.values], "dtype": str(type_.dtype)}


def _tree(value: Any, leaf: type, where: str) -> Any:
    """The structure of nested values; TranslationError for one that is no leaf."""
    if isinstance(value, leaf):
        return trees.LEAF
    if isinstance(value, Mapping):
        return {"dict": {str(name): _tree(part, leaf, where) for name, part in value.items()}}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_tree(part, leaf, where) for part in value]}
    raise TranslationError(f"{where} is a {type(value).__name__}: only tensors are taken")


def _fingerprint(module: IRModule, described: dict[str, Any]) -> str:
    from needle_tvm._tvm import tvm

    text = tvm.ir.save_json(module) + repr(described)
    return "torch:" + hashlib.sha256(text.encode()).hexdigest()


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    try:
        return np.array(tensor.detach().cpu().numpy())
    except TypeError as error:  # a dtype NumPy does not have
        raise TranslationError(f"a tensor of {tensor.dtype}: {error}") from error
