"""The profile of a compiled model, compared with the model and its kernels."""

import json
import re

import numpy as np
import pytest

import needle as ndl
from needle import nn

pytest.importorskip("tvm", reason="needs the [tvm] extra")

import needle_tvm
from needle_runtime.errors import InputError, UsageError
from needle_runtime.profile import Call, Profile, _Watch, profile
from needle_tvm.__main__ import main


@pytest.fixture(scope="module")
def model():
    """A layer and then two equal ones: three calls of at least two kernels."""
    layers = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
    )
    layers.eval()
    x = ndl.Tensor(np.random.default_rng(0).normal(size=(4, 16)).astype("float32"))
    return needle_tvm.compile(layers, x), x


def test_every_kernel_call_is_noted(model):
    executable, x = model
    found = profile(executable.program, [x.numpy()], runs=3)
    assert len(found.runs) == 3 and found.plain_seconds > 0
    kernels = [row for row in found.rows() if not row.builtin]
    defined = set(re.findall(r"def (\w+)\(", executable.script))
    assert {row.name for row in kernels} <= defined
    assert sum(row.calls for row in kernels) == 3  # one fused kernel per layer
    assert sum(row.share for row in kernels) == pytest.approx(1)
    for run in found.runs:
        last = max(run, key=lambda call: call.start)
        assert sum(call.seconds for call in run) <= last.start + last.seconds
        assert [call.start for call in run] == sorted(call.start for call in run)


def test_shapes_and_bytes_are_the_arrays(model):
    executable, x = model
    (run,) = profile(executable.program, [x.numpy()], runs=1).runs
    kernels = [call for call in run if not call.name.startswith("vm.")]
    assert kernels[0].shapes[0] == (4, 16) and kernels[-1].shapes[-1] == (4, 32)
    for call in kernels:
        assert call.bytes == sum(4 * int(np.prod(shape)) for shape in call.shapes)


def test_profiling_changes_nothing_for_other_calls(model):
    executable, x = model
    before = executable(x).numpy()
    profile(executable.program, runs=2)
    np.testing.assert_array_equal(executable(x).numpy(), before)


def test_what_is_inside_a_call_is_taken_off_it():
    watch = _Watch()
    watch(None, "outer", True, None)
    watch(None, "inner", True, None)
    watch(None, "inner", False, None)
    watch(None, "outer", False, None)
    inner, outer = watch.calls
    assert (inner.name, outer.name) == ("inner", "outer")
    assert 0 <= outer.seconds and outer.start <= inner.start


def test_as_json_and_as_a_trace():
    calls = [
        Call("a", 0.0, 2e-6, ((2, 3), (3,)), 36),
        Call("vm.builtin.alloc_storage", 2e-6, 1e-6, (), 0),
        Call("a", 4e-6, 4e-6, ((2, 3), (3,)), 36),
    ]
    found = Profile(5e-6, [calls, calls])
    first, second = json.loads(json.dumps(found.to_dict()))["rows"]
    assert (first["name"], first["calls"], first["bytes"]) == ("a", 2, 72)
    assert first["seconds"] == pytest.approx(6e-6) and first["share"] == 1
    assert second["share"] == 0
    events = json.loads(json.dumps(found.chrome_trace()))["traceEvents"]
    assert len(events) == 6 and {event["ph"] for event in events} == {"X"}
    assert [event["ts"] for event in events] == pytest.approx([0, 2, 4, 8, 10, 12])
    assert [event["cat"] for event in events[:2]] == ["kernel", "vm"]
    text = found.text()
    assert "2x3 3" in text and re.search(r"a +2 +6\.00 100\.0%", text)


def test_a_model_with_dims_is_profiled_at_the_sizes_asked_for(tmp_path, capsys):
    layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU()).eval()
    x = ndl.Tensor(np.ones((4, 16), "float32"))
    many = needle_tvm.compile(layers, x, dims={0: {0: ndl.Dim("n", min=2, max=9)}})
    for sizes, rows in (({}, 2), ({"n": 7}, 7)):
        found = profile(many.program, runs=1, sizes=sizes)
        (kernel,) = [row for row in found.rows() if not row.builtin]
        assert kernel.shapes[0] == (rows, 16) and kernel.shapes[-1] == (rows, 32)
    with pytest.raises(UsageError, match="size n=10: n is from 2 to 9"):
        profile(many.program, runs=1, sizes={"n": 10})
    path = many.export(tmp_path / "many")
    assert main(["profile", str(path), "--runs", "1", "--size", "n=7"]) == 0
    assert " 7x16 " in capsys.readouterr().out
    assert main(["profile", str(path), "--runs", "1", "--size", "k=7"]) == 2
    assert "the artifact has no such dim; they are n" in capsys.readouterr().err


def test_bad_requests_are_refused(model):
    executable, _ = model
    with pytest.raises(UsageError, match="runs=0: must be at least 1"):
        profile(executable.program, runs=0)
    with pytest.raises(InputError):
        profile(executable.program, [np.zeros((1, 1), "float32")])


def test_the_command_prints_a_table_or_json_and_writes_a_trace(model, tmp_path, capsys):
    executable, _ = model
    path = executable.export(tmp_path / "small")
    assert main(["profile", str(path), "--runs", "2", "--trace", str(tmp_path / "t.json")]) == 0
    assert "the same call without the instrument" in capsys.readouterr().out
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert main(["profile", str(path), "--runs", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2
    assert main(["profile", str(tmp_path / "absent")]) == 1
    assert "no artifact there" in capsys.readouterr().err
    assert main(["profile", str(path), "--trace", str(path / "lib.so" / "x")]) == 2
    assert "is not a folder" in capsys.readouterr().err
