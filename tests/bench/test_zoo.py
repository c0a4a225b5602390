"""A sample of the zoo through `bench.zoo`: loaded, compiled, compared, reloaded, timed."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm", reason="needs the [tvm] extra")

from bench import zoo, zoo_steps  # noqa: E402

PEERS = ("torch", "onnxruntime")
COMPILED = ("tuned", "imported", "times")
# Every step for some, and for the others what the first ones do not take.
SAMPLE = [
    *[("others", name, tuple(zoo.STEPS)) for name in ("unet transposed", "gru classifier")],
    ("timm", "vit_tiny_patch16_224", tuple(zoo.STEPS)),
    ("transformers", "bert", tuple(zoo.STEPS)),
    *[("others", name, COMPILED) for name in ("unet bilinear", "lstm classifier")],
    *[("others", name, COMPILED) for name in ("seq2seq", "wavenet")],
    ("torchvision", "shufflenet_v2_x1_0", COMPILED),
    ("transformers", "gpt2", COMPILED),
]


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # the exporter and the packages warn of themselves
@pytest.mark.parametrize(("group", "name", "steps"), SAMPLE)
def test_a_sample_of_the_zoo_is_right_at_every_step(group, name, steps):
    if group != "others":
        pytest.importorskip(group)
    options = zoo.make_parser().parse_args(
        ["--rounds", "1", "--exporter", "torchscript", "--peers", *PEERS]
    )
    with torch.random.fork_rng():
        row = zoo.measured(group, name, steps, {**vars(options), "command": "as tested"})
    for step in steps:
        assert zoo.is_right(step, row[step]), (step, row[step])
    (case,) = row["times"]["cases"]
    assert case["failed"] == {} and case["fastest"] in ("PyTorch eager", "ONNX Runtime")
    assert len(case["ratios"]["needle"]) == len(PEERS)
    assert 0 < case["profile"]["roofline"] <= 1
    known = [kernel for kernel in case["profile"]["kernels"] if kernel["operations"]]
    assert known  # by the names that the compiled code has


def test_the_table_counts_what_is_right_and_a_refusal_as_a_miss():
    refused = {"fails": "UnsupportedError: needle does not have the operator | aten.x", "s": 1.0}
    load, right = {"nodes": 1, "s": 1.0}, {"error": 1e-6, "s": 1.0}
    tuned = {**right, "compile_s": 3.0, "reloads": True}
    rows = {
        "a/b": {"load": load, "eager": right, "tuned": tuned},
        "a/c": {"load": load, "eager": {"error": float("nan")}, "tuned": {**tuned, "error": 1e-3}},
        "a/d": {"load": refused},
        "a/e": {"load": load, "eager": right, "tuned": {**tuned, "reloads": False}},
    }
    text = zoo.table(rows)
    assert "| a/b | 1.0 s | 1.0e-06 | 1.0e-06, compiled in 3.0 s |" in text
    assert "| a/d | UnsupportedError: needle does not have the operator / aten.x |" in text
    assert "1.0e-06, reloaded otherwise" in text
    for line in ("load: 3 of 4", "eager: 2 of 4", "tuned: 1 of 4"):
        assert f"{line} are right" in text
    assert "gradients" not in text  # which nobody asked for


def timed(name, ratio, **more):
    """A report of `times` whose fastest peer takes `ratio` of our time."""
    spread = {"median": ratio, "lower": ratio - 0.1, "upper": ratio + 0.1}
    kernel = {"name": "conv", "calls": 2, "seconds": 1e-3, "share": 1.0, "operations": 10**6}
    kernel |= {"bytes": 1000, "roofline": 0.25, "bound": "arithmetic", "beyond": 75e-5}
    case = {"case": name, "rounds": 3, "fastest": "A", "failed": {"B": "B: no such operator"}}
    case |= {"ratios": {"needle": {"A": spread}}, "calls": {}}
    case["contestants"] = [
        {"name": each, "median": seconds, "lower_quartile": seconds, "upper_quartile": seconds}
        for each, seconds in (("needle", 1e-3), ("A", ratio * 1e-3))
    ]
    case["profile"] = {"seconds": 1e-3, "roofline": 0.25, "kernels": [kernel]}
    machine = {"processor": "a processor", "threads": 2}
    report = {"machine": machine, "date": "2026-11-29T00:00:00", "rounds": 3, "block_seconds": 0.2}
    return report | {"peers_missing": {}, "command": "the command", "cases": [case], **more}


def test_the_page_begins_with_the_worst_and_a_refusal_counts_as_0(tmp_path):
    refused = {"fails": "UnsupportedError: needle does not have the operator aten.x", "s": 1.0}
    rows = {
        "a/ahead": {"times": timed("a/ahead", 1.5)},
        "a/even": {"times": timed("a/even", 0.9, rounds=7)},
        "a/refused": {"times": refused},
        "a/checked": {"load": {"nodes": 1, "s": 1.0}},  # not timed
    }
    zoo.publish(rows, tmp_path, ["timm: not installed: pip install timm"])
    page = (tmp_path / "zoo.md").read_text()
    for text in (
        "ahead of the fastest peer on 1 of 3, upper quartile at least 0.95 on 2; median 0.90, least"
        " 0.00",
        "| a/even | all |  | 1.00 ms |  |  |  | 25% |  | 750 µs |",
        "|  | conv | 2 | 1.00 ms | 100% | 1.0 | 0.0 | 25% | arithmetic | 750 µs |",
        "| a/refused | needle | UnsupportedError: needle does not have the operator aten.x |",
        "| a/even | B | B: no such operator |",
        "`the command`: a processor, 2 threads, 2026-11-29; 3 alternating blocks",
        "`the command`: a processor, 2 threads, 2026-11-29; 7 alternating blocks",
        "timm: not installed: pip install timm",
    ):
        assert text in page
    models = [line for line in page.splitlines() if "(0.80-1.00)" in line or "(1.40-1.60)" in line]
    assert [line.split(" | ")[0] for line in models[:2]] == ["| a/even", "| a/ahead"]
    assert "a/checked" not in page
    assert (tmp_path / "zoo.png").read_bytes().startswith(b"\x89PNG")
    cases = json.loads((tmp_path / "zoo.json").read_text())["cases"]
    assert [case["case"] for case in cases] == ["a/even", "a/ahead"]


def run(monkeypatch, folder, answers, *arguments):
    """The models and steps that the command runs, if each gives the next of these answers."""
    ran = []

    def measure(group, name, steps, asked):
        ran.append((name, *steps))
        return answers[len(ran) - 1]

    monkeypatch.setattr(zoo, "_in_a_process", measure)
    assert zoo.main([*arguments, "--out", str(folder)]) == 0
    return ran


def test_a_run_goes_on_where_it_stopped(monkeypatch, tmp_path, capsys):
    right = {"times": timed("others/wavenet", 1.5)}
    fails = {"times": {"fails": "TranslationError: no", "s": 1.0}}
    asked = ("others/wavenet", "gru classifier", "--steps", "times")
    ran = run(monkeypatch, tmp_path, [fails, right], *asked)
    assert ran == [("gru classifier", "times"), ("wavenet", "times")]
    assert run(monkeypatch, tmp_path, [right], *asked) == ran[:1]
    # Another step of a model leaves its times as they are.
    checked = {"eager": {"error": 1e-6, "s": 1.0}}
    steps = (*asked[:1], "--steps", "eager", "times")
    assert run(monkeypatch, tmp_path, [checked], *steps) == [("wavenet", "eager")]
    assert run(monkeypatch, tmp_path, [], "--table") == []
    assert "others/wavenet" in (tmp_path / "zoo.md").read_text()
    assert "eager: 1 of 2 are right" in capsys.readouterr().out


def test_a_package_that_is_missing_and_a_model_that_is_unknown_are_named(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(zoo, "groups", lambda: {"no_such_package": {"x": None}})
    monkeypatch.setattr(zoo, "differentiated", set)
    assert run(monkeypatch, tmp_path, [], "--steps", "times") == []
    line = "no_such_package: not installed: pip install no_such_package"
    assert line in capsys.readouterr().err
    assert zoo.main(["resnet", "--out", str(tmp_path)]) == 2
    assert "'resnet' is neither a group (no_such_package) nor a model" in capsys.readouterr().err


def test_models_of_which_thirty_are_differentiated():
    names = {(group, name) for group, models in zoo.groups().items() for name in models}
    assert len(names) == 120
    assert len(zoo.differentiated()) == zoo.DIFFERENTIATED
    assert zoo.differentiated() <= names


def test_code_that_reloads_with_other_bits_is_wrong():
    assert zoo.is_right("tuned", {"error": 1e-5, "reloads": True})
    assert not zoo.is_right("tuned", {"error": 1e-5, "reloads": False})
    assert not zoo.is_right("tuned", {"error": 1e-3, "reloads": True})
    assert zoo.is_right("gradients", {"error": 5e-4})


def test_a_wrong_gradient_is_named():
    right = {"weight": np.ones(4, np.float32), "bias": np.full(2, 1e-9, np.float32)}
    found = {"weight": right["weight"], "bias": -right["bias"]}  # which is rounding alone
    assert zoo.is_right("gradients", zoo_steps._far(found, right))
    far = zoo_steps._far({**found, "weight": right["weight"] + np.float32(0.25)}, right)
    assert not zoo.is_right("gradients", far) and (far["error"], far["at"]) == (0.25, "weight")
    assert zoo_steps._far({"bias": found["bias"]}, right)["at"] == "weight"  # there is none
