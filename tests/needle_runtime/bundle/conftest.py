"""The digits as a classifier and a training step, for this machine and for others, and as files."""

import shutil
import subprocess
from types import SimpleNamespace

import pytest

import needle as ndl
import needle_runtime
import needle_tvm
from needle import nn
from tests import ROOT

BATCH, EPOCHS = 32, 6
EXAMPLES = ROOT / "runtime" / "examples"


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """`path(name)` of the exported "model" and "step", `export(target)` of both for another
    processor, the images and labels as files in `data`, and `right`: of `count` test images, those
    that Python classifies, as exported and after EPOCHS of the step."""
    folder = tmp_path_factory.mktemp("digits")
    train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
    data = folder / "data"
    data.mkdir()
    for name, each in (("train", train), ("test", test)):
        each.x.reshape(-1, 64).astype("float32").tofile(data / f"{name}_images.f32")
        each.y.astype("int32").tofile(data / f"{name}_labels.i32")
    x, y = train.x.reshape(-1, 64).astype("float32"), train.y.astype("int32")
    x_test = test.x.reshape(-1, 64).astype("float32")

    ndl.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = ndl.optim.AdamW(model.parameters(), lr=4e-3)

    @needle_tvm.jit
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    for at in range(0, 20 * BATCH, BATCH):
        step(x[at : at + BATCH], y[at : at + BATCH])
    model.eval()

    def export(target, name):
        dims = {0: {0: ndl.Dim("n", max=512)}}
        example = ndl.Tensor(x_test[:2])
        chosen = {} if target is None else {"target": target}
        needle_tvm.compile(model, example, dims=dims, **chosen).export(folder / f"{name}-model")
        model.train()
        step.export(folder / f"{name}-step", target=target)
        model.eval()

    export(None, "here")
    program = needle_runtime.load(folder / "here-step")
    reader = needle_runtime.load(folder / "here-model")
    right = [int((reader(x_test).argmax(1) == test.y).sum())]
    for _ in range(EPOCHS):
        for at in range(0, len(x) - BATCH + 1, BATCH):
            program(x[at : at + BATCH], y[at : at + BATCH])
    names = [each["name"] for each in reader.params]
    reader.set_params({name: program.state()[f"model.{name}"] for name in names})
    right.append(int((reader(x_test).argmax(1) == test.y).sum()))
    assert right[0] < right[1] > 0.9 * len(test.y)
    return SimpleNamespace(folder=folder, data=data, export=export, right=right, count=len(test.y))


def build_examples(bundle, build, *options):
    """Build runtime/examples against a bundle, with CMake; return the folder of the programs."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    configure = ["cmake", "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={bundle}", *options]
    checked([*configure, "-DCMAKE_BUILD_TYPE=Release"])
    checked(["cmake", "--build", build])
    return build


def checked(command, **options):
    """Run a command; return its output. Fails with its words if it fails."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def right_of(output):
    """The number of right images that an example prints in its last line."""
    return int(output.splitlines()[-1].split(" of ")[0])
