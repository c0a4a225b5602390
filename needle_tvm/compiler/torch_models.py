"""PyTorch models through `torch.export`, TVM's front end and this package's pipeline."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from needle_tvm.artifact.tolerance import estimated_tolerances
from needle_tvm.compiler.compiler import Progress, compile_source
from needle_tvm.compiler.executable import Executable
from needle_tvm.compiler.products import Choice, choice
from needle_tvm.compiler.products import check as check_products
from needle_tvm.errors import InstallError, StageError, TranslationError
from needle_tvm.frontend.source import FixedWeights, Source
from needle_tvm.frontend.torch import divergence as torch_divergence
from needle_tvm.frontend.torch import reference as torch_reference
from needle_tvm.frontend.torch.taken import Taken, take
from needle_tvm.stages import OWN, STAGES
from needle_tvm.target.precision import FLOAT32
from needle_tvm.target.precision import check as check_precision
from needle_tvm.target.spec import TargetSpec, resolve
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.runtime import Program


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
        from needle_tvm.frontend.torch.lowering import lowered

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


def _fingerprint(module: IRModule, described: dict[str, Any]) -> str:
    from needle_tvm._tvm.names import tvm

    text = tvm.ir.save_json(module) + repr(described)
    return "torch:" + hashlib.sha256(text.encode()).hexdigest()
