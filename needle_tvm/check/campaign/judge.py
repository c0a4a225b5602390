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
from needle_tvm.cache import CACHE_VARIABLE
from needle_tvm.check.campaign.draw import draw, draw_with_dims
from needle_tvm.check.campaign.fenced import fenced
from needle_tvm.check.campaign.program import Program
from needle_tvm.check.campaign.verdicts import (
    REFUSED,
    RIGHT,
    VARIANTS,
    WRONG,
    Failure,
    code,
    place,
    raised,
)
from needle_tvm.errors import ScheduleWarning
from needle_tvm.frontend.bounds import Evaluation

OPS, GRADIENT, DIMS, TORCH, ONNX = "ops", "gradient", "dims", "torch", "onnx"
KINDS = (OPS, GRADIENT, DIMS, TORCH, ONNX)

Variant = tuple[str, int]  # stage and number of threads


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on one of needle's own programs.

    `request` has the program's `kind` and `seed`, or the program itself as `program`. `variants`,
    pairs of a stage and a number of threads, replaces the default VARIANTS, and `quick` leaves out
    LLVM's optimisations. The answer has the `verdict`, the place `where` it was reached (a stage
    and its threads, "eager" or "trace"), the fault (`what`), the `program`, the names of its `ops`,
    the numbers of its `steps` and `dims`, and the reasons why steps were `undrawn` because of dims.
    """
    if "program" in request:
        program = Program.from_json(request["program"])
    elif request["kind"] == DIMS:
        program = draw_with_dims(int(request["seed"]))
    else:
        program = draw(int(request["seed"]), gradient=request["kind"] == GRADIENT)
    every: Sequence[tuple[str, int]] = VARIANTS
    if program.dims:  # tuned for one or two threads, not for both
        every = (*VARIANTS[:2], VARIANTS[2 + len(program.steps) % 2])
    variants = request.get("variants", every)
    with code(request):
        return answer(program, *judged(program.load, variants, *program.at_sizes()))


def answer(program: Program, where: str, verdict: str, what: str) -> dict[str, Any]:
    """Return the answer of `serve`."""
    return {
        "verdict": verdict,
        "where": where,
        "what": what,
        "program": program.to_json(),
        "ops": sorted({name for step in program.steps for name in op_names(step.expression)}),
        "steps": len(program.steps),
        "dims": len(program.dims),
        "undrawn": program.undrawn,
    }


def op_names(expression: str) -> list[str]:
    """Return the names that a step is counted under: its ops, or the expression if it has none."""
    return re.findall(r"ops\.(\w+)", expression) or [expression]


def judged(
    load: Callable[[], tuple[Any, Sequence[Any]]],
    variants: Sequence[Variant] = VARIANTS,
    dims: Mapping[Any, Any] | None = None,
    others: Sequence[Sequence[Any]] = (),
) -> tuple[str, str, str]:
    """Return (where, verdict, text) for a model and its inputs; each call of `load` creates both.

    The code is compiled at `variants`. With `dims`, its results are also compared for the inputs
    `others`, which have other sizes. No compiled code stays in the cache.
    """
    where = "eager"
    try:
        with own_cache():
            model, inputs = load()
            sized = []
            for arrays in (inputs, *others):
                where = "eager"
                eager = flat(load()[0](*[ndl.Tensor(x) for x in arrays]))
                where = "trace"
                wanted = Wanted(load()[0], arrays, eager)
                where = "eager"
                wrong = wanted.difference(eager)
                if wrong:
                    return where, WRONG, wrong
                sized.append(wanted)
            where = "trace"
            trace(model, *sized[0].tensors, dims=dims)
            for stage, threads, results in _compiled(model, sized, variants, dims):
                where = place(stage, threads)
                for wanted, found in results:
                    wrong = wanted.difference(found)
                    if wrong:
                        return where, WRONG, wrong
            if any(wanted.were_written() for wanted in sized):
                return where, WRONG, "an input was written to"
    except Failure as failure:
        return raised(failure.where, failure.error)
    except Exception as error:  # any exception is reported
        return raised(where, error)
    return "", RIGHT, ""


class Wanted:
    """Inputs of a model, and the results expected for them."""

    def __init__(self, model: Any, arrays: Sequence[Any], eager: Sequence[Any]) -> None:
        self._arrays, self._eager = arrays, eager
        self.tensors = [ndl.Tensor(x) for x in arrays]
        graph = trace(model, *self.tensors)
        params = {leaf.name: leaf.value.numpy() for leaf in graph.params}
        self._evaluation = Evaluation(graph, arrays, params)

    def difference(self, found: Sequence[np.ndarray[Any, Any]]) -> str | None:
        """Return what is wrong with results; None if they are right."""
        wrong = _dtypes_differ(found, self._eager) or self._evaluation.difference(found)
        return f"{wrong}, for inputs of {[x.shape for x in self._arrays]}" if wrong else None

    def were_written(self) -> bool:
        """Return whether the inputs have changed."""
        pairs = zip(self._arrays, self.tensors, strict=True)
        return any(_bits(x) != _bits(tensor.numpy()) for x, tensor in pairs)


def rerun(
    load: Callable[[], tuple[Any, Sequence[Any]]],
    variants: Sequence[Variant] = VARIANTS,
    dims: Mapping[Any, Any] | None = None,
    others: Sequence[Sequence[Any]] = (),
) -> int:
    """Judge a failing program at the end of its script: print the fault; return 1 until it is
    fixed."""
    return told(*judged(load, variants, dims, others))


def rerun_request(request: Mapping[str, Any]) -> int:
    """Judge a failing program as `rerun` does, but from a request to `serve`."""
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
    model: Any,
    sized: Sequence[Wanted],
    variants: Sequence[Variant],
    dims: Mapping[Any, Any] | None,
) -> Iterator[tuple[str, int, list[tuple[Wanted, list[Any]]]]]:
    """Yield stage, threads, and the results of calls, each with the expected results.

    The first inputs are passed unchanged, as strided views, and next to an inaccessible page (once
    ending and once beginning at the page). Inputs of other sizes are passed unchanged and ending at
    the page. All calls but the first run on memory that earlier calls have used.
    """
    first, *others = sized
    calls = [(first, first.tensors), (first, [_strided(tensor) for tensor in first.tensors])]
    calls += [(each, each.tensors) for each in others]
    fences = [(first, False), *((each, True) for each in sized)]
    calls += [(each, [_fenced(x, at_end) for x in each.tensors]) for each, at_end in fences]
    for stage, threads in variants:
        try:
            compiled = needle_tvm.compile(
                model, *first.tensors, stage=stage, threads=threads, recompile=True, dims=dims
            )
            yield stage, threads, [(each, flat(compiled(*given))) for each, given in calls]
        except Exception as error:
            raise Failure(place(stage, threads), error) from error


def _strided(tensor: Any) -> Any:
    """Return a tensor with the same values, which are not adjacent in memory."""
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


def flat(result: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of a call as arrays."""
    parts = result if isinstance(result, tuple) else (result,)
    return [np.array(part.numpy()) for part in parts]
