"""`compile` a needle model, `load` an exported one. TVM is imported only to generate code."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import needle
from needle.backend_ndarray.threads import rest_threads
from needle.trace import Graph, trace
from needle_tvm import artifact, cache, golden, runtime
from needle_tvm.errors import ArtifactError, StageError
from needle_tvm.precision import FLOAT32
from needle_tvm.precision import check as check_precision
from needle_tvm.products import Choice, choice
from needle_tvm.products import check as check_products
from needle_tvm.stages import OWN
from needle_tvm.target import TargetSpec, resolve
from needle_tvm.tune.options import Options

if TYPE_CHECKING:
    from needle_tvm._tvm import IRModule, Target
    from needle_tvm.tune.status import Status

Progress = Callable[["str | Status"], None]  # what is reported has a line of text as its str()


class Executable:
    """A compiled model: call it as the model is called, with Tensors, NumPy or DLPack arrays."""

    def __init__(
        self,
        program: runtime.Program,
        *,
        from_cache: bool = False,
        source: Source | None = None,
        params: dict[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        self.program = program
        self.from_cache = from_cache
        self._source = source
        self._params = params
        self._loaded_params = params if source is None else None
        if source is not None and params is not None and program.refusal is None:
            program.set_params(params)

    @property
    def path(self) -> Path:
        """The artifact directory the code was loaded from."""
        return self.program.path

    @property
    def manifest(self) -> dict[str, Any]:
        """What the artifact says of itself: functions, target, versions, files."""
        return self.program.manifest

    @property
    def script(self) -> str:
        """TVMScript of the module the library was built from."""
        return (self.path / artifact.SCRIPT).read_text()

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Use other weights (as a `state_dict`) from now on; see `runtime.Program.set_params`."""
        arrays = {name: to_numpy(value) for name, value in params.items()}
        if self.program.refusal is None:
            self.program.set_params(arrays)
        else:  # for an export: they are checked, and there is nowhere to put them
            self.program.in_order(arrays)
        self._params = {name: np.array(array) for name, array in arrays.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; Tensors in the structure the model returns.

        Raises InputError when an argument's structure, shape or dtype is not the compiled one's.
        """
        arrays = self.program.flatten(args, kwargs)
        rest_threads()  # needle's own, which TVM's would find on their cores
        outputs = self.program.run(arrays)
        tensors = [needle.Tensor(output, requires_grad=False) for output in outputs]
        return self.program.unflatten(tensors)

    def export(
        self, path: str | os.PathLike[str], *, sign: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write the artifact, weights and a golden example included, to the folder `path`.

        The example is the inputs the model was compiled with, and what the eager model gives for
        them with the weights in use. An artifact that is there is replaced, whole or not at all.
        With `sign`, the PEM file of an Ed25519 private key, the manifest is signed.

        Raises ArtifactError when it cannot be written, or when something else is there,
        KeyFileError when the key cannot be used, InstallError without the package `cryptography`.
        """
        from safetensors.numpy import save_file

        if self.program.params and self._params is None:
            raise ArtifactError(f"{path}: no weights to export")
        example, facts = self._golden()
        manifest = {k: v for k, v in self.manifest.items() if k not in ("key", "golden")}
        with artifact.writing(path) as folder:
            for name in (artifact.LIBRARY, artifact.SCRIPT):
                (folder / name).write_bytes(artifact.read_file(self.path, self.manifest, name))
            try:
                save_file(_contiguous(self._params or {}), folder / artifact.PARAMS)
                save_file(_contiguous(example), folder / artifact.GOLDEN)
            except Exception as error:  # safetensors raises a type of its own for a full disk
                raise OSError(str(error)) from error
            artifact.write_manifest(folder, {**manifest, "golden": facts}, sign)
        return Path(path)

    def _golden(self) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        """The arrays of the golden example, and what the manifest says of it."""
        carried = runtime.read_arrays(self.path, self.manifest, artifact.GOLDEN)
        if carried is not None and self._params is self._loaded_params:
            return carried, self.manifest["golden"]
        params = self._params or {}
        if self._source is not None:
            inputs, made_by = self._source.example, golden.EAGER
            outputs = self._source.reference(inputs, params)
            tolerances = self._source.tolerances()
        else:  # loaded, and then given other weights: the model itself is elsewhere
            count = len(self.program.inputs)
            inputs = self.program.random_inputs()
            if carried is not None:
                inputs = [carried[f"input.{i}"] for i in range(count)]
            made_by, outputs = golden.COMPILED, self.program.run(inputs)
            tolerances = golden.estimated_tolerances(
                self.program.outputs, self.program.params, self.manifest.get("precision", FLOAT32)
            )
        arrays = {f"input.{i}": array for i, array in enumerate(inputs)}
        arrays |= {f"output.{i}": array for i, array in enumerate(outputs)}
        return arrays, {"source": made_by, "tolerances": tolerances}


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
    there. `threads` is how many threads the code uses, by default the cores this process may use.
    `recompile` ignores what is cached. `disable` leaves out passes and schedule rules by name
    (`needle_tvm.pipeline.switches`), to see what each is worth; a search takes none. `products` is
    who computes a GPU's matrix products: "own" kernels, "cublas", or, for each, whichever is faster
    on this machine's GPU ("measured"); an artifact that calls cuBLAS runs where that is installed.
    `progress` is called with lines of text and, while searching, with
    `needle_tvm.tune.status.Status`; `str()` of each is one line.

    Raises UsageError (StageError, TargetError), needle's TraceError, TranslationError, TuningError,
    and ArtifactError when the cache folder cannot be written.
    """
    options = Options(trials, minutes, seed, tracker, key)
    options.check(stage)
    if disable and options.searches:
        raise StageError(f"disable={sorted(disable)}: a search uses every pass and rule")
    spec = resolve(target, threads)
    precision = check_precision(dtype, spec, stage)
    if precision != FLOAT32 and "narrow_products" in disable:
        raise StageError(f"disable=['narrow_products'] with dtype={dtype!r}: that is what rounds")
    check_products(products, spec, stage, options)
    by_library = choice(products, spec)
    graph = trace(model, *inputs, training=training)
    source = Source(
        fingerprint=graph.fingerprint(),
        lower=lambda target: _lower(graph, target, stage, disable, precision, by_library),
        params={leaf.name: to_numpy(leaf.value) for leaf in graph.params},
        example=[np.array(to_numpy(leaf.value)) for leaf in graph.inputs],
        reference=lambda inputs, params: golden.eager_outputs(graph, inputs, params),
        tolerances=lambda: golden.tolerances(graph, precision),
        precision=precision,
        by_library=by_library,
    )
    return compile_source(source, spec, stage, options, recompile, progress, disable)


@dataclass(frozen=True)
class Source:
    """What is compiled, whichever front end it comes from.

    `fingerprint` stands for everything of it that decides the code. `lower(target)` returns the
    module after the stage's graph passes, and the signature for the manifest; it is only called
    where nothing is cached. `reference(inputs, params)` is what the eager model gives for `example`
    and weights by name, `tolerances()` how far each output may be from it, relative to its
    magnitude; both are only called where the model is exported. `precision` is what `lower` rounds
    the operands of products to, `by_library` the choice that it makes of products, None where it
    makes none.
    """

    fingerprint: str
    lower: Callable[[Target], tuple[IRModule, dict[str, Any]]]
    params: dict[str, np.ndarray[Any, Any]]
    example: list[np.ndarray[Any, Any]]
    reference: Callable[
        [list[np.ndarray[Any, Any]], dict[str, np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]
    ]
    tolerances: Callable[[], list[float]]
    precision: str = FLOAT32
    by_library: Choice | None = None


def compile_source(
    source: Source,
    spec: TargetSpec,
    stage: str,
    options: Options,
    recompile: bool,
    progress: Progress | None,
    disable: Collection[str] = (),
) -> Executable:
    """Compile a source into the cache, or reload what is there."""
    key = cache.key(
        graph=source.fingerprint,
        target=spec.key(),
        stage=stage,
        precision=source.precision,
        search=options.cache_key(),
        disable=disable,
        products=None if source.by_library is None else source.by_library.key,
    )
    folder = cache.entry(key)
    program = None if recompile else _cached(folder, spec)
    from_cache = program is not None
    if program is None:
        _say(progress, f"{stage}: compiling")
        _build(source, spec, stage, options, folder, key, progress, disable)
        program = _open(folder, spec)
    return Executable(program, from_cache=from_cache, source=source, params=source.params)


def load(
    path: str | os.PathLike[str], *, require_signature: str | os.PathLike[str] | None = None
) -> Executable:
    """Verify and load an exported model; see `runtime.load` for what is refused."""
    program, params = runtime.load_with_params(path, require_signature)
    return Executable(program, from_cache=True, params=params)


def _cached(folder: Path, spec: TargetSpec) -> runtime.Program | None:
    """The cache entry in `folder`, None where there is none that can be trusted."""
    if not folder.exists():
        return None
    try:
        return _open(folder, spec)
    except ArtifactError as error:
        warnings.warn(f"cached artifact is compiled anew: {error}", stacklevel=3)
        return None


def _open(folder: Path, spec: TargetSpec) -> runtime.Program:
    """What was compiled into a folder of the cache; for another machine, not loaded here."""

    def read() -> runtime.Program:
        manifest = artifact.check_files(folder)
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
    from needle_tvm import build

    module = build.lower(
        graph, target, stage, disable=disable, precision=precision, by_library=by_library
    )
    return module, build.signature(graph)


def _build(
    source: Source,
    spec: TargetSpec,
    stage: str,
    options: Options,
    folder: Path,
    key: dict[str, Any],
    progress: Progress | None,
    disable: Collection[str],
) -> None:
    """Compile into the cache entry `folder`."""
    from needle_tvm import build

    target = spec.to_tvm()
    module, signature = source.lower(target)
    notes: dict[str, Any] = {"stage": stage, "precision": source.precision, "key": key}
    if source.by_library is not None:
        notes["products"] = source.by_library.notes
    if options.searches:
        module = _tuned(source, module, signature, spec, stage, options, notes, progress)
    else:
        module = build.schedule(module, target, stage, disable)
    with artifact.writing(folder) as temporary:
        notes |= build.write_library(module, target, temporary)
        manifest = build.describe(signature, module, spec, target, notes)
        artifact.write_manifest(temporary, manifest)


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
    from needle_tvm import build
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
    notes["whole_model"] = whole.compare(modules, signature, source.params, spec, target)
    if notes["whole_model"]["kept"] == whole.TUNED:
        return module
    for note in taken:
        note.update(chosen=session.RULE, reason="the model as a whole is slower with it")
    return by_rules


def _say(progress: Progress | None, line: str) -> None:
    if progress is not None:
        progress(line)


def to_numpy(value: Any) -> np.ndarray[Any, Any]:
    """A Tensor, NDArray or anything NumPy understands as a NumPy array."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def _contiguous(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}
