"""The work of tvm_eval.py, as functions from a request to a JSON-able result, without printing."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import needle as ndl
import needle_tvm
from apps import digits, ladder, models, peers
from apps.contestants import EAGER, Disagreement, build_model, check_agreement
from apps.ladder import Rung
from apps.subjects import Subject
from needle_runtime.errors import EvaluationError, UsageError
from needle_runtime.process import timing
from needle_runtime.process.scratch import scratch_folder
from needle_runtime.process.threads import available_cores
from needle_runtime.process.timing import TimingError
from needle_runtime.target import host
from needle_runtime.target.precision import FLOAT32
from needle_runtime.text import error_line
from needle_tvm.check import parity
from needle_tvm.stages import OWN, STAGES
from needle_tvm.terminal import Progress
from needle_tvm.tune.status import Status

PEERS = ("torch", "onnxruntime")  # the benchmarks have more peers


@dataclass(frozen=True)
class Request:
    """A request to evaluate a model. None means the model's own batch for `batch`, every available
    core for `threads`, and float32 for `dtype`. Stage noopt always uses float32; `products` applies
    to stage tuned only. With `ladder`, the rungs of `apps.ladder` replace `stages`."""

    model: str
    device: str = "cpu"
    dtype: str | None = None
    products: str = OWN
    stages: tuple[str, ...] = STAGES
    ladder: bool = False
    trials: int = 0
    minutes: float | None = None
    cluster: str | None = None
    batch: int | None = None
    weights: Path | None = None
    recompile: bool = False
    check: bool = True
    threads: int | None = None
    peers: bool = False
    dump_ir: Path | None = None
    rounds: int = 10

    @property
    def searches(self) -> bool:
        """Whether the request has a budget for a search."""
        return bool(self.trials) or self.minutes is not None

    def rungs(self) -> list[Rung]:
        """Return the stages or rungs to compile and time."""
        if self.ladder:
            return ladder.rungs(self.device, self.searches)
        return ladder.stages(self.stages)


@dataclass
class Stage:
    """A compiled stage, the seconds until it was ready, and whether it came from the cache."""

    executable: Any
    seconds: float
    from_cache: bool


def evaluate(request: Request, progress: Progress | None = None) -> dict[str, Any]:
    """Compile or reload every stage, check parity, time everything; return JSON values.

    Raises UsageError for arguments that cannot be satisfied, EvaluationError if a later step fails.
    A parity mismatch raises no error; the result then has `ok` false.
    """
    report = progress or (lambda done, total, text: None)
    subject = build_subject(request)
    threads = request.threads or available_cores()
    compiled = compile_stages(subject, request, report)
    report(0, 1, "checking parity")
    checked = check_parity(subject, compiled)
    result: dict[str, Any] = {
        "needle": ndl.__version__,
        "date": host.now(),
        "machine": host.describe(threads),
        "model": request.model,
        "device": request.device,
        "dtype": request.dtype,
        "products": request.products,
        "inputs": [{"shape": list(x.shape), "dtype": x.dtype.name} for x in subject.inputs],
        "weights": str(request.weights) if request.weights else None,
        "parameters": sum(value.size for value in subject.state.values()),
        "trials": request.trials,
        "minutes": request.minutes,
        "stages": {
            name: {
                "seconds_to_ready": stage.seconds,
                "from_cache": stage.from_cache,
                "artifact": str(stage.executable.path),
                "tuning": stage.executable.manifest.get("tuning"),
                "parity": checked[name],
            }
            for name, stage in compiled.items()
        },
    }
    if request.ladder:
        steps = {rung.name: rung.step for rung in request.rungs()}
        result["ladder"] = {EAGER: ladder.EAGER_STEP, **steps}
    if is_digits(request.model, subject):
        report(0, 1, "classifying the digits test set")
        result["digits"] = digits_accuracy(subject, compiled)
    result["ok"] = (
        all(entry["ok"] for entry in checked.values())
        and result.get("digits", {"identical": True})["identical"]
    )
    if request.peers:
        result["peers_missing"] = peers.missing(PEERS, subject.kind)
    if result["ok"]:  # the speed of a wrong answer is useless
        allowed = {
            name: checked[name]["tolerance"]
            for name, stage in compiled.items()
            if is_narrow(stage.executable)
        }
        result["timing"] = time_side_by_side(subject, compiled, request, threads, report, allowed)
    return result


def build_subject(request: Request) -> Subject:
    """Return the model with its weights and inputs. Raises UsageError that names a bad argument."""
    try:
        kind = models.find(request.model)
    except ValueError as error:
        raise UsageError(str(error)) from error
    options: dict[str, Any] = dict(kind.options)
    options |= {} if request.batch is None else {"batch": request.batch}
    state = load_weights(request.weights) if request.weights else None
    try:
        model, inputs = build_model(kind.factory, **options, **({"state": state} if state else {}))
    except (ValueError, OSError, ImportError, SyntaxError) as error:
        origin = f"weights {request.weights}" if state else f"model {request.model}"
        raise UsageError(f"{origin}: {error_line(error)}") from error
    if state is not None:
        try:
            model.load_state_dict(state)
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"weights {request.weights}: {error_line(error)}") from error
    model.eval()
    arrays = tuple(x if isinstance(x, np.ndarray) else x.numpy() for x in inputs)
    return Subject(kind, options, model, arrays)


def load_weights(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file. Raises UsageError if it cannot be read."""
    try:
        loaded = ndl.load(path)
    except (OSError, ValueError) as error:
        text = error_line(error)
        raise UsageError(text if str(path) in text else f"weights {path}: {text}") from error
    return {
        name: value if isinstance(value, np.ndarray) else value.numpy()
        for name, value in loaded.items()
    }


def compile_stages(
    subject: Subject, request: Request, report: Progress | None = None
) -> dict[str, Stage]:
    """Return every requested stage or rung by name, compiled or reloaded from the cache."""
    rungs = request.rungs()

    def step(number: int, rung: Rung, text: str | Status) -> None:
        if report is None:
            return
        if isinstance(text, str):  # a message of `compile` may begin with the stage
            text = f"{rung.name}: {text.removeprefix(f'{rung.stage}: ')}"
        report(number, len(rungs), text)

    search = {
        "trials": request.trials,
        "minutes": request.minutes,
        "cluster": request.cluster,
    }
    compiled = {}
    for number, rung in enumerate(rungs):
        step(number, rung, "looking in the cache")
        start = time.perf_counter()
        executable = needle_tvm.compile(
            subject.model,
            *subject.tensors,
            target=request.device,
            stage=rung.stage,
            disable=rung.disable,
            dtype=None if rung.stage == STAGES[0] else request.dtype,
            products=request.products if rung.whole else OWN,
            threads=request.threads,
            recompile=request.recompile,
            check=request.check,
            progress=partial(step, number, rung),
            **(search if rung.searches else {}),
        )
        compiled[rung.name] = Stage(executable, time.perf_counter() - start, executable.from_cache)
        if request.dump_ir is not None:
            request.dump_ir.mkdir(parents=True, exist_ok=True)
            (request.dump_ir / f"{rung.name}.tvmscript").write_text(executable.script)
    return compiled


def check_parity(subject: Subject, compiled: Mapping[str, Stage]) -> dict[str, dict[str, Any]]:
    """Return each stage's largest errors against the eager model in float64, as JSON values."""
    executables = {name: stage.executable for name, stage in compiled.items()}
    rungs = parity.ladder(subject.model, subject.tensors, executables)
    return {rung.stage: {k: _json_value(v) for k, v in asdict(rung).items()} for rung in rungs}


def _json_value(value: Any) -> Any:
    """Return a number as a JSON value. JSON has no infinity, so an unbounded error becomes null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def time_side_by_side(
    subject: Subject,
    compiled: Mapping[str, Stage],
    request: Request,
    threads: int,
    report: Progress | None = None,
    allowed: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Time every stage, the eager model and the peers in one contest, in seconds per call.

    `allowed` maps stages whose matmuls take narrow operands to their allowed errors.
    """

    def step(done: int, total: int, text: str) -> None:
        if report is not None:
            report(done, total, "timing side by side")

    with scratch_folder("needle-eval-") as folder:
        subject.save(folder)
        # On a GPU, a call of the program also copies its inputs. PyTorch's call takes GPU tensors
        # and copies nothing.
        way = "program" if request.device == "cpu" else "artifact"
        contestants = [
            subject.eager(threads, request.device),
            *(subject.compiled(n, stage.executable, threads, way) for n, stage in compiled.items()),
        ]
        if request.peers:
            contestants += subject.peers(PEERS, threads, device=request.device)
        try:
            results = timing.contest(
                contestants,
                rounds=request.rounds,
                check=partial(check_agreement, allowed=allowed or {}),
                progress=step,
            )
        except (TimingError, Disagreement) as error:
            raise EvaluationError(str(error)) from error
    entries = []
    for previous, result in zip((results[0], *results), results, strict=False):
        entry = {**result.to_dict(), "ratio_to_eager": asdict(timing.ratio(result, results[0]))}
        if request.ladder and result.name in compiled:
            entry["ratio_to_previous"] = asdict(timing.ratio(result, previous))
        entries.append(entry)
    return {
        "method": "one process per contestant, alternating blocks; ratio = eager time / its time",
        "rounds": request.rounds,
        "threads": threads,
        "contestants": entries,
    }


def is_digits(name: str, subject: Subject) -> bool:
    """Return whether the model classifies 8x8 digits: 64 features in, 10 classes out."""
    if name != "mlp" or subject.inputs[0].shape[1] != digits.FEATURES:
        return False
    head = subject.state.get("head.weight")
    return head is not None and head.shape[1] == digits.CLASSES


def digits_accuracy(subject: Subject, compiled: Mapping[str, Stage]) -> dict[str, Any]:
    """Return the test accuracy of the eager model and each stage, and whether their predictions are
    identical. That comparison leaves out stages whose matmuls take narrow operands."""
    images, labels = digits.test_set()
    batch = len(subject.inputs[0])
    predictions = {EAGER: digits.predict(subject.model, images, batch)}
    for name, stage in compiled.items():
        predictions[name] = digits.predict(stage.executable, images, batch)
    return {
        "samples": len(labels),
        "accuracy": {name: float((p == labels).mean()) for name, p in predictions.items()},
        "identical": all(
            np.array_equal(predictions[name], predictions[EAGER])
            for name, stage in compiled.items()
            if not is_narrow(stage.executable)
        ),
    }


def is_narrow(executable: Any) -> bool:
    """Return whether an executable's matmuls take rounded operands."""
    return bool(executable.manifest["precision"] != FLOAT32)
