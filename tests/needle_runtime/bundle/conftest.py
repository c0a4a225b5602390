"""The digits as a classifier and a training step, for this machine and for others, and as files."""

import shutil
import subprocess
from itertools import islice
from types import SimpleNamespace

import pytest

import needle_runtime
from tests import ROOT
from tests.needle_runtime.capi import models

EPOCHS = 6
EXAMPLES = ROOT / "runtime" / "examples"


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """`path(name)` of the exported "model" and "step", `export(target)` of both for another
    processor, the images and labels as files in `data`, and `right`: of `count` test images, those
    that Python classifies, as exported and after EPOCHS of the step."""
    folder = tmp_path_factory.mktemp("digits")
    data = folder / "data"
    data.mkdir()
    train, test = models.write_images(data)
    model, step = models.digits_step()
    for x, y in islice(models.batches(train), 20):
        step(x, y)

    def export(target, name):
        chosen = {} if target is None else {"target": target}
        models.export_reader(model, folder / f"{name}-model", **chosen)
        model.train()
        step.export(folder / f"{name}-step", target=target)

    export(None, "here")
    program = needle_runtime.load(folder / "here-step")
    reader = needle_runtime.load(folder / "here-model")
    right = [int((reader(test.x).argmax(1) == test.y).sum())]
    for _ in range(EPOCHS):
        for x, y in models.batches(train):
            program(x, y)
    names = [each["name"] for each in reader.params]
    reader.set_params({name: program.state()[f"model.{name}"] for name in names})
    right.append(int((reader(test.x).argmax(1) == test.y).sum()))
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
