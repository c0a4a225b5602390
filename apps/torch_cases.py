"""Run PyTorch's own operator samples (OpInfo) through `compile_torch`, and count.

`torch.testing` describes some 700 operators with sample inputs. Here a few samples of each, of
float32 and, where the operator takes them, of int64 and bool, become modules: tensors are inputs,
all else is constant, and the variants in place and with `out=` follow. A case is right if the
results are PyTorch's; refused if a sentence says what is not taken; unexported if `torch.export`
itself fails; wrong if a result differs; and a fault after any other error, a crash or no answer.
Without --compiled the translated program is not compiled: only its decompositions are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __name__ == "__main__":  # a script finds modules beside it, not its own package
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from needle_tvm.errors import MismatchError, NeedleTVMError

RIGHT, REFUSED, UNEXPORTED, WRONG, FAULT = "right", "refused", "unexported", "wrong", "fault"
_MOST = 4096  # elements of a sample
_LOOKED_AT = 60  # samples of which some are taken
_SECONDS = 240  # for an operator


class Verdict(NamedTuple):
    """What became of a case: its operator, one of the verdicts, and why if it is not right."""

    name: str
    operator: str
    verdict: str
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of tensors, and its example inputs."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def operators(pattern: str = "") -> list[Any]:
    """PyTorch's descriptions of the operators whose names have the pattern."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if re.search(pattern, name_of(info))]


def name_of(info: Any) -> str:
    """An operator's name, with its variant."""
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


def cases(info: Any, count: int = 3) -> Iterator[Case]:
    """Some cases of an operator: `count` of float32, and one each of other dtypes and variants."""
    import torch

    for dtype in (torch.float32, torch.int64, torch.bool):
        if dtype not in info.dtypes:
            continue
        wanted = count if dtype == torch.float32 else 1
        for number, sample in enumerate(_samples(info, dtype, wanted)):
            where = f"{name_of(info)}[{str(dtype).partition('.')[2]}-{number}]"
            yield _case(where, info.op, sample)
            if number == wanted - 1 and dtype == torch.float32:
                yield from _variants(where, info, sample)


def _samples(info: Any, dtype: Any, count: int) -> list[Any]:
    """Samples of moderate size, from all over the list."""
    import torch

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = islice(info.sample_inputs("cpu", dtype, requires_grad=False), _LOOKED_AT)
        fit = [sample for sample in found if _fits(_tensors(sample))]
    step = max(len(fit) / count, 1)
    return [fit[int(i * step)] for i in range(min(count, len(fit)))]


def _tensors(sample: Any) -> list[Any]:
    import torch

    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _fits(tensors: Sequence[Any]) -> bool:
    import torch

    return all(
        x.layout == torch.strided and not x.is_complex() and 0 < x.numel() <= _MOST for x in tensors
    )


def _case(name: str, operator: Callable[..., Any], sample: Any) -> Case:
    import torch

    leaves, tree = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    inputs = tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))

    def function(*tensors: Any) -> Any:
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        first, args, kwargs = torch.utils._pytree.tree_unflatten(filled, tree)
        return operator(first, *args, **kwargs)

    return Case(name, function, inputs)


def _variants(name: str, info: Any, sample: Any) -> Iterator[Case]:
    """The same sample with the operator in place, and with `out=`."""
    import torch

    in_place = info.inplace_variant
    if in_place is not None and not sample.broadcasts_input:

        def written(first: Any, *args: Any, **kwargs: Any) -> Any:
            return in_place(torch.utils._pytree.tree_map(_copied, first), *args, **kwargs)

        yield _case(f"{name}, in place", written, sample)
    if info.supports_out:

        def into(*args: Any, **kwargs: Any) -> Any:
            shapes = info.op(*args, **kwargs)
            return info.op(
                *args, out=torch.utils._pytree.tree_map(torch.empty_like, shapes), **kwargs
            )

        yield _case(f"{name}, out", into, sample)


def _copied(value: Any) -> Any:
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else value


def judged(info: Any, compiled: bool, count: int = 3) -> list[Verdict]:
    """Judge an operator's cases: all at once, and one by one if that fails."""
    import torch

    runnable, verdicts = [], []
    for case in cases(info, count):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                case.function(*[x.clone() for x in case.inputs])
        except Exception:  # a variant that PyTorch itself refuses
            continue
        runnable.append(case)
    if len(runnable) > 1:
        verdicts = [_judged(name_of(info), _joined(runnable), compiled)]
        if verdicts[0].verdict == RIGHT:
            return [Verdict(case.name, name_of(info), RIGHT) for case in runnable]
    return [_judged(name_of(info), case, compiled) for case in runnable]


def _joined(parts: Sequence[Case]) -> Case:
    def function(*tensors: Any) -> Any:
        given = iter(tensors)
        return [part.function(*islice(given, len(part.inputs))) for part in parts]

    return Case("all", function, tuple(x for part in parts for x in part.inputs))


def _judged(operator: str, case: Case, compiled: bool) -> Verdict:
    import torch

    class Model(torch.nn.Module):
        def forward(self, *tensors: Any) -> Any:
            return case.function(*tensors)

    model = Model().eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = model(*[x.clone() for x in case.inputs])
        try:
            wrong = _difference(model, case.inputs, expected, compiled)
        except MismatchError as error:
            wrong = str(error)
        except NeedleTVMError as error:
            verdict = _refusal(model, case.inputs, error)
            return Verdict(case.name, operator, verdict, str(error))
        except Exception as error:  # whatever it is, it is a fault and is counted
            why = f"{type(error).__name__}: {error}"
            return Verdict(case.name, operator, FAULT, " ".join(why.split())[:400])
    return Verdict(case.name, operator, WRONG if wrong else RIGHT, wrong or "")


def _refusal(model: Any, inputs: Sequence[Any], error: NeedleTVMError) -> str:
    """The verdict on an error: a refusal only if it is a sentence of the package's own."""
    import torch

    from needle_tvm.errors import TranslationError, UsageError
    from needle_tvm.frontend.torch.export import quiet

    if not isinstance(error, (TranslationError, UsageError)):
        return FAULT
    try:
        with quiet():
            torch.export.export(model, tuple(inputs)).run_decompositions()
    except Exception:  # of many types
        return UNEXPORTED
    cause = error.__cause__
    own = cause is None or isinstance(cause, (NeedleTVMError, ValueError, NotImplementedError))
    return REFUSED if own else FAULT


def _difference(model: Any, inputs: Sequence[Any], expected: Any, compiled: bool) -> str | None:
    """What is wrong with the model's results in compiled code, or in its functional program."""
    import torch

    from needle_tvm.frontend.torch.arrays import array
    from needle_tvm.frontend.torch.reference import Reference
    from needle_tvm.frontend.torch.taken import take

    found = _by_compiled_code(model, inputs) if compiled else None
    taken = None if compiled else take(model, inputs, {})
    leaves = torch.utils._pytree.tree_leaves(expected)
    wanted = [array(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if found is not None and len(found) == len(wanted) and all(map(_close, found, wanted)):
        return None
    reference = Reference(taken or take(model, inputs, {}), [array(x) for x in inputs])
    return reference.difference(wanted if found is None else found)


def _by_compiled_code(model: Any, inputs: Sequence[Any]) -> list[Any]:
    import torch

    import needle_tvm
    from needle_tvm.check.campaign.judge import own_cache
    from needle_tvm.frontend.torch.arrays import array
    from needle_tvm.lower.libraries import unoptimized

    with ExitStack() as stack:
        stack.enter_context(own_cache())
        stack.enter_context(unoptimized())
        run = needle_tvm.compile_torch(model, *inputs, stage="noopt", check=False, progress=False)
        leaves = torch.utils._pytree.tree_leaves(run(*inputs))
    tensors = [x for x in leaves if hasattr(x, "numpy")]  # and not None or a number
    return [array(x) if isinstance(x, torch.Tensor) else x.numpy() for x in tensors]


def _close(found: Any, wanted: Any) -> bool:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if not np.issubdtype(wanted.dtype, np.floating):
        return bool(np.array_equal(found, wanted))
    return bool(np.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True))


def sweep(infos: Sequence[Any], compiled: bool, count: int) -> Iterator[list[Verdict]]:
    """The verdicts on each operator, which a process of its own finds."""
    import torch

    torch.set_num_threads(1)  # forked processes would wait for the threads of this one
    _judged("", Case("", lambda x: x + 1, (torch.ones(2),)), compiled=False)  # for the imports
    import needle_tvm.lower.build  # noqa: F401

    context = multiprocessing.get_context("fork")
    for info in infos:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(
            target=lambda info=info, sender=sender: sender.send(judged(info, compiled, count))
        )
        process.start()
        sender.close()
        why = f"no answer in {_SECONDS} s"
        try:
            if receiver.poll(_SECONDS):
                yield receiver.recv()
                continue
        except EOFError:
            process.join()
            why = f"the process died with {process.exitcode}"
        finally:
            process.kill()
            process.join()
        yield [Verdict(name_of(info), name_of(info), FAULT, why)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 unless a case is wrong or a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compiled", action="store_true", help="compile (stage noopt, LLVM unoptimised) and run"
    )
    parser.add_argument("--ops", metavar="REGEX", default="", help="only operators of these names")
    parser.add_argument("--samples", type=int, default=3, help="samples of float32 (default 3)")
    parser.add_argument("--part", metavar="I/N", default="1/1", help="only the I-th of N parts")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON of all verdicts")
    parser.add_argument("-v", action="store_true", help="list all that is not right")
    options = parser.parse_args(arguments)
    part, parts = map(int, options.part.split("/"))
    verdicts: list[Verdict] = []
    for found in sweep(
        operators(options.ops)[part - 1 :: parts], options.compiled, options.samples
    ):
        verdicts += found
        for each in found:
            if each.verdict in (WRONG, FAULT) or (options.v and each.verdict != RIGHT):
                print(f"{each.verdict}: {each.name}: {each.why}", flush=True)
    by_operator: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        by_operator[verdict.operator][verdict.verdict] += 1
    for name, counts in sorted(by_operator.items()):
        if set(counts) != {RIGHT}:
            print(f"{name}: {dict(counts)}")
    totals = Counter(verdict.verdict for verdict in verdicts)
    whole = sum(set(counts) == {RIGHT} for counts in by_operator.values())
    print(
        f"{len(verdicts)} cases: {dict(totals)}; "
        f"{whole} of {len(by_operator)} operators right in all their cases"
    )
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([each._asdict() for each in verdicts], indent=1))
    return 1 if totals[WRONG] or totals[FAULT] else 0


if __name__ == "__main__":
    sys.exit(main())
