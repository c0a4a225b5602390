"""Reports of a GPU's figures: the bars, whether they are met, and pages."""

import json

import pytest

from benchmarks.gpu import bars, bench, host, report, report_lab, settings


def timed(name, seconds, ours=False, precision="float32", **others):
    """A contestant whose blocks take `seconds`."""
    blocks = [seconds, 2 * seconds, seconds]
    return {
        "name": settings.named(name, precision),
        "ours": ours,
        "precision": precision,
        "median": seconds,
        "lower_quartile": seconds,
        "upper_quartile": 2 * seconds,
        "blocks": blocks,
        "error": 1e-6,
        "tolerance": 1e-4,
        **others,
    }


def model(name, batch=8, tuned=1e-4, **others):
    """A model's section; PyTorch's best takes 1.5e-4 s in float32 and 1.2e-4 s in bfloat16."""
    contestants = [
        timed("needle eager", 3e-4, ours=True),
        timed("needle fused", 2e-4, ours=True),
        timed("needle tuned", tuned, ours=True),
        timed("needle tuned", 1e-4, ours=True, precision="bfloat16"),
        timed("PyTorch eager", 3.5e-4),
        timed("torch.compile, not frozen", 2e-4),
        timed("torch.compile", 1.5e-4),
        timed("PyTorch eager", 3e-4, precision="bfloat16"),
        timed("torch.compile, not frozen", 1.2e-4, precision="bfloat16"),
    ]
    return {
        "group": "models",
        "model": name,
        "batch": batch,
        "contestants": contestants,
        "failed": {"needle tuned, tf32": "no dtype="},
        **others,
    }


def samples(*allocated):
    return {
        "group": "steps",
        "model": "conv",
        "batch": 64,
        "steps": 1000,
        "seconds": 2.0,
        "samples": [
            {"step": i, "loss": 2.0, "resident": 7, "allocated": size, "reserved": 100}
            for i, size in enumerate(allocated)
        ],
    }


def result(rehearsal=False, **found):
    """A result with these sections; their names have _ instead of -."""
    named = {name.replace("_", "-"): section for name, section in found.items()}
    return {
        "date": "2026-11-21T10:00:00+00:00",
        "gpu": {"name": "NVIDIA H200", "driver": "580.1", "architecture": "sm_90"},
        "rehearsal": rehearsal,
        "command": "make gpu-bench",
        "rounds": 3,
        "versions": {"PyTorch": "2.11"},
        "sections": named,
        "not_measured": {"search": "12 s were left of the time for everything"},
    }


def by_text(found):
    all_of_them = bars.of(found)
    assert len({bar.text for bar in all_of_them}) == len(all_of_them)
    return {bar.text: bar for bar in all_of_them}


def test_everything_that_is_wanted_is_listed_measured_or_not():
    found = by_text(result())
    assert len(found) == 18 + 6 + 2 + 3
    assert {bar.verdict for bar in found.values()} == {bars.OPEN}
    assert all(bar.note for bar in found.values())


def best(name, batch, precision):
    return f"{name}, batch {batch}, {precision}: the best of PyTorch's time / needle tuned's"


def test_the_best_of_pytorch_is_what_counts():
    found = by_text(result(mlp_8=model("mlp"), mlp_256=model("mlp", 256)))
    bar = found[best("mlp", 8, "float32")]
    assert bar.measured == pytest.approx(1.5) and bar.verdict == bars.MET
    assert bar.note == "needle tuned beside torch.compile"
    bar = found[best("mlp", 8, "bfloat16")]
    assert bar.measured == pytest.approx(1.2) and bar.verdict == bars.MISSED
    assert found[best("mlp", 256, "bfloat16")].verdict == bars.MET  # equal speed is enough there
    bar = found[best("mlp", 8, "tf32")]
    assert bar.verdict == bars.OPEN and bar.note == "needle tuned, tf32: no dtype="


def test_cublas_within_artifacts_counts_where_it_is_faster():
    section = model("mlp")
    section["contestants"].append(timed(settings.EITHER, 0.5e-4, ours=True))
    bar = by_text(result(mlp_8=section))[best("mlp", 8, "float32")]
    assert bar.measured == pytest.approx(3) and bar.note.startswith(f"{settings.EITHER} beside")


def test_without_torch_compile_nothing_is_claimed():
    section = model("mlp", failed={"torch.compile, not frozen": "out of memory"})
    section["contestants"] = [
        one for one in section["contestants"] if "not frozen" not in one["name"]
    ]
    bar = by_text(result(mlp_8=section))[best("mlp", 8, "float32")]
    assert bar.verdict == bars.OPEN and bar.note.endswith("out of memory")


def test_eager_may_take_a_fifth_longer():
    text = "mlp, batch 8: PyTorch eager's time / needle eager's"
    bar = by_text(result(mlp_8=model("mlp")))[text]
    assert bar.measured == pytest.approx(3.5 / 3) and bar.verdict == bars.MET
    for ours, verdict in ((4.1e-4, bars.MET), (4.3e-4, bars.MISSED)):
        section = model("mlp")
        section["contestants"][0] = timed("needle eager", ours, ours=True)
        assert by_text(result(mlp_8=section))[text].verdict == verdict


def test_own_kernels_of_the_product_are_the_compilers_or_the_labs():
    text = "product of 4096 x 4096, float32: cuBLAS's time / that of our own kernel"
    product = {
        "group": "gemm",
        "contestants": [
            timed("needle, own kernel", 4e-3, ours=True),
            timed("PyTorch", 3e-3),
            timed("needle, chosen", 3e-4, ours=True, precision="bfloat16"),
            timed("PyTorch", 3e-4, precision="bfloat16"),
        ],
    }
    found = by_text(result(gemm_4096=product))
    assert found[text].measured == pytest.approx(0.75) and found[text].verdict == bars.MISSED
    lab = {
        "size": dict.fromkeys("MNK", 4096),
        "rungs": [rung("fast", blocks=(2e-3, 2e-3)), rung("half", precision="float16")],
        "peers": [rung("PyTorch", "peer", blocks=(1.9e-3, 1.9e-3))],
    }
    found = by_text(result(gemm_4096=product, lab_gemm_4096={"group": "lab", **lab}))
    assert found[text].measured == pytest.approx(0.95) and found[text].note == "the lab's fast"
    lab["size"] = dict.fromkeys("MNK", 2048)  # a matmul of another size does not count
    found = by_text(result(gemm_4096=product, lab_gemm_4096={"group": "lab", **lab}))
    assert found[text].measured == pytest.approx(0.75)
    chosen = "product of 4096 x 4096, bfloat16: cuBLAS's time / that of the chosen kernel"
    assert found[chosen].verdict == bars.MET


def test_memory_is_flat_or_it_is_not():
    text = "1000 training steps: the device's memory before / after"
    assert by_text(result(steps=samples(50, 60, 50)))[text].verdict == bars.MET
    bar = by_text(result(steps=samples(50, 50, 51)))[text]
    assert bar.verdict == bars.MISSED and "allocated 50 to 51 bytes" in bar.note
    diverged = samples(50, 50)
    diverged["samples"][-1]["loss"] = None
    assert by_text(result(steps=diverged))[text].verdict == bars.OPEN


def test_a_rehearsal_meets_nothing():
    found = result(rehearsal=True, mlp_8=model("mlp"), steps=samples(1, 1))
    assert {bar.verdict for bar in bars.of(found)} == {bars.OPEN}
    assert "these figures mean nothing" in report.markdown(found)


def cells(text):
    """The rows of all tables, keyed by their first cell."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return {row.split("|")[1].strip(): [c.strip() for c in row.split("|")[1:-1]] for row in rows}


def search():
    compiled = {
        "needle tuned": {"seconds": 1.0, "search": ""},
        "needle tuned, searched": {"seconds": 30.0, "search": "64 trials over 1 kernel"},
    }
    pair = [timed("needle tuned", 2e-4, True), timed("needle tuned, searched", 1e-4, True)]
    one = {"model": "mlp", "budget": {"minutes": 0.5}, "contestants": pair, "compiled": compiled}
    return {"group": "search", "models": [{**one, "failed": {}}], "failed": {"conv": "no time"}}


def test_the_page_tells_everything(tmp_path):
    found = result(mlp_8=model("mlp"), steps=samples(50, 50), search=search())
    text = report.markdown(found)
    assert text.startswith("# NVIDIA H200, 2026-11-21\n") and "PyTorch 2.11." in text
    rows = cells(text)
    assert rows["needle tuned"][2] == "3" and rows["needle tuned"][3] == "1.5 (torch.compile)"
    assert rows["needle tuned, bfloat16"][3] == "1.2 (torch.compile, not frozen, bfloat16)"
    assert rows["PyTorch eager"][3] == "" and rows["PyTorch eager"][1].startswith("350 µs")
    searched = (
        "| mlp | 0.5 minutes | 30 s | 64 trials over 1 kernel | 100 µs (100 µs to 200 µs) | 2 |"
    )
    assert searched in text
    assert "| mlp | 7.34 |  | 1.5 | 3 |" in text  # the reference's ladder, and ours
    for line in (
        "- search: 12 s were left of the time for everything",
        "- mlp-8, needle tuned, tf32: no dtype=",
        "- search, conv: no time",
    ):
        assert line in text.splitlines()
    stem = tmp_path / "2026-11-21-gpu-h200"
    bench.write(found, stem)
    kept = json.loads(stem.with_suffix(".json").read_text())
    assert kept["sections"] == found["sections"]
    assert [bar["verdict"] for bar in kept["bars"]] == [bar.verdict for bar in bars.of(found)]
    stem.with_suffix(".md").unlink()
    assert bench.page(stem.with_suffix(".json")) == 0  # also draws the chart
    assert stem.with_suffix(".md").read_text() == text
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(host.Refusal, match="nosuch"):
        bench.page(tmp_path / "nosuch.json")


def test_a_page_that_cannot_be_made_keeps_the_figures(tmp_path, capsys):
    broken = result(mlp_8={"group": "models", "contestants": [{"name": "PyTorch eager"}]})
    bench.write(broken, tmp_path / "stem")
    assert json.loads((tmp_path / "stem.json").read_text())["sections"] == broken["sections"]
    assert not (tmp_path / "stem.md").exists() and "KeyError" in capsys.readouterr().err


def rung(name, kind="schedule", precision="float32", blocks=(2e-3, 4e-3), **others):
    quartiles = {"median": blocks[0], "lower": blocks[0], "upper": blocks[-1]} if blocks else None
    return {
        "name": name,
        "kind": kind,
        "precision": precision,
        "seconds": quartiles,
        "blocks": list(blocks),
        "launch_seconds": quartiles,
        "gigaflops": 1234.5,
        "speedup_naive": None,
        "speedup_previous": None,
        "surprising": False,
        "expected": [1, 2],
        "refused": None,
        "error": 1e-7,
        "tolerance": 1e-5,
        **others,
    }


def test_a_ladder_sets_like_beside_like_and_tells_what_is_missing():
    ladder = {
        "group": "lab",
        "workload": "gemm",
        "title": "matrix product",
        "size": {"M": 8},
        "rungs": [
            rung("naive", "naive"),
            rung("tensor", precision="float16", blocks=(1e-3, 1e-3)),
            rung("newest", blocks=(), refused="it needs sm_100"),
        ],
        "peers": [
            rung("PyTorch", "peer", blocks=(1e-3, 3e-3), expected=None),
            rung("PyTorch, TF32", "peer", precision="tf32", blocks=(5e-4, 5e-4), expected=None),
        ],
        "left_out": {"broken": "gemm: broken differs"},
        "peers_missing": {},
    }
    text = report.markdown(result(lab_gemm=ladder))
    rows = cells(text)
    over = report_lab._HEADINGS.index("PyTorch's time / ours")
    assert rows["naive"][over] == "0.62"  # the median of 1/2 and 3/4
    assert rows["tensor"][over] == "0.50" and rows["tensor"][2] == "float16"
    assert rows["PyTorch"][over] == "" and "newest" not in rows
    assert "- lab-gemm, newest: it needs sm_100" in text
    assert "- lab-gemm, broken: gemm: broken" in text
