"""Judge one program at every stage, on one and two threads: the campaign processes' service."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import needle as ndl
import needle_tvm
from needle.trace import trace
from needle_tvm.artifact.cache import CACHE_VARIABLE
from needle_tvm.check.campaign.draw import draw
from needle_tvm.check.campaign.fenced import fenced
from needle_tvm.check.campaign.program import Program
from needle_tvm.check.campaign.verdicts import (
    REFUSED,
    RIGHT,
    VARIANTS,
    WRONG,
    Failure,
    place,
    raised,
)
from needle_tvm.errors import ScheduleWarning
from needle_tvm.frontend.bounds import Evaluation

OPS, GRADIENT, TORCH = "ops", "gradient", "torch"
KINDS = (OPS, GRADIENT, TORCH)

Variant = tuple[str, int]  # stage and number of threads


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on one of needle's own programs.

    `request` has its `kind` and `seed`, or the program itself as `program`. `variants`, pairs of a
    stage and a number of threads, replaces the default VARIANTS. The answer has the `verdict`,
    `where` it was reached (a stage and its threads, "eager" or "trace"), `what` is wrong, the
    `program`, its `ops` by name and the number of its `steps`.
    """
    if "program" in request:
        program = Program.from_json(request["program"])
    else:
        program = draw(int(request["seed"]), gradient=request["kind"] == GRADIENT)
    where, verdict, what = judged(program.load, request.get("variants", VARIANTS))
    return {
        "verdict": verdict,
        "where": where,
        "what": what,
        "program": program.to_json(),
        "ops": sorted({name for step in program.steps for name in op_names(step.expression)}),
        "steps": len(program.steps),
    }


def op_names(expression: str) -> list[str]:
    """Return the names a step is counted under: its ops, or the expression if it names none."""
    return re.findall(r"ops\.(\w+)", expression) or [expression]


def judged(
    load: Callable[[], tuple[Any, Sequence[Any]]], variants: Sequence[Variant] = VARIANTS
) -> tuple[str, str, str]:
    """Return (where, verdict, text) for a model and its inputs, which `load` makes anew.

    Nothing that is compiled stays in the cache.
    """
    where = "eager"
    try:
        with own_cache():
            model, inputs = load()
            eager = _flat(model(*[ndl.Tensor(x) for x in inputs]))
            where = "trace"
            model, inputs = load()  # without the gradients that the call has left
            tensors = [ndl.Tensor(x) for x in inputs]
            graph = trace(model, *tensors)
            params = {leaf.name: leaf.value.numpy() for leaf in graph.params}
            evaluation = Evaluation(graph, inputs, params)
            where = "eager"
            wrong = evaluation.difference(eager)
            if wrong:
                return where, WRONG, wrong
            for stage, threads, results in _compiled(model, tensors, variants):
                where = place(stage, threads)
                for found in results:
                    wrong = _dtypes_differ(found, eager) or evaluation.difference(found)
                    if wrong:
                        return where, WRONG, wrong
                if any(_bits(x) != _bits(t.numpy()) for x, t in zip(inputs, tensors, strict=True)):
                    return where, WRONG, "an input was written to"
    except Failure as failure:
        return raised(failure.where, failure.error)
    except Exception as error:  # any exception is reported
        return raised(where, error)
    return "", RIGHT, ""


def rerun(
    load: Callable[[], tuple[Any, Sequence[Any]]], variants: Sequence[Variant] = VARIANTS
) -> int:
    """End a failing program's script: print what is wrong; return 1 while anything is."""
    return told(*judged(load, variants))


def rerun_request(request: Mapping[str, Any]) -> int:
    """Like `rerun`, for a request to `serve`."""
    answer = serve(request)
    return told(answer["where"], answer["verdict"], answer["what"])


def told(where: str, verdict: str, what: str) -> int:
    """Print a verdict; return 1 if something is wrong."""
    sys.stdout.write(f"{verdict}{f' at {where}: {what}' if what else ''}\n")
    return int(verdict not in (RIGHT, REFUSED))


@contextmanager
def own_cache() -> Iterator[None]:
    """Use a temporary cache of compiled models, and silence all warnings except failures.

    Random programs cause many warnings. A ScheduleWarning is a failure, and is raised as an error.
    """
    with TemporaryDirectory(prefix="needle-check-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", ScheduleWarning)
        before = os.environ.get(CACHE_VARIABLE)
        os.environ[CACHE_VARIABLE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE_VARIABLE)
            if before is not None:
                os.environ[CACHE_VARIABLE] = before


def _compiled(
    model: Any, tensors: list[Any], variants: Sequence[Variant]
) -> Iterator[tuple[str, int, list[list[Any]]]]:
    """Yield stage, threads, and the results of four calls.

    All calls but the first find used memory. The second passes strided views, the others inputs
    that end or begin next to an inaccessible page.
    """
    calls = [tensors, [_strided(tensor) for tensor in tensors]]
    calls += [[_fenced(tensor, at_end) for tensor in tensors] for at_end in (True, False)]
    for stage, threads in variants:
        try:
            compiled = needle_tvm.compile(
                model, *tensors, stage=stage, threads=threads, recompile=True
            )
            yield stage, threads, [_flat(compiled(*given)) for given in calls]
        except Exception as error:
            raise Failure(place(stage, threads), error) from error


def _strided(tensor: Any) -> Any:
    """Return the same values, not adjacent in memory."""
    with ndl.no_grad():
        return ndl.ops.stack([tensor, tensor], -1)[..., 0]


def _fenced(tensor: Any, at_end: bool) -> Any:
    if tensor.dtype == "bfloat16":  # NumPy's DLPack does not support it
        return tensor
    return ndl.from_dlpack(fenced(tensor.numpy(), at_end))


def _dtypes_differ(
    found: Sequence[np.ndarray[Any, Any]], eager: Sequence[np.ndarray[Any, Any]]
) -> str | None:
    dtypes, wanted = ([each.dtype.name for each in arrays] for arrays in (found, eager))
    return None if dtypes == wanted else f"results of {dtypes}, expected {wanted}"


def _bits(array: np.ndarray[Any, Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _flat(result: Any) -> list[np.ndarray[Any, Any]]:
    parts = result if isinstance(result, tuple) else (result,)
    return [np.array(part.numpy()) for part in parts]
