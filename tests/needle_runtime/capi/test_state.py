"""Weights and state through the C interface: replaced, trained, saved, and continued."""

import os
import re
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import needle_runtime
from needle_runtime.artifact import Artifact
from needle_runtime.errors import ParameterError
from tests.needle_runtime.capi.library import C, Call, Failed, Kind, Program, Status

KEPT = Path(__file__).parents[1] / "kept"
STEP = sorted(KEPT.iterdir())[-1] / "step"
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


@pytest.fixture
def step():
    """A training step, with a batch for it."""
    if Artifact.open(STEP).obstacle is not None:
        pytest.skip("this processor is of another architecture")
    given = np.load(STEP.with_suffix(".npz"))
    return Program(STEP), given["x"], given["y"]


def weights_of(program, seed):
    draw = np.random.default_rng(seed)
    return {
        name: draw.standard_normal(shape).astype(dtype)
        for name, dtype, shape in program.arrays(Kind.WEIGHTS)
    }


def test_weights_are_replaced_by_arrays_and_by_files(models, tmp_path):
    ours, theirs = Program(models / "mlp"), needle_runtime.load(models / "mlp")
    call = Call(ours)
    for seed in range(3):
        weights = weights_of(ours, seed)
        theirs.set_params(weights)
        if seed == 1:
            save_file(weights, tmp_path / "weights")
            ours.load_weights(tmp_path / "weights")
        else:
            ours.set_weights(weights)
            for array in weights.values():
                array[:] = np.nan  # they were copied
        assert (call.on(X)[0] == theirs(X)).all()


def test_a_files_other_entries_and_orders(models, tmp_path):
    program = Program(models / "mlp")
    weights = weights_of(program, 0)
    program.set_weights(weights)
    expected = program(X)[0]
    backwards = dict(reversed(weights.items()))
    save_file(backwards, tmp_path / "weights", metadata={"format": "pt"})
    other = Program(models / "mlp")
    other.load_weights(tmp_path / "weights")
    assert (other(X)[0] == expected).all()


def test_a_parameter_of_two_names_is_given_under_either(models):
    ours, theirs = Program(models / "tied"), needle_runtime.load(models / "tied")
    numbers, weight = np.arange(6), np.random.default_rng(0).standard_normal((7, 5)).astype("f4")
    other = np.zeros_like(weight)
    names = ("rows.weight", "read.weight")
    for given in ({names[0]: weight}, {names[1]: weight}, dict.fromkeys(names, weight)):
        theirs.set_params(given)
        ours.set_weights(given)
        assert (ours(numbers)[0] == theirs(numbers)).all()
    for given in ({names[0]: weight, names[1]: other}, {}, {"rows": weight}):
        with pytest.raises(ParameterError) as expected:
            theirs.set_params(given)
        with pytest.raises(Failed) as found:
            ours.set_weights(given)
        assert (found.value.status, str(found.value)) == (Status.WEIGHTS, str(expected.value))
        assert (ours(numbers)[0] == theirs(numbers)).all()


def test_weights_that_do_not_fit_are_listed_and_the_old_ones_stay(models, tmp_path):
    ours, theirs = Program(models / "mlp"), needle_runtime.load(models / "mlp")
    (kept,) = ours(X)
    weights = weights_of(ours, 0)
    first, second, *_ = weights
    for wrong in (
        {name: value for name, value in weights.items() if name != first},
        {**weights, "more": weights[first]},
        {**weights, first: weights[first].astype("f8")},
        {**weights, first: np.ascontiguousarray(weights[first].T)},
        {**weights, first: weights[first][:, :1].copy(), second: weights[second].astype("i4")},
        {},
    ):
        with pytest.raises(ParameterError) as expected:
            theirs.set_params(wrong)
        with pytest.raises(Failed) as found:
            ours.set_weights(wrong)
        assert (found.value.status, str(found.value)) == (Status.WEIGHTS, str(expected.value))
        save_file(wrong, tmp_path / "wrong")
        with pytest.raises(Failed) as from_file:
            ours.load_weights(tmp_path / "wrong")
        assert from_file.value.status == Status.WEIGHTS
        assert (ours(X)[0] == kept).all()


def bad_files(folder, good):
    """Files that are not safetensors files, by a description."""
    whole = good.read_bytes()
    size = int.from_bytes(whole[:8], "little")

    def with_header(text):
        return len(text).to_bytes(8, "little") + text + whole[8 + size :]

    header = whole[8 : 8 + size]
    end = len(whole) - 8 - size
    for name, data in {
        "empty": b"",
        "short": whole[:7],
        "cut": whole[:-1],
        "long": whole + b"\0",
        "length": (2**63).to_bytes(8, "little") + whole[8:],
        "no JSON": with_header(b"nonsense"),
        "array": with_header(b"[]"),
        "deep": with_header(b'{"a":' + b"[" * 100_000),
        "offsets": with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1)),
        "negative": with_header(header.replace(b'"data_offsets":[0,', b'"data_offsets":[-4,', 1)),
        "dtype": with_header(header.replace(b"F32", b"F31", 1)),
        "shape": with_header(re.sub(rb'"shape":\[', b'"shape":[4294967296,4294967296,', header)),
        "entry": with_header(b'{"a":3}'),
        "overlap": with_header(
            b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},'
            b'"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}' % (end, end)
        ),
    }.items():
        assert data != whole, name
        (folder / "bad").write_bytes(data)
        yield name, folder / "bad"


def test_files_that_are_not_safetensors_are_refused(models, step, tmp_path):
    program, mlp = step[0], Program(models / "mlp")
    (kept,) = mlp(X)
    save_file(weights_of(mlp, 0), tmp_path / "good")
    for name, path in bad_files(tmp_path, tmp_path / "good"):
        for load in (mlp.load_weights, program.load_state):
            with pytest.raises(Failed, match="is not a safetensors file") as raised:
                load(path)
            assert raised.value.status == Status.FILE, name
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero")):
        with pytest.raises(Failed, match=f"^{path}: cannot be read") as raised:
            mlp.load_weights(path)
        assert raised.value.status == Status.FILE
    assert (mlp(X)[0] == kept).all()


def test_a_step_trains_with_pythons_bits(step):
    ours, x, y = step
    theirs, call = needle_runtime.load(STEP), Call(ours)
    for _ in range(6):
        assert call.on(x, y)[0].tobytes() == np.asarray(theirs(x, y)).tobytes()
    found, expected = ours.state(), theirs.state()
    assert [*found] == [*expected]
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].tobytes() == value.tobytes(), name


def test_all_calls_step_one_state(step):
    program, x, y = step
    alone = Program(STEP)
    expected = [float(alone(x, y)[0]) for _ in range(4)]
    one, two = Call(program), Call(program)
    assert [float(call.on(x, y)[0]) for call in (one, two, one, two)] == expected


def test_state_goes_on_from_a_file(step, tmp_path):
    program, x, y = step
    for _ in range(2):
        program(x, y)
    file = tmp_path / "state.safetensors"
    program.save_state(file)
    saved = load_file(file)
    losses = [float(program(x, y)[0]) for _ in range(3)]
    other = Program(STEP)
    other.load_state(file)
    assert [float(other(x, y)[0]) for _ in range(3)] == losses
    python = needle_runtime.load(STEP)
    python.load_state(saved)
    assert [float(python(x, y)) for _ in range(3)] == losses
    # And the other way round.
    python = needle_runtime.load(STEP)
    for _ in range(2):
        python(x, y)
    save_file(python.state(), file)
    other.load_state(file)
    assert [float(other(x, y)[0]) for _ in range(3)] == losses


def test_parts_of_the_state_are_replaced(step):
    program, x, y = step
    program(x, y)
    before = program.state()
    program(x, y)
    name = next(name for name in before if name.endswith("0.weight"))
    program.set_state({name: before[name]})
    after = program.state()
    assert (after[name] == before[name]).all()
    assert any((after[other] != before[other]).any() for other in before if other != name)
    program.set_state(before)
    program.set_state({})
    other = Program(STEP)
    other.set_state(before)
    assert float(program(x, y)[0]) == float(other(x, y)[0])


def test_state_that_does_not_fit_is_refused(step, tmp_path):
    program, x, y = step
    program(x, y)
    before = program.state()
    name = next(iter(before))
    weight = next(name for name in before if name.endswith("0.weight"))
    for wrong, status in (
        ({"more": before[weight]}, Status.INPUT),
        ({weight: before[weight][:1].copy()}, Status.WEIGHTS),
        ({weight: before[weight].astype("f8")}, Status.WEIGHTS),
    ):
        with pytest.raises(Failed) as raised:
            program.set_state(wrong)
        assert raised.value.status == status
    save_file({key: value for key, value in before.items() if key != name}, tmp_path / "part")
    with pytest.raises(Failed, match=f"missing '{re.escape(name)}'"):
        program.load_state(tmp_path / "part")
    data = np.zeros(1000, np.uint8)
    for size in (0, before[weight].nbytes - 1, before[weight].nbytes + 1):
        status = C.needle_get_state(program.handle, weight.encode(), data.ctypes.data, size)
        assert status == Status.INPUT
    assert C.needle_get_state(program.handle, b"more", data.ctypes.data, 4) == Status.INPUT
    assert not data.any()
    for key, value in program.state().items():
        assert value.tobytes() == before[key].tobytes()


def test_a_refused_call_does_not_step(step):
    program, x, y = step
    call = Call(program)
    call.on(x, y)
    before = program.state()
    call.output("output.0", x[:1, :1])
    with pytest.raises(Failed, match=r"^output 'output.0' overlaps input 'x'$") as raised:
        call.run()
    assert raised.value.status == Status.INPUT
    for name, value in program.state().items():
        assert value.tobytes() == before[name].tobytes()


def test_a_state_is_saved_as_a_whole_or_not_at_all(step, tmp_path):
    program, x, y = step
    file = tmp_path / "state"
    program.save_state(file)
    whole = file.read_bytes()
    program(x, y)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "full").touch()
    for path in (tmp_path / "folder", tmp_path / "missing" / "state", tmp_path / "state" / "in"):
        with pytest.raises(Failed, match=f"^{path}: cannot be written") as raised:
            program.save_state(path)
        assert raised.value.status == Status.FILE
    assert file.read_bytes() == whole
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "state"]
    program.save_state(file)
    assert file.read_bytes() != whole and len(file.read_bytes()) == len(whole)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0])
def test_the_umask_decides_who_may_read_a_state(step, tmp_path, mask):
    before = os.umask(mask)
    try:
        step[0].save_state(tmp_path / "state")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o666 & ~mask


def test_threads_save_to_one_file(step, tmp_path):
    program, x, y = step
    file, errors = tmp_path / "state", []

    def save():
        try:
            for _ in range(20):
                program.save_state(file)
        except Failed as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        program(x, y)
    for thread in threads:
        thread.join()
    assert not errors and [each.name for each in tmp_path.iterdir()] == ["state"]
    Program(STEP).load_state(file)
