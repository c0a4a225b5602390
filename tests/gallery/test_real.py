"""The models that packages ship: near ONNX Runtime, and their answers are right."""

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests import ROOT

pytest.importorskip("matplotlib")

REAL = ROOT / "gallery" / "real"
SCRIPTS = {
    "file_types": "magika",
    "speech": "silero_vad",
    "notes": "basic_pitch",
    "words": "rapidocr_onnxruntime",
    "speakers": "resemblyzer",
}


@pytest.fixture
def load(monkeypatch):
    """load(name) imports a module of gallery/real for this test alone."""
    monkeypatch.syspath_prepend(str(REAL))
    names = {path.stem for path in REAL.glob("*.py")}
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_all_scripts_are_run_and_are_short(load):
    helpers = {"common", "run_all", "voice"}
    assert {path.stem for path in REAL.glob("*.py")} - helpers == set(SCRIPTS)
    assert load("run_all").SCRIPTS.keys() == SCRIPTS.keys()
    for name in SCRIPTS:
        text = (REAL / f"{name}.py").read_text()
        assert len(text.splitlines()) < 150 and "\nSource: " in text, name


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_real_model_gives_the_right_answer(script, tmp_path):
    pytest.importorskip("onnxruntime")
    if importlib.util.find_spec(SCRIPTS[script]) is None:
        pytest.skip(f"{SCRIPTS[script]} is not installed: make zoo")
    done = subprocess.run(
        [sys.executable, str(REAL / f"{script}.py"), "--out", str(tmp_path), "--no-times"],
        env={**os.environ, "NEEDLE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(found) == (3 if script == "words" else 1)
    assert all(each["right"] and each["difference"] <= each["limit"] for each in found)
    # One model has a softmax of scores up to 47, in which float32 itself costs more than 1e-4.
    assert all(each["limit"] == 1e-4 or each["model"] == "words_read" for each in found)
    assert all(each["limit"] < 1e-3 for each in found)


def fake(real, difference):
    """A model of which two outputs differ from ONNX Runtime's by so much."""
    model = object.__new__(real)
    model.name, model.example, model.fixed = "fake", {"x": None}, {}
    model.difference, model.limit = 0.0, 1e-4
    theirs = [np.ones(3, np.float32), np.ones(3, np.float32)]
    ours = [theirs[0], theirs[1] + np.float32(difference)]
    model.compiled = lambda x: [SimpleNamespace(numpy=lambda y=y: y) for y in ours]
    model.session = SimpleNamespace(run=lambda names, feeds: theirs)
    return model


@pytest.mark.parametrize("rounding, limit", [(0.0, 1e-4), (1e-3, 4e-3)])
def test_what_differs_by_more_is_refused(load, monkeypatch, rounding, limit):
    common = load("common")
    monkeypatch.setattr(common.Real, "rounding", lambda *arguments: rounding)
    near = fake(common.Real, 0.9 * limit)
    near(x=0)
    assert near.difference == pytest.approx(0.9 * limit, rel=1e-2)
    for difference in (1.1 * limit, np.nan):
        with pytest.raises(SystemExit, match="fake: an output differs by"):
            fake(common.Real, difference)(x=0)


def test_the_package_that_is_absent_is_named(load):
    with pytest.raises(SystemExit, match=r"'no_such_zoo' is not installed: make zoo"):
        load("common").package_file("no_such_zoo", "model.onnx")
    with pytest.raises(SystemExit, match=r"'numpy' has no model\.onnx"):
        load("common").package_file("numpy", "model.onnx")


@pytest.mark.slow
def test_the_voice_has_its_formants(load):
    """A vowel's spectrum is highest near the first formant, and a shorter tract's is higher."""
    pytest.importorskip("scipy")
    voice = load("voice")

    def loudest(length):
        sound = voice.voiced("a", 100, length, np.random.default_rng(0))
        power = np.abs(np.fft.rfft(sound)) ** 2
        hertz = np.fft.rfftfreq(len(sound), 1 / voice.RATE)
        power[(hertz < 400) | (hertz > 1000)] = 0  # without what all pulses have, and others
        return float(hertz[int(power.argmax())])

    assert abs(loudest(1.0) - 730) < 120 and abs(loudest(0.8) - 730 / 0.8) < 120
    said = voice.say("ma si", 120, np.random.default_rng(0))
    assert said.dtype == np.float32 and np.isfinite(said).all() and np.abs(said).max() <= 0.31


def test_the_tones_and_frames_of_the_notes(load):
    notes = load("notes")
    sound = notes.tone(69, 1.0)
    power = np.abs(np.fft.rfft(sound))
    assert abs(np.fft.rfftfreq(len(sound), 1 / notes.RATE)[int(power.argmax())] - 440) < 2
    windows = notes.windows(np.zeros(100_000, np.float32))
    assert {window.shape for window in windows} == {(1, notes.WINDOW, 1)}
    step = notes.WINDOW - 2 * notes.OVERLAP * notes.HOP
    assert len(windows) == -(-100_000 // step)


@pytest.mark.slow
def test_mel_bands_against_librosa(load):
    pytest.importorskip("torch")
    librosa = pytest.importorskip("librosa")
    theirs = librosa.filters.mel(sr=16000, n_fft=400, n_mels=40)
    assert np.abs(load("speakers").mel_filters() - theirs).max() < 1e-6


def test_ctc_and_features(load):
    pytest.importorskip("scipy")
    pytest.importorskip("onnx")
    words, types = load("words"), load("file_types")
    scores = np.eye(4)[[0, 1, 1, 0, 1, 2, 2, 3, 0]]
    assert words.read(scores, ["", "a", "b", "c"]) == "aabc"
    made = types.features(b"  \n hello ")[0]
    assert made[:5].tolist() == list(b"hello") and made[-5:].tolist() == list(b"hello")
    assert (made[6:-9] == 256).all() and made.dtype == np.int32
