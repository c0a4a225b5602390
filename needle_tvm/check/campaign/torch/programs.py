"""Judge PyTorch programs, compiled by `compile_torch`, against PyTorch's own results.

`torch.service` offers `serve` as a service. `recipes` draws the programs, and `frontend.bounds`
decides which errors are acceptable.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from needle.torch.arrays import array_of
from needle.torch.loading import Loaded, loaded
from needle_tvm.check.campaign import verdicts
from needle_tvm.check.campaign.fenced import fenced
from needle_tvm.check.campaign.judge import own_cache, told
from needle_tvm.check.campaign.torch.draw import TorchProgram
from needle_tvm.check.campaign.torch.recipes import draw
from needle_tvm.compiler.compiler import compile_source
from needle_tvm.compiler.request import request
from needle_tvm.compiler.torch_models import loaded_source, traced
from needle_tvm.errors import ScheduleWarning
from needle_tvm.frontend.bounds import Evaluation


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on the program of a `seed`, or on a given `program`; see `judge.serve`."""
    with own_cache(), verdicts.code(request):
        return judged(request)


def rerun_request(request: Mapping[str, Any]) -> int:
    """Judge a failing program at the end of its script, like `judge.rerun_request`."""
    answer = serve(request)
    return told(answer["where"], answer["verdict"], answer["what"])


def judged(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return `serve`'s answer; compiled code goes to the current cache folder."""
    import torch

    warnings.simplefilter("ignore")
    warnings.simplefilter("error", ScheduleWarning)
    torch.set_num_threads(1)  # PyTorch's threads and TVM's slow each other down
    if "program" in request:
        program = TorchProgram.from_json(request["program"])
    else:
        program = draw(int(request["seed"]))
    variants = request.get("variants", verdicts.VARIANTS)
    where, verdict, what = _judged(torch, program, variants)
    return {
        "verdict": verdict,
        "where": where,
        "what": what,
        "program": program.to_json(),
        "ops": program.operations(),
        "steps": len(program.steps),
    }


def _judged(
    torch: Any, program: TorchProgram, variants: Sequence[tuple[str, int]]
) -> tuple[str, str, str]:
    where = "eager"
    try:
        model, inputs = program.load()
        with torch.no_grad():
            expected = model(*inputs)
        where = "load"
        found = loaded(model, _examples(torch, model, inputs), {})
        graph = traced(found)
        params = {name: array.numpy() for name, array in graph.weights.values().items()}
        reference = Evaluation(graph, [array_of(x) for x in inputs], params)
        where = "loaded"
        wrong = _difference(torch, reference, expected, expected)
        if wrong:
            return where, verdicts.WRONG, wrong
        for stage, threads, results in _compiled(found, inputs, variants):
            where = verdicts.place(stage, threads)
            for result in results:
                wrong = _difference(torch, reference, expected, result)
                if wrong:
                    return where, verdicts.WRONG, wrong
    except verdicts.Failure as failure:
        return verdicts.raised(failure.where, failure.error)
    except Exception as error:  # any exception is reported
        return verdicts.raised(where, error)
    return "", verdicts.RIGHT, ""


def _examples(torch: Any, model: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return examples to compile a model for, with one tensor for all inputs of the same kind.

    Calls with other inputs then show that the code does not depend on the examples' values. Returns
    the inputs themselves if the model rejects these examples.
    """
    alike: dict[Any, Any] = {}
    examples = tuple(alike.setdefault((x.shape, x.stride(), x.dtype), x) for x in inputs)
    try:
        with torch.no_grad():
            model(*examples)
    except Exception:  # an index may now be out of range, a variance negative
        return inputs
    return examples


def _difference(torch: Any, reference: Evaluation, expected: Any, found: Any) -> str | None:
    """Return what is wrong with a result (its nesting or one of its tensors); None if it is
    right."""
    flatten = torch.utils._pytree.tree_flatten
    (wanted, structure), (tensors, nested) = flatten(expected), flatten(found)
    if nested != structure:
        return f"a result nested as {nested}, expected {structure}"
    fixed = [i for i, each in enumerate(wanted) if not isinstance(each, torch.Tensor)]
    for i in fixed:
        if tensors[i] is not wanted[i] and tensors[i] != wanted[i]:
            return f"result {i}: {tensors[i]!r}, expected {wanted[i]!r}"
    tensors = [x for i, x in enumerate(tensors) if i not in fixed]
    return reference.difference([_array(each) for each in tensors])


def _array(value: Any) -> Any:
    """Return a result of PyTorch or of compiled code as a NumPy array."""
    is_torchs = type(value).__module__.partition(".")[0] == "torch"
    return array_of(value) if is_torchs else value.numpy()


def _compiled(
    found: Loaded, inputs: tuple[Any, ...], variants: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, int, list[Any]]]:
    """Yield stage, threads, and the results of three calls.

    The last two run on memory that earlier calls have used, with inputs that end or begin next to
    an inaccessible page.
    """
    calls = [inputs, *([_fenced(x, at_end) for x in inputs] for at_end in (True, False))]
    for stage, threads in variants:
        try:
            asked = request(stage=stage, threads=threads, recompile=True, check=False)
            compiled = compile_source(loaded_source(found, asked), asked)
            yield stage, threads, [compiled(*given) for given in calls]
        except Exception as error:
            raise verdicts.Failure(verdicts.place(stage, threads), error) from error


def _fenced(x: Any, at_end: bool) -> Any:
    import torch

    narrow = x.dtype == torch.bfloat16  # NumPy does not have it
    array = x.detach().contiguous()
    array = (array.view(torch.int16) if narrow else array).numpy()
    found = torch.from_numpy(fenced(array, at_end))
    return found.view(x.dtype) if narrow else found
