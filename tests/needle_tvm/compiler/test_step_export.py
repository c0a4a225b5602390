"""Exported training steps: artifacts that go on with the same bits, without needle."""

import subprocess
import sys

import numpy as np
import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn, optim
from needle_runtime.errors import ParameterError, UsageError
from tests.needle_tvm.compiler.test_jit_steps import OPTIMIZERS, Training, batches

WITHOUT_NEEDLE = """
import sys
import numpy as np
import needle_runtime
program, given = needle_runtime.load(sys.argv[1]), np.load(sys.argv[2])
results = [program(given[f"x{n}"], given[f"y{n}"]) for n in range(3)]
assert "needle" not in sys.modules and "tvm" not in sys.modules
np.savez(sys.argv[3], losses=[float(loss) for loss, _ in results], **program.state())
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A step after two calls, the folder it was exported to then, and what comes after."""
    training = Training(OPTIMIZERS["groups"], "float32")
    step = needle_tvm.jit(training.step)
    first, second, *others = batches(5, "float32")
    step(*first), step(*second)
    folder = step.export(tmp_path_factory.mktemp("step") / "artifact", calls=3)
    losses = [float(step(*batch)[0]) for batch in others]
    return training, folder, others, losses


def test_it_goes_on_with_the_same_bits_without_needle(shipped, tmp_path):
    training, folder, others, losses = shipped
    arrays = {f"x{n}": x for n, (x, _) in enumerate(others)}
    arrays |= {f"y{n}": y for n, (_, y) in enumerate(others)}
    np.savez(tmp_path / "given.npz", **arrays)
    paths = [str(each) for each in (folder, tmp_path / "given.npz", tmp_path / "found.npz")]
    subprocess.run([sys.executable, "-c", WITHOUT_NEEDLE, *paths], check=True, timeout=300)
    found = np.load(tmp_path / "found.npz")
    assert found["losses"].tolist() == losses
    for name, value in training.model.state_dict().items():
        np.testing.assert_array_equal(found[f"self.model.{name}"], value.numpy(), err_msg=name)


def test_its_state_is_saved_and_loaded(shipped):
    _, folder, others, losses = shipped
    one, two = needle_runtime.load(folder), needle_runtime.load(folder)
    assert float(one(*others[0])[0]) == losses[0]
    kept = one.state()
    assert float(one(*others[1])[0]) == losses[1]  # a copy was given
    two.load_state(kept)
    assert [float(two(*batch)[0]) for batch in others[1:]] == losses[1:]
    before = two.state()
    name = next(each for each in kept if each.endswith("weight"))
    for wrong, match in [
        ({k: v for k, v in kept.items() if k != name}, f"missing '{name}'"),
        ({**kept, "more": kept[name]}, "unexpected 'more'"),
        ({**kept, name: kept[name][:1]}, f"'{name}' is float32"),
        ([kept], "not a dict of arrays"),
    ]:
        with pytest.raises(ParameterError, match=match):
            two.load_state(wrong)
    for key, value in two.state().items():
        np.testing.assert_array_equal(value, before[key])


def test_rates_of_a_schedule_are_kept_for_as_many_calls_as_asked():
    weight = nn.Parameter(np.zeros(1))
    optimizer = optim.SGD([weight], 1.0)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    @needle_tvm.jit(stage="noopt")
    def step(x):
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()
        schedule.step()
        return weight.detach()

    x = np.ones(1)
    with pytest.raises(UsageError, match="call it once"):
        step.export("nowhere")
    step(x)
    with pytest.raises(UsageError, match=r"ExponentialLR.*give calls="):
        step.export("nowhere")
    for wrong in (0, 2.0):
        with pytest.raises(UsageError, match="calls="):
            step.export("nowhere", calls=wrong)
    assert schedule.steps == 1 and optimizer.lr == 0.5


def test_rates_go_on_from_where_they_are(tmp_path):
    def made():
        weight = nn.Parameter(np.zeros(1))
        optimizer = optim.SGD([weight], 1.0)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(x):
            optimizer.zero_grad()
            (weight * x).sum().backward()
            optimizer.step()
            schedule.step()
            return weight.detach()

        return needle_tvm.jit(step, stage="noopt"), optimizer, schedule

    step, optimizer, schedule = made()
    x = np.ones(1)
    step(x)
    program = needle_runtime.load(step.export(tmp_path / "step", calls=3))
    assert optimizer.lr == 0.5 and schedule.steps == 1  # the export has not stepped it
    found = [float(program(x)[0]) for _ in range(5)]
    wanted = [float(step(x).numpy()[0]) for _ in range(3)]
    assert found[:3] == wanted
    assert np.diff(found[2:]).tolist() == [-0.125, -0.125]  # the last rate


def test_open_sizes_stay_open(tmp_path):
    weight = nn.Parameter(np.ones((4, 3)))
    optimizer = optim.SGD([weight], 0.25)

    def step(x):
        optimizer.zero_grad()
        loss = (x @ weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    rows = {"x": {0: ndl.Dim("n", max=8)}}
    compiled = needle_tvm.jit(step, dims=rows, stage="fused")
    compiled(np.ones((2, 4)))
    program = needle_runtime.load(compiled.export(tmp_path / "step"))
    for n in (1, 5, 8):
        assert float(program(np.ones((n, 4)))) == float(compiled(np.ones((n, 4))))


def test_a_function_that_writes_nothing_is_exported_as_a_model(tmp_path):
    model = nn.Linear(3, 2)
    f = needle_tvm.jit(lambda batch: {"y": model(batch["x"])}, stage="fused")
    x = np.ones((2, 3), "float32")
    wanted = f({"x": x})["y"].numpy()
    program = needle_runtime.load(f.export(tmp_path / "model"))
    np.testing.assert_array_equal(program({"x": x})["y"], wanted)
    assert program.state() == {}
