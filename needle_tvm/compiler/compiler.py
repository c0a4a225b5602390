"""`compile` a model, or `load` an exported one. TVM is imported only to generate code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import needle_runtime
from needle_runtime.artifact import Artifact
from needle_runtime.artifact.manifest import write_manifest
from needle_runtime.artifact.replacing import undisturbed
from needle_runtime.errors import ArtifactError, UsageError
from needle_runtime.process.forks import loading
from needle_runtime.process.paths import StrPath
from needle_runtime.process.turns import turn_of
from needle_tvm import cache, terminal
from needle_tvm.compiler import first_check
from needle_tvm.compiler.executable import Executable
from needle_tvm.compiler.request import Choices, Request, check_dims, request
from needle_tvm.frontend import model as needle_model
from needle_tvm.frontend.source import Source
from needle_tvm.target.spec import TargetSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from needle_tvm._tvm.names import IRModule

    _Opened = tuple[Artifact, needle_runtime.Program | None]
    _Module = tuple[IRModule, dict[str, Any]]


def compile(
    model: Any,
    *inputs: Any,
    training: bool = False,
    dims: Mapping[Any, Any] | None = None,
    **choices: Unpack[Choices],
) -> Executable:
    """Compile `model` for inputs like these, or reload code from an earlier compilation.

    `model` is an `nn.Module` in eval mode or a function of Tensors. `inputs` are example arguments;
    the code is specialised to their shapes and dtypes. The code is run on `inputs` and compared
    with the model before it is cached or returned, unless `check` is False or this machine cannot
    run it.

    - `dims` leaves sizes open: `{"x": {0: needle.Dim("n", max=64)}}` compiles code for any
      number of rows up to 64. Keys are names or positions of arguments; inputs in lists, tuples and
      dicts have the names that `exe.program.inputs` shows ("xs_0", "batch_image"). An expression
      may stand for a dim: `2 * n` or `n + 1` always, others such as `2 * n + 1` only if another
      axis is n. The code is checked at `inputs`, at the least and largest sizes, and at some sizes
      in between.
    - `target` is "cpu" (this machine's CPU), "cuda" (its first GPU), "cuda:1" (its second GPU),
      "cuda:sm_90" (any GPU of that architecture), the name of a processor or of a computer, such as
      "x86-64-v3" or "raspberry-pi-5" (`needle_tvm.target.named.NAMED`), or a dict that describes a
      processor in LLVM's terms, such as {"kind": "llvm", "mcpu": "znver4", "num-cores": 8}.
    - `stage` is "noopt", "fused" or "tuned".
    - `dtype` ("tf32", "float16" or "bfloat16"; None is "float32") is the precision that operands of
      float32 matmuls and convolutions are rounded to before they are multiplied, except in
      gradients, in recurrences and, on a GPU, in attention. Sums and everything else stay float32,
      as do inputs, outputs and the weights that are given. A model's own half-precision matmuls
      stay as they are. float16 overflows above 65504.
    - `trials` above 0, or `minutes`, makes the tuned stage search until either is spent. For each
      kernel, the search keeps the fastest candidate whose results are right. `seed` decides which
      candidates are drawn. Trials are kept in the record store: an interrupted search resumes, and
      another model's results for the same kernels are reused. A search cannot be combined with
      `dims`.
    - `cluster` ("tcp://HOST:PORT") is a Dask scheduler whose workers measure candidates.
    - `threads` is the number of threads the code uses, by default the number of cores this process
      may use. A `target` with "num-cores" sets it too; a different `threads` is refused.
    - `recompile` ignores the cache.
    - `disable` leaves out passes and schedule rules by name (`needle_tvm.lower.pipeline.switches`),
      to see how much each one gains; it cannot be combined with a search.
    - `products` chooses the kernels for a GPU's matmuls: "own" kernels, "cublas", or, for each
      matmul, the faster one on this machine's GPU ("measured"). An artifact that calls cuBLAS runs
      only where cuBLAS is installed.
    - `progress=True` shows a search on stderr: a bar on a terminal, lines elsewhere.
      False or None shows nothing. A function is called with lines of text and, while searching,
      with `needle_tvm.tune.status.Status`; `str()` of each is one line.

    Parameters and buffers that a model from `needle.torch.load` writes at each call stay in the
    model: the code reads and writes the model's tensors.

    Raises UsageError (StageError, TargetError), needle's TraceError, TranslationError, TuningError,
    MismatchError if the code's results differ from the model's, ArtifactError if the cache folder
    cannot be written, ValueError for a model in train mode unless `training` is true, TypeError for
    inputs the model does not take, and any error of the model itself.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval()
    >>> x = ndl.randn(3, 8)
    >>> compiled = needle_tvm.compile(model, x)
    >>> np.allclose(compiled(x).numpy(), model(x).numpy(), atol=1e-5)
    True
    >>> rows = needle_tvm.compile(model, x, dims={0: {0: ndl.Dim("n", max=16)}})
    >>> rows(ndl.randn(5, 8)).shape, rows(ndl.randn(16, 8)).shape
    ((5, 4), (16, 4))
    """
    if not callable(model):
        raise UsageError(f"model={model!r}: must be a needle Module or a function of Tensors")
    asked = request(**choices)
    if dims:
        check_dims(asked)
    if is_stateful(model):
        from needle_tvm.frontend import loaded_models

        return compile_source(loaded_models.source(model, inputs, asked.variant, dims), asked)
    source = needle_model.source(model, inputs, training, asked.variant, dims)
    return compile_source(source, asked)


def is_stateful(model: Any) -> bool:
    """Return whether a model comes from `needle.torch.load` and writes parameters or buffers."""
    loader = sys.modules.get("needle.torch.model")
    return loader is not None and isinstance(model, loader.TorchModel) and bool(model.written)


def compile_source(source: Source, asked: Request) -> Executable:
    """Compile a source into the cache, or reload its entry.

    The key covers everything that decides the code: the model, the target, the variant, and the
    versions of needle's sources and the compiler. Needle's sources determine the rules of its own
    ops, so a model of these ops is represented by its graph and reloads without a compiler.

    A model with an op from another package is represented by the module that it is lowered to. The
    module contains the constants, loops and sizes that the op's rules produced, whatever files or
    random numbers they read. A module that cannot be written as text always gets a new key. Two
    things are not in the module: `compute`, which the code is checked against, and functions of
    other libraries that the module calls by name. So the results of such an entry are compared with
    the model's at every load.
    """
    variant = asked.variant
    graph, lowered = source.fingerprint, None
    if graph is None:
        graph, lowered = _lowered(source, asked)
    key = cache.key(
        graph=graph,
        target=asked.spec.key(),
        stage=variant.stage,
        precision=variant.precision,
        search=asked.search.cache_key(),
        disable=variant.disable,
        products=None if variant.by_library is None else variant.by_library.key,
    )
    folder = cache.entry(key)
    with turn_of(folder):  # a thread that waited here finds the code that another thread compiled
        opened = None if asked.recompile else _cached(folder, asked)
        from_cache = opened is not None
        if opened is not None:
            if lowered is not None and asked.check and opened[1] is not None:
                _compare(source, opened[1], asked)
        else:
            with terminal.progress(quiet=not asked.shows_search) as show:
                if asked.shows_search:
                    asked = replace(asked, progress=lambda text: show(0, 1, text))
                asked.say(f"{asked.stage}: compiling")
                folder = _build(source, lowered, asked, folder, key)
            opened = _open(folder, asked.spec)
    return Executable(*opened, from_cache=from_cache, source=source)


def _lowered(source: Source, asked: Request) -> tuple[str, _Module]:
    """Lower a source. Return a digest of its module and signature, and these two."""
    from needle_tvm.lower import build

    module, signature = source.lower(asked.spec.to_tvm())
    digest = build.digest(module, signature)
    return digest or f"once:{os.urandom(16).hex()}", (module, signature)


def load(path: StrPath, *, require_signature: StrPath | None = None) -> Executable:
    """Load the exported model at `path`, after verifying it.

    `require_signature` (the PEM file of a public key) and the errors are as for
    `needle_runtime.load`."""
    program, params = needle_runtime.load_with_params(path, require_signature)
    return Executable(program.artifact, program, from_cache=True, params=params)


def _cached(folder: Path, asked: Request) -> _Opened | None:
    """Return the cache entry in `folder`, or None if there is no usable entry.

    An entry is unusable if it is damaged or not trusted, or if its results were not checked and
    the request asks for a check.
    """
    if not os.path.exists(folder):
        return None
    try:
        found = _open(folder, asked.spec)
    except ArtifactError as error:
        warnings.warn(f"cached artifact is compiled again: {error}", stacklevel=3)
        return None
    artifact, program = found
    known = artifact.checked or program is None
    return found if known or not asked.check else None


def _open(folder: Path, spec: TargetSpec) -> _Opened:
    """Return the artifact in a folder of the cache, and its program if this machine can run it."""

    def read() -> _Opened:
        artifact = cache.checked(folder)
        artifact.check_versions()
        runs = artifact.obstacle is None
        return artifact, needle_runtime.Program(artifact, spec.index) if runs else None

    with loading:
        return undisturbed(folder, read)


def _build(
    source: Source, lowered: _Module | None, asked: Request, folder: Path, key: dict[str, Any]
) -> Path:
    """Compile into the cache entry `folder`, or another folder if the cache cannot be written;
    return the folder. Nothing is left in the folder if a step fails. `lowered` is the source's
    module, if it has already been lowered."""
    from needle_tvm.lower import build

    target, variant = asked.spec.to_tvm(), asked.variant
    module, signature = lowered or source.lower(target)
    notes: dict[str, Any] = {"stage": variant.stage, "precision": variant.precision, "key": key}
    if variant.by_library is not None:
        notes["products"] = variant.by_library.notes
    if asked.search.searches:
        module = _tuned(source, module, signature, asked, notes)
    else:
        module = build.schedule(module, target, variant.stage, variant.disable)

    def fill(temporary: Path) -> None:
        notes.update(build.write_library(module, target, temporary))
        manifest = build.describe(signature, module, asked.spec, target, notes)
        write_manifest(temporary, {**manifest, "checked": False})
        if asked.check and _is_right(source, temporary, asked):
            write_manifest(temporary, {**manifest, "checked": True})

    return cache.write(folder, fill)


def _is_right(source: Source, folder: Path, asked: Request) -> bool:
    """Compare the code in a folder with the model; return whether this machine can run it.

    Raises MismatchError if the results differ.
    """
    artifact = Artifact.open(folder)
    if artifact.obstacle is not None:
        return False
    _compare(source, needle_runtime.Program(artifact, asked.spec.index), asked)
    return True


def _compare(source: Source, program: needle_runtime.Program, asked: Request) -> None:
    """Compare a program with the model. Raises MismatchError if the results differ."""
    asked.say(f"{asked.stage}: comparing with the model")
    program.set_weights(source.weights.values())
    first_check.check(source, program, asked.stage)


def _tuned(
    source: Source,
    module: IRModule,
    signature: dict[str, Any],
    asked: Request,
    notes: dict[str, Any],
) -> IRModule:
    """Return the module, scheduled with a search's results or, if that is faster, by the rules.

    The results are added to `notes` under `tuning` and `whole_model`.
    """
    from needle_tvm.lower import build
    from needle_tvm.tune import session, whole_model

    spec, stage = asked.spec, asked.stage
    target = spec.to_tvm()
    unscheduled = module.clone()
    module, tasks = session.tune(module, spec, asked.search, asked.progress)
    notes["tuning"] = tasks
    module = build.schedule(module, target, stage)
    taken = [note for note in tasks if note["chosen"] == session.SEARCH]
    if not taken or asked.search.cluster is not None:  # this machine cannot time code for others
        return module
    asked.say(f"{stage}: timing the whole model against the one that the rules schedule")
    by_rules = build.schedule(unscheduled, target, stage)
    modules = {whole_model.RULES: by_rules, whole_model.TUNED: module}
    notes["whole_model"] = whole_model.compare(modules, signature, source.params(), spec, target)
    if notes["whole_model"]["kept"] == whole_model.TUNED:
        return module
    for note in taken:
        note.update(chosen=session.RULE, reason="the model as a whole is slower with it")
    return by_rules
