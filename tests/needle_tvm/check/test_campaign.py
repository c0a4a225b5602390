"""Random programs compute the right results, and the campaign that runs them finds wrong ones."""

import functools
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import needle as ndl
from needle.onnx import registry
from needle.op import REGISTRY
from needle_tvm.check.__main__ import main
from needle_tvm.check.campaign import campaign, failures, layers
from needle_tvm.check.campaign.draw import draw, draw_with_dims, generic
from needle_tvm.check.campaign.drawer import Drawer, Unfit
from needle_tvm.check.campaign.judge import DIMS, GRADIENT, KINDS, ONNX, OPS, TORCH
from needle_tvm.check.campaign.program import Leaf, Program, Step
from needle_tvm.check.campaign.recipes import BUILDERS
from needle_tvm.check.campaign.verdicts import VARIANTS, cheaper, place
from needle_tvm.tune.measure.workers import Limits, Workers
from tests import ROOT
from tests.needle_tvm.check import services

PLANTED = (
    "tests.needle_tvm.check.planted"  # not imported here: the rule would be wrong in all tests
)
FAKE = dict.fromkeys(KINDS, f"{services.__name__}:serve")

# Programs take one half of the variants in turn.
ALTERNATING = [VARIANTS[0::2], VARIANTS[1::2]]


@pytest.mark.peer
def test_everything_of_pytorch_is_drawn_in_most_tries():
    torch = pytest.importorskip("torch")
    from needle_tvm.check.campaign.torch import draw as torch_draw
    from needle_tvm.check.campaign.torch import recipes as torch_recipes

    seldom = []
    for recipe in dict.fromkeys(each for some, _ in torch_recipes._RECIPES for each in some):
        drawn = 0
        for seed in range(20):
            drawer = torch_draw.Drawer(seed)
            drawer.dtype, drawer.special, drawer.empty = "torch.float32", False, False
            drawer.set_size(is_large=False)
            with torch.no_grad():
                drawer.input([3, 4]), drawer.input(drawer.shape())
                recipe(drawer)
            drawn += bool(drawer.steps)
        if drawn <= 10:
            seldom.append(recipe.__name__)
    assert not seldom


def programs(kind, first):
    """(kind, seed) of the programs of at most six steps."""
    if kind == TORCH:
        from needle_tvm.check.campaign.torch.recipes import draw as drawn
    elif kind == DIMS:
        drawn = draw_with_dims
    else:
        drawn = functools.partial(draw, gradient=kind == GRADIENT)
    return ((kind, seed) for seed in itertools.count(first) if len(drawn(seed).steps) <= 6)


def small(kind, first, count):
    return list(itertools.islice(programs(kind, first), count))


def drawers(name, count=40):
    """Beginnings of float32 programs, which a recipe continues."""
    for seed in range(count):
        drawer = Drawer(random.Random(f"{name} {seed}"), gradient=False)
        drawer._dtypes, drawer._special, drawer._empty = ("float32",), False, False
        drawer.set_size(is_large=False)
        for _ in range(3):
            drawer.leaf(drawer.shape(), kind="input")
        yield drawer


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_an_op_is_drawn_in_most_tries(name):
    """A recipe that does not fit is silently drawn again, or replaced by the op's own sample, so
    only this test sees one that never fits."""
    recipe = BUILDERS.get(name, generic)
    assert sum(bool(recipe(drawer, REGISTRY[name])) for drawer in drawers(name)) > 30


@pytest.mark.parametrize("layer", dict.fromkeys(layers.LAYERS), ids=lambda layer: layer.__name__)
def test_a_layer_is_drawn_in_most_tries(layer):
    whole = 0
    for drawer in drawers(layer.__name__):
        try:
            layer(drawer)
        except Unfit:
            continue
        whole += bool(drawer.steps)
    assert whole > 30


@pytest.fixture(scope="module")
def judges():
    """A function that runs programs, given as (kind, seed), and returns those that are wrong. LLVM
    optimises the code of as many as in a campaign."""
    pools = {}

    def run(programs):
        found = []
        for kind in dict.fromkeys(kind for kind, _ in programs):
            seeds = [seed for each, seed in programs if each == kind]
            requests = [
                {**cheaper(seed), "kind": kind, "seed": seed, "variants": ALTERNATING[seed % 2]}
                for seed in seeds
            ]
            service = campaign._SERVICES[kind]
            if service not in pools:
                pools[service] = Workers("tests", service, processes=1, limits=campaign.LIMITS)
            for number, outcome in pools[service].map(requests):
                result = campaign.answer(outcome)
                if result["verdict"] not in ("right", "refused"):
                    found.append((kind, seeds[number], result["verdict"], result["what"]))
        return found

    yield run
    for pool in pools.values():
        pool.close()


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_programs_of_ops(judges, part):
    assert judges(small(OPS, 1000 + 100 * part, 10 if part else 5)) == []


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_programs_with_gradients_inside(judges, part):
    assert judges(small(GRADIENT, 1000 + 100 * part, 8 if part else 2)) == []


def test_programs_with_dims(judges):
    assert judges(small(DIMS, 1000, 3)) == []


@pytest.mark.slow
def test_programs_of_pytorch(judges):
    pytest.importorskip("torch")
    assert judges(small(TORCH, 1000, 6)) == []


@pytest.mark.slow
def test_programs_through_onnx(judges):
    pytest.importorskip("onnxruntime")
    seeds = range(1000, 1012)
    assert judges([(ONNX, seed) for seed in seeds]) == []


# CI has the 600 frozen programs of tests/corpus instead; `make campaign` runs any number.
@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize(("kind", "count"), [(OPS, 38), (GRADIENT, 8), (DIMS, 8), (TORCH, 8)])
def test_more_programs(judges, kind, count, part):
    if kind == TORCH:
        pytest.importorskip("torch")
    first = 5000 + count * part
    assert judges([(kind, seed) for seed in range(first, first + count)]) == []


# Drawing programs


@pytest.mark.parametrize("gradient", [False, True])
def test_a_seed_draws_the_same_program_everywhere(gradient):
    seeds = range(20)
    code = (
        "from needle_tvm.check.campaign.draw import draw\n"
        f"print([draw(seed, {gradient}).to_json() for seed in {seeds!r}])"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hashes in ("1", "2")
    }
    assert texts == {f"{[draw(seed, gradient).to_json() for seed in seeds]}\n"}


def test_programs_have_5_to_60_steps():
    counts = [len(draw(seed).steps) for seed in range(300)]
    assert min(counts) >= 5 and max(counts) <= 60
    assert 8 <= sum(counts) / len(counts) <= 16


# Keeping results


def run(tmp_path, seeds, **choices):
    """The results of a campaign of stand-in programs, and the order in which they came."""
    choices = {"kinds": [OPS], "services": FAKE, "limits": Limits(1.0, 2 << 30), **choices}
    plan = campaign.Plan(seeds=seeds, **choices)
    results, told = campaign.Results(tmp_path / "programs.jsonl"), []
    campaign.run(plan, results, lambda done, total, result: told.append(result))
    return results.of(plan.programs()), [(result["kind"], result["seed"]) for result in told]


def test_a_process_that_dies_or_hangs_is_a_verdict_and_the_rest_goes_on(tmp_path):
    found, _ = run(tmp_path, range(12))
    verdicts = {result["seed"]: result["verdict"] for result in found}
    other = {3: "crash", 5: "timeout", 7: "wrong", 9: "refused"}
    assert verdicts == {seed: other.get(seed, "right") for seed in range(12)}
    (summary,) = campaign.summaries(found)
    assert summary.counts == {"right": 8, "crash": 1, "timeout": 1, "wrong": 1, "refused": 1}
    assert not summary.is_sound
    assert campaign.reasons(found) == [("TraceError: input N of shape (N) cannot be kept", 1)]
    scripts = sorted(path.name for path in (tmp_path / "programs.failures").iterdir())
    assert scripts == ["ops-3.py", "ops-5.py", "ops-7.py"]


def test_too_many_refusals_are_no_success(tmp_path):
    found, _ = run(tmp_path, range(8, 12))
    (summary,) = campaign.summaries(found)
    assert summary.refused == 0.25 and not summary.is_sound
    (summary,) = campaign.summaries([r for r in found if r["verdict"] == "right"])
    assert summary.is_sound


def test_a_campaign_goes_on_where_it_was_ended(tmp_path):
    _, first = run(tmp_path, range(10, 20))
    with (tmp_path / "programs.jsonl").open("a") as file:
        file.write('{"kind": "ops", "seed": 20, "verd')  # killed while writing
    found, second = run(tmp_path, range(10, 25))
    assert [seed for _, seed in first] == [*range(10, 20)]
    assert [seed for _, seed in second] == [*range(20, 25)]
    assert [result["seed"] for result in found] == [*range(10, 25)]
    assert run(tmp_path, range(10, 25))[1] == []


def test_results_of_other_sources_do_not_count(tmp_path, monkeypatch):
    run(tmp_path, range(10, 12))
    monkeypatch.setattr(campaign.versions, "source_digest", lambda: "others")
    assert [seed for _, seed in run(tmp_path, range(10, 12))[1]] == [10, 11]
    monkeypatch.undo()
    assert run(tmp_path, range(10, 12))[1] == []


def test_an_interrupted_campaign_leaves_whole_lines_and_a_table(tmp_path):
    out = tmp_path / "programs.jsonl"
    code = (
        "import sys\n"
        "from needle_tvm.check.campaign import campaign\n"
        "from needle_tvm.check.__main__ import main\n"
        f"campaign._SERVICES.update({FAKE!r})\n"
        "sys.exit(main())"
    )
    arguments = ["--kind", "ops", "--seeds", "10:100000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    deadline = time.monotonic() + 60
    while not (out.exists() and out.read_bytes().count(b"\n") > 5):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in said
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["seed"] for line in lines] == [*range(10, 10 + len(lines))]
    (row,) = (line.split() for line in printed.splitlines() if line.split()[:1] == ["ops"])
    assert row[1] == row[2] == str(len(lines))


@pytest.mark.parametrize("written", [False, True])
def test_the_table_counts_what_is_in_the_file(tmp_path, monkeypatch, capsys, written):
    """The interrupt comes before the second result is in the file, or before it is remembered."""

    entry = {"kind": OPS, "verdict": "right", "where": "", "what": "", "seconds": 0.1, "ops": []}
    first, second = ({**entry, "seed": seed, "steps": 1} for seed in (10, 11))

    def run(plan, results, say):
        results.add(first)
        if written:
            results.add(second)
            del results._found[OPS, 11]
        else:
            results._found[OPS, 11] = second
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "run", run)
    out = tmp_path / "programs.jsonl"
    assert main(["--kind", "ops", "--seeds", "10:20", "--out", str(out)]) == 130
    printed = capsys.readouterr().out
    (row,) = (line.split() for line in printed.splitlines() if line.split()[:1] == ["ops"])
    assert row[1] == str(len(out.read_text().splitlines())) == str(1 + written)


def test_shards_have_each_program_once():
    plans = [
        campaign.Plan(kinds=[OPS, TORCH], seeds=range(5, 327), shard=(number, 4))
        for number in range(1, 5)
    ]
    found = [program for plan in plans for program in plan.programs()]
    assert len(found) == len(set(found))
    assert set(found) == {(kind, seed) for kind in (OPS, TORCH) for seed in range(5, 327)}
    assert all(len(plan.programs()) in (160, 162) for plan in plans)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "5:3"],
        ["--seeds", "x"],
        ["--shard", "3/2"],
        ["--kind", "all"],
        ["--minutes", "0"],
    ],
)
def test_bad_arguments_are_one_line(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(("kind", "needs"), [("torch", "torch"), ("onnx", "onnx onnxruntime")])
def test_programs_that_need_packages(monkeypatch, capsys, tmp_path, kind, needs):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--kind", kind, "--out", str(tmp_path / "x.jsonl")]) == 1
    assert f"pip install {needs}" in capsys.readouterr().err


def test_faults_of_files_are_found_where_they_are(monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from needle.onnx.emit import RULES
    from needle_tvm.check.campaign.onnx.programs import serve

    leaf = Leaf("input", (2, 3), "float32", 0)
    program = Program((leaf,), (Step("ops.exp({0}) + {0}", (0,)),), (1,), gradient=(0,))
    asked = {"program": program.to_json(), "variants": []}
    right = serve(asked)
    assert (right["verdict"], right["where"]) == ("right", ""), right["what"]
    with monkeypatch.context() as patched:
        patched.setitem(RULES, ndl.ops.Exp, lambda s, x: s.w.op("Tanh", x))
        assert [serve(asked)[key] for key in ("verdict", "where")] == ["wrong", "onnxruntime"]
    (right,) = registry._REGISTRY._converters["", "Exp"]
    wrong = right._replace(function=lambda node, x: ndl.ops.tanh(x))
    monkeypatch.setitem(registry._REGISTRY._converters, ("", "Exp"), [wrong])
    assert [serve(asked)[key] for key in ("verdict", "where")] == ["wrong", "import"]


def test_a_nan_that_onnx_runtime_loses_is_no_fault_of_the_file(monkeypatch):
    """It takes a NaN of which it seeks the largest for a number; the file read again is judged."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from needle.onnx.emit import RULES
    from needle_tvm.check.campaign.onnx import programs

    def verdict(special):
        leaf = Leaf("input", (40, 3), "float32", 0, -2, 2, special)
        program = Program((leaf,), (Step("ops.max({0}, 1)", (0,)),), (1,))
        made = programs.serve({"program": program.to_json(), "variants": []})
        return made["verdict"], made["where"]

    assert verdict(special=True) == ("right", "")
    with monkeypatch.context() as patched:
        patched.setattr(programs, "NOT_OF_NAN", ())
        assert verdict(special=True) == ("wrong", "onnxruntime")
    monkeypatch.setitem(RULES, ndl.ops.Max, lambda s, x: s.w.reduce("ReduceMin", x, (1,), False))
    assert verdict(special=False) == ("wrong", "onnxruntime")
    assert verdict(special=True) == ("wrong", "import")


def test_most_programs_are_compiled_once_and_not_optimized():
    asked = [cheaper(seed) for seed in range(300)]
    assert asked == [cheaper(seed) for seed in range(300)]
    assert {each["variants"][0] for each in asked} == set(VARIANTS)
    assert all(len(each["variants"]) == 1 for each in asked)
    assert 220 < sum(each["quick"] for each in asked) < 280


# Finding faults


@pytest.mark.long
def test_a_wrong_rule_is_found_and_shown_by_a_script(tmp_path):
    """The rule is wrong only in this campaign's processes."""
    seeds = (s for _, s in programs(OPS, 3000) if "ops.Sigmoid()" in draw(s).source())
    service = dict.fromkeys(KINDS, f"{PLANTED}:serve")
    verdicts = []
    # The fault does not show in a sigmoid whose operand is above -1.
    for seed in itertools.islice(seeds, 30):
        plan = campaign.Plan(
            kinds=[OPS], seeds=range(seed, seed + 1), services=service, shrink_seconds=25
        )
        results = campaign.Results(tmp_path / "programs.jsonl")
        campaign.run(plan, results, lambda done, total, result: verdicts.append(result))
        if verdicts[-1]["verdict"] == "wrong":
            break
    result = verdicts[-1]
    assert result["verdict"] == "wrong"
    assert result["where"] == place(*cheaper(result["seed"])["variants"][0])
    script = tmp_path / "programs.failures" / result["script"]
    body = script.read_text()
    assert body.count("        v") <= 2, body  # steps
    here = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=ROOT)
    assert (here.returncode, here.stdout) == (0, "right\n"), here.stderr
    code = f"import runpy, {PLANTED}; runpy.run_path({str(script)!r}, run_name='__main__')"
    wrong = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert wrong.returncode == 1, wrong.stderr
    assert wrong.stdout.startswith(f"wrong at {result['where']}"), wrong.stdout


def test_reasons_are_told_apart_by_what_is_not_the_programs_own():
    one, other = (
        failures.normalised(f"TraceError: {name!r}: shape {shape} of v{n} has {n} axes")
        for name, shape, n in (("a.b", (2, 3), 12), ("c", (1,), 5))
    )
    assert one == other != failures.normalised("TraceError: something else")
