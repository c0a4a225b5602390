"""Compile PyTorch's operators on the sample inputs of PyTorch's tests: `python -m
tests.power.opinfo`.

The samples come from OpInfo in `torch.testing` (which needs `pip install expecttest`). The tool
draws a sample of each operator in float32 and in one other dtype; its tensors are the inputs. It
compiles the sample at a stage that is drawn too, with the checks of `compile_torch`, and calls it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

import needle_tvm
from needle.torch.arrays import tensor_of
from needle_tvm.check.campaign import campaign
from needle_tvm.check.campaign.failures import FAILURES
from needle_tvm.check.campaign.torch.service import serve as _  # noqa: F401  what it imports, and meets once
from needle_tvm.check.campaign.verdicts import RIGHT, WRONG, raised
from needle_tvm.errors import ScheduleWarning
from needle_tvm.tune.measure.workers import Workers
from tests.power.samples import Sample

UNKNOWN = "unknown"  # PyTorch itself gives no values to compare with
_DTYPES = ("float32", "float64", "float16", "int64", "bool")
_UNSET = ("empty", "new_empty")  # their elements may be anything


def serve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Service: judge a sample of an operator; the request seeds the draw."""
    entry, rng = op_db[request["number"]], random.Random(json.dumps(dict(request)))
    torch.manual_seed(request["draw"])
    dtype, stage = getattr(torch, request["dtype"]), rng.choice(["fused", "tuned"])
    samples = list(entry.sample_inputs("cpu", dtype, requires_grad=False))
    where, verdict, what = "", UNKNOWN, ""
    if samples:
        where, verdict, what = _judged(entry, rng.choice(samples), stage)
    return {"verdict": verdict, "where": where, "what": what, "op": entry.formatted_name}


def _judged(entry: Any, sample: Any, stage: str) -> tuple[str, str, str]:
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", ScheduleWarning)
    model = Sample(entry.op, sample).eval()
    leaves = torch.utils._pytree.tree_leaves
    try:
        with torch.no_grad():
            wanted = leaves(model(*(each.clone() for each in model.inputs)))
    except Exception as error:  # the sample's own error
        return "eager", UNKNOWN, str(error).partition("\n")[0]
    try:
        found = leaves(needle_tvm.compile_torch(model, *model.inputs, stage=stage)(*model.inputs))
    except Exception as error:  # whatever is raised is what is reported
        return raised(stage, error)
    if entry.name.startswith(_UNSET):
        return stage, UNKNOWN, ""
    for have, want in zip(found, wanted, strict=True):
        wrong = _differs(have, want) if isinstance(want, torch.Tensor) and want.numel() else None
        if wrong is not None:
            return stage, WRONG, wrong
    return stage, RIGHT, ""


def _differs(have: Any, want: Any) -> str | None:
    """How a result differs from PyTorch's, in words; None if it does not. The compiler's check has
    compared within tight bounds, except random numbers and the choice among equal values."""
    have = tensor_of(have.numpy())
    narrow = want.dtype in (torch.int8, torch.uint8, torch.int16)  # needle's Tensors hold int32
    if have.shape != want.shape or (have.dtype != want.dtype and not narrow):
        return f"{have.dtype} {tuple(have.shape)}, expected {want.dtype} {tuple(want.shape)}"
    if not want.is_floating_point():
        return None
    have, want = have.double(), want.double()
    off = (have - want).nan_to_num(0, 0, 0).abs()
    if bool((off <= 0.05 * want.nan_to_num(0, 0, 0).abs().amax()).all()):
        return None
    return f"off by {float(off.max())}"


def requests(draws: int) -> list[dict[str, Any]]:
    """`draws` requests for each operator in float32 and as many in its other dtypes, in turn."""
    found = []
    for number, entry in enumerate(op_db):
        taken = [name for name in _DTYPES if getattr(torch, name) in entry.supported_dtypes("cpu")]
        for draw in range(draws):
            others = [name for name in taken if name != _DTYPES[0]]
            for dtype in {*taken[:1], *others[(number + draw) % max(1, len(others)) :][:1]}:
                found.append({"number": number, "dtype": dtype, "draw": draw})
    return sorted(found, key=lambda each: (each["draw"], each["number"], each["dtype"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a sample fails."""
    parser = argparse.ArgumentParser(prog="tests.power.opinfo", description=__doc__)
    parser.add_argument("--draws", type=int, default=1, help="of each operator (%(default)s)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/opinfo.jsonl"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    planned, counts = requests(options.draws), Counter[str]()
    with (
        Workers(
            "opinfo",
            "tests.power.opinfo:serve",
            processes=options.processes,
            limits=campaign.LIMITS,
        ) as workers,
        options.out.open("w") as out,
    ):
        for number, outcome in workers.map(planned):
            answer = {**planned[number], **campaign.answer(outcome)}
            counts[answer["verdict"]] += 1
            print(json.dumps(answer), file=out, flush=True)
            if answer["verdict"] in FAILURES:
                print(json.dumps(answer), flush=True)
    print(f"{counts.total()} samples of {len(op_db)} operators: {dict(counts)}")
    return int(any(counts[name] for name in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
