"""The lessons: short, and each model learns, is exported, and runs without needle."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests import ROOT

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

GALLERY = ROOT / "gallery"
HELPERS = ("common", "run_all")
SCRIPTS = sorted(p.stem for p in GALLERY.glob("*.py") if p.stem not in HELPERS)
RUNS = [(name,) for name in SCRIPTS if name != "text"]
RUNS += [("text", "--cell", "lstm"), ("text", "--cell", "gru")]


def run(lesson, out, *options, timeout=540):
    script, *choices = lesson
    environment = {**os.environ, "NEEDLE_CACHE_DIR": str(out / "cache")}
    return subprocess.run(
        [sys.executable, str(GALLERY / f"{script}.py"), *choices, "--out", str(out), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize("wrong", [1.001, np.nan])
def test_a_library_that_differs_from_the_model_is_refused(load, monkeypatch, tmp_path, wrong):
    common = load("common")
    lesson = object.__new__(common.Lesson)
    lesson.name = "planted"
    served = np.ones(3, np.float32)
    monkeypatch.setattr(subprocess, "run", lambda command, check: np.savez(command[-1], served))

    def difference():
        return lesson._difference(tmp_path, lambda: common.ndl.ones(3), [])

    assert difference() == 0
    served[1] = wrong
    with pytest.raises(SystemExit, match="planted: the library differs: 1 of 3"):
        difference()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_lesson_is_short_and_names_its_source(name):
    text = (GALLERY / f"{name}.py").read_text()
    assert len(text.splitlines()) < 100
    assert "\nSource: " in text
    assert "\nMeasured: " in text


def test_all_lessons_are_run(load):
    assert set(load("run_all").LESSONS) == set(RUNS)


# Trained for 14 to 120 seconds, on two cores: in CI for a few steps.
LONG = ("text", "state_space", "vit", "gan", "diffusion")


@pytest.mark.parametrize(
    ("lesson", "options"),
    [
        *(
            pytest.param(run, (), marks=pytest.mark.long if run[0] in LONG else pytest.mark.slow)
            for run in RUNS
        ),
        *(
            pytest.param(run, ("--steps", "5"), marks=pytest.mark.slow)
            for run in RUNS
            if run[0] in LONG
        ),
    ],
    ids=str,
)
def test_a_model_learns_and_runs_without_needle(lesson, options, tmp_path):
    done = run(lesson, tmp_path, *options)
    assert done.returncode == 0, done.stderr
    (results,) = tmp_path.glob("*.json")
    found = json.loads(results.read_text())
    assert found["beats_baseline"] or options, found
    assert found["max_difference"] < 1e-3
    assert (tmp_path / f"{results.stem}.png").stat().st_size > 1000


@pytest.mark.slow
def test_two_runs_from_one_seed_are_equal(tmp_path):
    scores = []
    for out in (tmp_path / "a", tmp_path / "b"):
        done = run(("mlp",), out, "--steps", "50", "--seed", "3", "--quiet")
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        scores.append(json.loads((out / "mlp.json").read_text())["score"])
    assert scores[0] == scores[1]


def test_a_wrong_number_of_steps_is_refused(load, monkeypatch, capsys):
    common = load("common")
    monkeypatch.setattr(sys, "argv", ["mlp.py", "--steps", "0"])
    with pytest.raises(SystemExit) as ended:
        common.Lesson(steps=10)
    assert ended.value.code == 2
    assert "--steps 0 is below 1" in capsys.readouterr().err


def test_likeness_of_samples(load):
    likeness = load("common").likeness
    random = np.random.default_rng(0)
    real, same = random.standard_normal((2, 300, 4))
    assert likeness(real, real) == 1
    assert likeness(real, same) > 0.8
    assert likeness(real, same + 20) == 0
    assert likeness(real, np.zeros((300, 4))) < 0.1  # precise, but covers one place only


def test_tiles_lie_row_by_row(load):
    images = np.arange(1, 4)[:, None, None] * np.ones((3, 2, 2), int)
    assert load("common").tiles(images, columns=2).tolist() == [
        [1, 1, 0, 2, 2, 0],
        [1, 1, 0, 2, 2, 0],
        [0, 0, 0, 0, 0, 0],
        [3, 3, 0, 0, 0, 0],
        [3, 3, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def test_neighbours_are_drawn_near_each_other(load):
    near = np.zeros((8, 8))
    near[:4, :4] = near[4:, 4:] = 1 - np.eye(4)
    near[0, 4] = near[4, 0] = 1
    places = load("common").laid_out(near, np.random.default_rng(0))
    distance = np.linalg.norm(places[:, None] - places, axis=-1)
    others = ~np.eye(8, dtype=bool)
    assert distance[near == 1].mean() < 0.5 * distance[(near == 0) & others].mean()
