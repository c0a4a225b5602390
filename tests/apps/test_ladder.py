"""The rungs of tvm_eval.py --ladder: each is the one before and one step; all compute the same."""

import itertools
import json
import textwrap

import pytest

pytest.importorskip("tvm", reason="needs the [tvm] extra")

from apps import evaluation, ladder
from needle_tvm.lower import pipeline
from needle_tvm.stages import STAGES

CPU = ["noopt", "fused", "packed", "scheduled", "merged"]
GPU = ["noopt", "fused", "packed", "scheduled"]
# A GPU's pipelines all have one of these, since it runs no loops as they are written.
SCHEDULES = {"one_thread_each", "by_default", "schedule"}


def enabled(rung, kind):
    """The names of the passes and rules that a rung uses."""
    names = set(pipeline.switches(rung.stage, kind))
    assert set(rung.disable) <= names, f"{rung.name} disables what its stage does not have"
    return names - set(rung.disable)


@pytest.mark.parametrize(("device", "kind", "names"), [("cpu", "llvm", CPU), ("cuda", "cuda", GPU)])
def test_each_rung_is_the_one_before_and_one_step(device, kind, names):
    rungs = ladder.rungs(device, searches=False)
    assert [rung.name for rung in rungs] == names
    assert all(rung.step for rung in rungs) and len({rung.step for rung in rungs}) == len(rungs)
    left_aside = SCHEDULES if kind == "cuda" else set()
    passes = {rung.name: enabled(rung, kind) - left_aside for rung in rungs}
    for lower, higher in itertools.pairwise(names):
        assert passes[lower] < passes[higher], (lower, higher)
    added = {high: passes[high] - passes[low] for low, high in itertools.pairwise(names)}
    assert {"FuseOps", "FuseTIR"} <= added["fused"]
    assert {"lift_parameter_work", "fold_scale"} <= added["packed"]
    assert not added["packed"] & {"schedule", "merge_kernels"}
    if kind == "llvm":
        assert "pack_weights" in added["packed"]
        assert added["scheduled"] == {"schedule"} and added["merged"] == {"merge_kernels"}
    else:  # its rules
        assert added["scheduled"] == set(rungs[-2].disable)
    assert rungs[-1].whole and rungs[-1].stage == STAGES[-1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_budget_adds_the_search_as_the_last_rung(device):
    *lower, last = ladder.rungs(device, searches=True)
    assert lower == ladder.rungs(device, searches=False)
    assert (last.name, last.stage, last.disable) == ("searched", STAGES[-1], ())
    assert [rung.searches for rung in (*lower, last)] == [False] * len(lower) + [True]


@pytest.mark.parametrize(
    ("budget", "last"), [({}, "merged"), ({"trials": 4}, "searched"), ({"minutes": 1}, "searched")]
)
def test_a_request_has_stages_or_rungs(budget, last):
    request = evaluation.Request("mlp", ladder=True, **budget)
    assert request.rungs()[-1].name == last
    request = evaluation.Request("mlp", stages=("fused", "tuned"), **budget)
    assert request.rungs() == [
        ladder.Rung("fused", "fused"),
        ladder.Rung("tuned", "tuned", searches=True),
    ]


OWN = """
    import numpy as np
    from needle import nn

    def make(batch=2):
        layers = nn.LSTM(6, 5), nn.Linear(5, 3)

        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm, self.head = layers

            def forward(self, x):
                y, _ = self.lstm(x)
                return self.head(y[-1]).tanh()

        return Own(), np.ones((4, batch, 6), np.float32)
"""


@pytest.mark.parametrize(
    "model",
    [
        "mlp",
        "own",
        pytest.param("conv", marks=pytest.mark.slow),
        pytest.param("transformer", marks=pytest.mark.slow),
    ],
)
def test_every_rung_computes_what_the_model_does(model, tmp_path, cache_dir, monkeypatch):
    monkeypatch.setenv("NEEDLE_CACHE_DIR", str(cache_dir))
    if model == "own":
        (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
        model = f"{tmp_path / 'own.py'}:make"
    request = evaluation.Request(model, ladder=True, batch=2)
    subject = evaluation.build_subject(request)
    compiled = evaluation.compile_stages(subject, request)
    assert list(compiled) == CPU
    for name, found in evaluation.check_parity(subject, compiled).items():
        assert found["ok"] and found["max_relative"] < 1e-5, (name, found)
    scripts = [stage.executable.script for stage in compiled.values()]
    assert len(set(scripts[:-1])) == len(scripts) - 1  # merged: only where there is what to merge


@pytest.mark.slow
def test_the_ladder_as_a_command(run_app, tmp_path):
    done = run_app(
        *("tvm_eval.py", "-m", "mlp", "--ladder", "--batch", "2", "--rounds", "1"),
        *("--out", tmp_path, "--dump-ir", tmp_path / "ir"),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "mlp-cpu-ladder.json").read_text())
    assert result["ok"] and list(result["stages"]) == CPU
    assert list(result["ladder"]) == ["needle eager", *CPU]
    assert all(stage["parity"]["ok"] for stage in result["stages"].values())
    entries = {each["name"]: each for each in result["timing"]["contestants"]}
    assert list(entries) == ["needle eager", *CPU]
    for lower, higher in itertools.pairwise(entries):
        before, after = entries[lower]["median"], entries[higher]["median"]
        assert entries[higher]["ratio_to_previous"]["median"] == pytest.approx(before / after)
    assert "ratio_to_previous" not in entries["needle eager"]
    assert sorted(path.stem for path in (tmp_path / "ir").iterdir()) == sorted(CPU)
    for rung in ladder.rungs("cpu", searches=False):
        (line,) = [each for each in done.stdout.splitlines() if each.startswith(rung.name)]
        assert rung.step in line
        # Progress is on stderr alone.
        assert f"{rung.name}: looking in the cache" in done.stderr.splitlines()
    assert "looking" not in done.stdout and "compiling" not in done.stdout
