"""Load PyTorch's operators on the sample inputs of PyTorch's tests: `python -m
tests.power.torch_samples [NAMES ...]`.

The samples come from OpInfo in `torch.testing` (which needs `pip install expecttest`). Each is
loaded by `needle.torch.load` and run eagerly by needle, or with --stage compiled by
`compile_torch`, and compared with PyTorch. Prints for each operator and dtype how many were right,
refused and wrong, and the first reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db

import needle as ndl
import needle.torch
import needle_tvm
from needle.errors import UnsupportedError
from needle.torch.arrays import array_of
from needle.torch.oracle import is_close
from needle_tvm.errors import TranslationError
from needle_tvm.stages import STAGES
from tests.power.samples import Sample

DTYPES = ("float32", "int64", "bool", "bfloat16")
_UNSET = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted")
_PLACING = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1}  # where their argument `dim` is


def judged(entry: Any, sample: Any, stage: str | None = None) -> tuple[str, str]:
    """(verdict, reason): "right", "refused", "wrong", "error", "random" (a traced model would give
    the same numbers at each call, and is refused) or "unknown"."""
    model = Sample(entry.op, sample).eval()
    try:
        wanted = _results(model)
    except Exception as error:  # the sample's own error
        return "unknown", str(error).partition("\n")[0]
    is_unset = entry.name.startswith(_UNSET)
    try:
        found = _found(model, stage, check=not is_unset)
    except (UnsupportedError, TranslationError) as error:
        reason = str(error).partition("\n")[0]
        return "random" if "draws random numbers" in reason else "refused", reason
    except Exception as error:  # whatever is raised is what is reported
        kind = "wrong" if "differs from PyTorch's" in str(error) else "error"
        return kind, f"{type(error).__name__}: {error}".partition("\n")[0]
    if is_unset:
        return "right", ""
    expected = [array_of(each) for each in wanted]
    results = [np.asarray(each.numpy()) for each in found]
    if len(results) != len(expected):
        return "wrong", f"{len(results)} results, expected {len(expected)}"
    exact = _in_float64(model, expected)
    for number, (have, want, wide) in enumerate(zip(results, expected, exact, strict=True), 1):
        is_like = have.shape == want.shape and have.dtype == want.dtype
        if entry.name in _PLACING and number == len(results) and is_like:
            # Of equal elements, any may be the one that is placed.
            x, axis = array_of(model.inputs[0]), _axis(entry.name, sample)
            have, want = (_at(x, places, axis) for places in (have, want))
            wide = want
        if not is_close(have, want) and not is_close(have, wide):
            return "wrong", f"{have.reshape(-1)[:4]} expected {want.reshape(-1)[:4]}"
    return "right", ""


def _found(model: Any, stage: str | None, check: bool) -> list[Any]:
    """The results by needle, run eagerly or compiled."""
    if stage is not None:
        compiled = needle_tvm.compile_torch(model, *model.inputs, stage=stage, check=check)
        return torch.utils._pytree.tree_leaves(compiled(*model.inputs))
    loaded = needle.torch.load(model, *model.inputs, check=check)
    with ndl.no_grad():
        return loaded.functional([array_of(each) for each in model.inputs])[0]


def _results(model: Any) -> list[Any]:
    """The tensors that PyTorch returns."""
    with torch.no_grad():
        found = torch.utils._pytree.tree_leaves(model(*(each.clone() for each in model.inputs)))
    return [each for each in found if isinstance(each, torch.Tensor)]


def _axis(name: str, sample: Any) -> int:
    """The axis along which a sample of an operator of _PLACING places elements."""
    given = sample.args[_PLACING[name] :]
    return int(sample.kwargs.get("dim", given[0] if given else -1))


def _at(x: Any, places: Any, axis: int) -> Any:
    if not x.ndim:
        return x.reshape(-1)[places]
    places = places if places.ndim == x.ndim else np.expand_dims(places, axis)
    return np.take_along_axis(x, places, axis)


def _in_float64(model: Any, expected: Sequence[Any]) -> list[Any]:
    """PyTorch's results of a sample in float64, rounded: its own halves need not be the nearest."""
    inputs = [each.double() if each.is_floating_point() else each for each in model.inputs]
    try:
        with torch.no_grad():
            result = torch.utils._pytree.tree_leaves(model(*inputs))
    except (RuntimeError, TypeError, ValueError):
        return list(expected)
    found = [array_of(each) for each in result if isinstance(each, torch.Tensor)]
    return [new.astype(old.dtype) for new, old in zip(found, expected, strict=True)]


def samples(entry: Any, dtype: str, most: int) -> Iterator[Any]:
    """The first samples of an operator in a dtype."""
    torch.manual_seed(0)
    return islice(entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False), most)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a sample is wrong."""
    parser = argparse.ArgumentParser(prog="tests.power.torch_samples", description=__doc__)
    parser.add_argument("names", nargs="*", help="regular expressions; all without any")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--most", type=int, default=8, help="samples of each (%(default)s)")
    parser.add_argument("--stage", choices=STAGES, help="compile them; without, needle runs them")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th operator")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    first, step = map(int, options.part.split("/"))
    totals: dict[str, Counter[str]] = {}
    lines = []
    for entry in [*op_db][first - 1 :: step]:
        if options.names and not any(re.fullmatch(name, entry.name) for name in options.names):
            continue
        for dtype in options.dtypes.split(","):
            if getattr(torch, dtype) not in entry.supported_dtypes("cpu"):
                continue
            counts, reasons = Counter[str](), {}
            try:
                drawn = [*samples(entry, dtype, options.most)]
            except Exception as error:  # a sample that PyTorch cannot make
                counts["unknown"] += 1
                reasons["unknown"] = str(error)
                drawn = []
            for sample in drawn:
                verdict, reason = judged(entry, sample, options.stage)
                counts[verdict] += 1
                reasons.setdefault(verdict, reason)
            totals.setdefault(dtype, Counter()).update(counts)
            line = {"op": entry.formatted_name, "dtype": dtype, **counts}
            line["reasons"] = {k: v[:300] for k, v in reasons.items() if k != "right"}
            lines.append(line)
            print(json.dumps(line), flush=True)
    for dtype, counts in totals.items():
        print(dtype, dict(counts))
    if options.out is not None:
        options.out.write_text("\n".join(map(json.dumps, lines)))
    return int(any(counts["wrong"] for counts in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
