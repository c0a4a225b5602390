"""`compile` a needle model, `load` an exported one. TVM is imported only to generate code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from needle.spec import Spec
from needle.trace import Graph, trace
from needle_tvm import runtime
from needle_tvm.artifact import artifact, cache
from needle_tvm.compiler import first
from needle_tvm.compiler.executable import Executable
from needle_tvm.compiler.products import Choice, choice
from needle_tvm.compiler.products import check as check_products
from needle_tvm.errors import ArtifactError, StageError, UsageError
from needle_tvm.frontend import golden
from needle_tvm.frontend.source import Source, to_numpy
from needle_tvm.stages import OWN
from needle_tvm.target.precision import FLOAT32
from needle_tvm.target.precision import check as check_precision
from needle_tvm.target.spec import TargetSpec, resolve
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm.names import IRModule, Target
    from needle_tvm.tune.status import Status

_MOST_ELEMENTS = 2**59  # of 8 bytes: what a signed 64-bit number of bytes can be, and some room

Progress = Callable[["str | Status"], None]  # what is reported has a line of text as its str()


def compile(
    model: Any,
    *inputs: Any,
    target: str | dict[str, Any] = "cpu",
    stage: str = "tuned",
    dtype: str | None = None,
    trials: int = 0,
    minutes: float | None = None,
    threads: int | None = None,
    recompile: bool = False,
    training: bool = False,
    seed: int = 0,
    tracker: str | None = None,
    key: str | None = None,
    disable: Collection[str] = (),
    products: str = OWN,
    check: bool = True,
    progress: Progress | None = None,
) -> Executable:
    """Compile `model` for inputs like these, or reload what was compiled for them before.

    `model` is an `nn.Module` in eval mode or a function of Tensors; `inputs` are example
    arguments, whose shapes and dtypes the code is specialised to. `stage` is "noopt", "fused" or
    "tuned". `dtype` ("tf32", "float16" or "bfloat16"; None is "float32") is what the operands of
    float32 matrix products and convolutions are rounded to before they are multiplied, but for
    those of gradients and recurrences and, on a GPU, of attention: sums and all else stay float32,
    as do inputs, outputs and the weights that are given. A model's own products of halves stay what
    they are. float16 overflows above 65504. With `trials` above 0, or `minutes`, the tuned stage
    also searches, until either is spent, and keeps, per kernel, the fastest candidate that gives
    right results; trials are kept in the record store, so a search that was interrupted goes on,
    and what another model's search found for the same kernels is used at once. With `tracker`
    ("HOST:PORT") and `key`, candidates are measured by the servers of `python -m needle_tvm server`
    there. `threads` is how many threads the code uses, by default the cores this process may use; a
    `target` with "num-cores" says it too, and what differs from it is refused.
    `recompile` ignores what is cached. `disable` leaves out passes and schedule rules by name
    (`needle_tvm.lower.pipeline.switches`), to see what each is worth; a search takes none.
    `products` is who computes a GPU's matrix products: "own" kernels, "cublas", or, for each,
    whichever is faster on this machine's GPU ("measured"); an artifact that calls cuBLAS runs where
    that is installed.
    What was compiled is run on `inputs` and compared with the model before it is kept or returned,
    unless `check` is False or this machine cannot run it.
    `progress` is called with lines of text and, while searching, with
    `needle_tvm.tune.status.Status`; `str()` of each is one line.

    Raises UsageError (StageError, TargetError), needle's TraceError, TranslationError, TuningError,
    MismatchError when the code does not compute what the model does, and ArtifactError when the
    cache folder cannot be written; ValueError for a model in train mode unless `training` is true,
    TypeError for inputs the model does not take, and whatever the model itself raises.
    """
    if not callable(model):
        raise UsageError(f"model={model!r}: must be a needle Module or a function of Tensors")
    options = Options(trials, minutes, seed, tracker, key)
    options.check(stage)
    _check_options(disable, progress)
    if disable and options.searches:
        raise StageError(f"disable={sorted(disable)}: a search uses every pass and rule")
    spec = resolve(target, threads)
    precision = check_precision(dtype, spec, stage)
    if precision != FLOAT32 and "narrow_products" in disable:
        raise StageError(f"disable=['narrow_products'] with dtype={dtype!r}: that is what rounds")
    check_products(products, spec, stage, options)
    by_library = choice(products, spec)
    graph = trace(model, *inputs, training=training)
    _check_extents(graph)
    example = [np.array(to_numpy(leaf.value)) for leaf in graph.inputs]
    source = Source(
        fingerprint=graph.fingerprint(),
        lower=lambda target: _lower(graph, target, stage, disable, precision, by_library),
        weights=graph.weights,
        example=example,
        reference=lambda inputs, params: golden.eager_outputs(graph, inputs, params),
        tolerances=lambda: golden.tolerances(graph, precision),
        explain=lambda found: _explained(graph, example, found, precision),
        diverges=lambda program, stage: _divergence(graph, example, program, stage),
        unfollowed=graph.unfollowed(),
        precision=precision,
        by_library=by_library,
    )
    return compile_source(source, spec, stage, options, recompile, progress, disable, check)


def _check_options(disable: Collection[str], progress: Progress | None) -> None:
    """Raise UsageError for names that are none (a str would be taken for its letters)."""
    if not isinstance(disable, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) for name in disable
    ):
        raise StageError(f"disable={disable!r}: must be a list of names, as in ['pack_pairs']")
    if progress is not None and not callable(progress):
        raise UsageError(f"progress={progress!r}: must be a function, or None")


def _check_extents(graph: Graph) -> None:
    """Raise UsageError for a tensor whose elements the code could not count in 64 bits."""
    for node in graph.nodes:
        for spec in (node.spec,) if isinstance(node.spec, Spec) else node.spec:
            if prod(spec.shape) > _MOST_ELEMENTS:
                what = "an input" if node.op is None else node.op.name
                raise UsageError(f"{what} is {spec}: more than 2**59 elements, of no memory's size")


def _explained(graph: Graph, example: list[Any], found: list[Any], precision: str) -> str | None:
    from needle_tvm.frontend.bounds import Evaluation

    params = {name: to_numpy(value) for name, value in graph.weights.values().items()}
    return Evaluation(graph, example, params, precision).difference(found)


def _divergence(
    graph: Graph, example: list[Any], program: runtime.Program, stage: str
) -> str | None:
    from needle_tvm.frontend import divergence

    return divergence.first_divergence(
        graph, example, divergence.evaluate(graph, example), stage, program
    )


def compile_source(
    source: Source,
    spec: TargetSpec,
    stage: str,
    options: Options,
    recompile: bool,
    progress: Progress | None,
    disable: Collection[str] = (),
    check: bool = True,
) -> Executable:
    """Compile a source into the cache, or reload what is there."""
    _check_options(disable, progress)
    key = cache.key(
        graph=source.fingerprint,
        target=spec.key(),
        stage=stage,
        precision=source.precision,
        search=options.cache_key(),
        disable=disable,
        products=None if source.by_library is None else source.by_library.key,
    )
    if source.unfollowed:
        _warn_of(source.unfollowed)
        key["once"] = os.urandom(16).hex()
    folder = cache.entry(key)
    program = None if recompile else _cached(folder, spec, check)
    from_cache = program is not None
    if program is None:
        _say(progress, f"{stage}: compiling")
        _build(source, spec, stage, options, folder, key, progress, disable, check)
        program = _open(folder, spec)
    return Executable(program, from_cache=from_cache, source=source)


_WARNED: set[str] = set()


def _warn_of(unfollowed: list[str]) -> None:
    """Say once of each thing that it keeps what is compiled from being served again."""
    new = [what for what in unfollowed if what not in _WARNED]
    if new:
        _WARNED.update(new)
        warnings.warn(
            f"compiled anew each time, for code that cannot be followed: {'; '.join(new)}",
            stacklevel=4,
        )


def load(
    path: str | os.PathLike[str], *, require_signature: str | os.PathLike[str] | None = None
) -> Executable:
    """Verify and load an exported model; see `runtime.load` for what is refused."""
    program, params = runtime.load_with_params(path, require_signature)
    return Executable(program, from_cache=True, params=params)


def _cached(folder: Path, spec: TargetSpec, check: bool) -> runtime.Program | None:
    """The cache entry in `folder`, None where there is none that can be trusted, or that was not
    checked and is to be."""
    if not folder.exists():
        return None
    try:
        program = _open(folder, spec)
    except ArtifactError as error:
        warnings.warn(f"cached artifact is compiled anew: {error}", stacklevel=3)
        return None
    known = program.manifest.get("checked", False) or program.refusal is not None
    return program if known or not check else None


def _open(folder: Path, spec: TargetSpec) -> runtime.Program:
    """What was compiled into a folder of the cache; for another machine, not loaded here."""

    def read() -> runtime.Program:
        manifest = cache.checked(folder)
        artifact.check_versions(folder, manifest)
        refusal = artifact.refusal(folder, manifest)
        return runtime.Program(folder, manifest, refusal=refusal, device=spec.index)

    return artifact.undisturbed(folder, read)


def _lower(
    graph: Graph,
    target: Target,
    stage: str,
    disable: Collection[str],
    precision: str,
    by_library: Choice | None,
) -> tuple[IRModule, dict[str, Any]]:
    from needle_tvm.frontend import graphs

    module = graphs.lower(
        graph, target, stage, disable=disable, precision=precision, by_library=by_library
    )
    return module, graphs.signature(graph)


def _build(
    source: Source,
    spec: TargetSpec,
    stage: str,
    options: Options,
    folder: Path,
    key: dict[str, Any],
    progress: Progress | None,
    disable: Collection[str],
    check: bool,
) -> None:
    """Compile into the cache entry `folder`, where nothing wrong is left."""
    from needle_tvm.lower import build

    target = spec.to_tvm()
    module, signature = source.lower(target)
    notes: dict[str, Any] = {"stage": stage, "precision": source.precision, "key": key}
    if source.by_library is not None:
        notes["products"] = source.by_library.notes
    if options.searches:
        module = _tuned(source, module, signature, spec, stage, options, notes, progress)
    else:
        module = build.schedule(module, target, stage, disable)
    with cache.writing(folder) as temporary:
        notes |= build.write_library(module, target, temporary)
        manifest = build.describe(signature, module, spec, target, notes)
        artifact.write_manifest(temporary, {**manifest, "checked": False})
        if check and _is_right(source, temporary, spec, stage, progress):
            artifact.write_manifest(temporary, {**manifest, "checked": True})


def _is_right(
    source: Source, folder: Path, spec: TargetSpec, stage: str, progress: Progress | None
) -> bool:
    """Whether the code in a folder was found to compute what the model does; False where this
    machine cannot run it. Raises MismatchError where it does not."""
    manifest = artifact.check_files(folder)
    if artifact.refusal(folder, manifest) is not None:
        return False
    _say(progress, f"{stage}: comparing with the model")
    program = runtime.Program(folder, manifest, device=spec.index)
    program.set_params(source.weights.values())
    first.check(source, program, stage)
    return True


def _tuned(
    source: Source,
    module: IRModule,
    signature: dict[str, Any],
    spec: TargetSpec,
    stage: str,
    options: Options,
    notes: dict[str, Any],
    progress: Progress | None,
) -> IRModule:
    """The module scheduled with what a search found, where that is not slower as a whole.

    What came of it is noted under `tuning` and `whole_model`.
    """
    from needle_tvm.lower import build
    from needle_tvm.tune import session, whole

    target = spec.to_tvm()
    unscheduled = module.clone()
    module, tasks = session.tune(module, spec, options, progress)
    notes["tuning"] = tasks
    module = build.schedule(module, target, stage)
    taken = [note for note in tasks if note["chosen"] == session.SEARCH]
    if not taken or options.tracker is not None:  # other machines' times are not ours to take
        return module
    _say(progress, f"{stage}: comparing the whole model with the rules' own")
    by_rules = build.schedule(unscheduled, target, stage)
    modules = {whole.RULES: by_rules, whole.TUNED: module}
    notes["whole_model"] = whole.compare(modules, signature, source.params(), spec, target)
    if notes["whole_model"]["kept"] == whole.TUNED:
        return module
    for note in taken:
        note.update(chosen=session.RULE, reason="the model as a whole is slower with it")
    return by_rules


def _say(progress: Progress | None, line: str) -> None:
    if progress is not None:
        progress(line)
