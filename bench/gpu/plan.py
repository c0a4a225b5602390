"""The measurements on a GPU, most important first. This module uses only the standard library.

A contest is compiled into the bundle on a machine without a GPU (`bundle`), and measured on a
machine without a compiler (`measure`). There are four steps:

1. Does it work? Check arrays on the device, the eager MLP and the compiled MLP.
2. The kernel lab's ladders of convolutions and matmuls, at their own sizes.
3. The three models of tvm_eval.py, in three precisions and at two batch sizes.
4. A training step, attention, large matmuls, and the other ladders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODELS = ("mlp", "conv", "transformer")
OWN_BATCH, LARGE_BATCH = 8, 256
SMOKE = "smoke"
CUBLAS = "needle tuned, cuBLAS"

_OWN = {"needle tuned": {"stage": "tuned"}}
_TUNED = {
    CUBLAS: {"stage": "tuned", "products": "cublas"},
    **_OWN,
}  # peers are compared with the last one
_STAGES = {f"needle {stage}": {"stage": stage} for stage in ("noopt", "fused")}
TORCH = ("torch", "torch-channels-last")
_LARGEST_RUNGS = (  # for a matmul of 4096: the lower rungs take seconds and show nothing new
    *("register_tile", "vector_loads", "double_buffer", "large_tiles", "warp_tiles"),
    *("async_copies", "tensor_cores", "tensor_core_tiles", "tensor_core_padded"),
    *("tensor_core_pipeline", "tensor_core_mma"),
)
# Sizes of a rehearsal, at which an emulated GPU takes seconds.
_SMALL_SIZES = {
    "conv1d": {"M": 70, "N": 8},
    "depthwise": {"B": 1, "C": 2, "H": 6, "W": 9, "K": 3},
    "separable": {"B": 1, "C": 2, "H": 6, "W": 9, "K": 3, "O": 3},
    "gemm": {"M": 128, "N": 128, "K": 64},
    "gelu_matmul": {"M": 64, "N": 64, "K": 64},
    "vector_add": {"N": 2048},
}
_SMALL_OPTIONS = {
    "mlp": {"sizes": [24] * 6},
    "attention": {"heads": 2, "length": 9, "size": 8},
    "matmul": {"columns": 12, "terms": 20},
}


@dataclass(frozen=True)
class Contest:
    """One contest: `kind` is a function of `measure` (or "smoke"), `subject` its keywords.

    `artifacts` are the keywords of needle_tvm.compile for each of our compiled contestants;
    `seconds` is the contest's time limit.
    """

    name: str
    step: int
    kind: str
    subject: Mapping[str, Any]
    seconds: float
    artifacts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def contests(small: bool = False) -> dict[str, Contest]:
    """Return all contests by name, in order; `small` ones for a rehearsal."""
    found = [
        Contest(SMOKE, 1, SMOKE, _model("mlp", OWN_BATCH, small), 120, _STAGES | _OWN),
        _ladder("conv1d", 2, small),
        _ladder("depthwise", 2, small),
        _ladder("gemm", 2, small),
        _ladder("gemm", 2, small, 2048),
        *(_contest(model, OWN_BATCH, "float32", small) for model in MODELS),
        *(_contest(model, LARGE_BATCH, "bfloat16", small) for model in MODELS),
        *(_contest(model, LARGE_BATCH, "tf32", small) for model in MODELS),
        *(_contest(model, LARGE_BATCH, "float32", small) for model in MODELS),
        *(_contest(model, OWN_BATCH, "tf32", small) for model in MODELS),
        *(_contest(model, OWN_BATCH, "bfloat16", small) for model in MODELS),
        _training(OWN_BATCH, small),
        Contest(
            "attention",
            4,
            "model",
            {**_model("attention", OWN_BATCH, small), "peers": ("torch",)},
            60,
            _OWN,
        ),
        _ladder("gemm", 4, small, 4096, _LARGEST_RUNGS),
        _training(LARGE_BATCH, small),
        *(_ladder(name, 4, small) for name in ("gelu_matmul", "separable", "vector_add")),
    ]
    return {contest.name: contest for contest in found}


def chosen(names: Iterable[str] | None, plan: Mapping[str, Contest]) -> dict[str, Contest]:
    """Return a plan's contests with these names or step numbers, in order; all if `names` is None.

    Raises ValueError for an unknown name.
    """
    if names is None:
        return dict(plan)
    wanted = list(names)
    steps = sorted({str(contest.step) for contest in plan.values()})
    for name in wanted:
        if name not in plan and name not in steps:
            raise ValueError(f"{name!r} is not a contest or step: {', '.join((*steps, *plan))}")
    return {
        name: contest
        for name, contest in plan.items()
        if name in wanted or str(contest.step) in wanted
    }


def _model(name: str, batch: int, small: bool) -> dict[str, Any]:
    options = _SMALL_OPTIONS.get(name, {}) if small else {}
    return {"name": name, "batch": 2 if small else batch, "options": options}


def _contest(name: str, batch: int, precision: str, small: bool) -> Contest:
    """Return a model's contest. torch.compile tunes itself, which takes minutes, for the two most
    important batch sizes; for the others it runs in its default mode."""
    first = (batch, precision) == (OWN_BATCH, "float32")
    longest = first or (batch, precision) == (LARGE_BATCH, "bfloat16")
    compiled = ("torch-compile-plain", "torch-compile") if longest else ("torch-compile-default",)
    artifacts = {**(_STAGES if first else {}), **_TUNED}
    subject = {**_model(name, batch, small), "precision": precision}
    tail = "" if precision == "float32" else f"-{precision}"
    return Contest(
        f"{name}-{batch}{tail}",
        3,
        "model",
        {**subject, "peers": (*TORCH, *compiled)},
        180 if longest else 60,
        {title: {**options, "dtype": precision} for title, options in artifacts.items()}
        if precision != "float32"
        else artifacts,
    )


def _training(batch: int, small: bool) -> Contest:
    return Contest(f"training-{batch}", 4, "training", _model("conv", batch, small), 60)


def _ladder(
    name: str, step: int, small: bool, extent: int | None = None, rungs: tuple[str, ...] = ()
) -> Contest:
    """Return the contest of a lab ladder, at its own size or a square one. A matmul's ladder is
    compared with needle's own compiled matmul and with cuBLAS."""
    size = dict.fromkeys("MNK", extent) if extent else {}
    if small:
        size = _SMALL_SIZES[name]
    subject: dict[str, Any] = {"name": name, "size": size, "rungs": list(rungs) or None}
    artifacts: Mapping[str, Any] = {}
    if name == "gemm":
        shape = size or {"M": 1024, "N": 512, "K": 2048}
        options = {"columns": shape["N"], "terms": shape["K"]}
        subject["case"] = {"name": "matmul", "batch": shape["M"], "options": options}
        artifacts = _TUNED
    tail = f"-{extent}" if extent else ""
    return Contest(f"lab-{name}{tail}", step, "ladder", subject, 90, artifacts)
