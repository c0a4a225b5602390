"""The library and programs that use it under ASan, UBSan and TSan."""

import functools
import os
import sys
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import ROOT
from tests.needle_runtime.capi import build
from tests.needle_runtime.capi.conftest import MODELS_VARIABLE
from tests.needle_runtime.capi.library import LIBRARY_VARIABLE, prefix

SANITIZERS = ("address,undefined", "thread")


class Built(NamedTuple):
    """An installation of the library, and the folders of programs built against it."""

    prefix: build.Path
    programs: build.Path
    examples: build.Path
    sanitizers: str

    def run(self, program, *arguments):
        """Run a program; return what it prints. Reports of a sanitizer fail the test."""
        done = build.ran([program, *arguments], env=build.environment())
        assert done.stderr == ""
        return done.stdout


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """A function that builds with sanitizers, once each; it skips a test if they do not work."""

    @functools.cache
    def built(sanitizers):
        folder = tmp_path_factory.mktemp("built")
        if sanitizers:
            probe = folder / "probe.c"
            probe.write_text("int main(void) { return 0; }\n")
            command = ["cc", f"-fsanitize={sanitizers}", probe, "-o", folder / "probe"]
            done = build.ran(command, check=False)
            if done.returncode or build.ran([folder / "probe"], check=False).returncode:
                pytest.skip(f"-fsanitize={sanitizers} does not work here")
        where = build.sanitized_library(folder, sanitizers) if sanitizers else prefix()
        return Built(
            where,
            build.programs(build.PROGRAMS, folder / "programs", where, sanitizers),
            build.programs(build.EXAMPLES, folder / "examples", where, sanitizers),
            sanitizers,
        )

    return built


@pytest.fixture(
    params=["", *(pytest.param(name, marks=pytest.mark.slow) for name in SANITIZERS)],
    ids=lambda name: name or "plain",
)
def built(request, builds):
    """The library and the programs without sanitizers, and with each."""
    return builds(request.param)


@pytest.fixture(scope="module")
def weights(models, tmp_path_factory):
    """Two files with weights for the model `open`."""
    found, shapes = [], load_file(models / "open" / "params.safetensors")
    for seed in (0, 1):
        draw = np.random.default_rng(seed)
        found.append(tmp_path_factory.mktemp("weights") / "weights.safetensors")
        save_file(
            {k: draw.standard_normal(v.shape).astype(v.dtype) for k, v in shapes.items()}, found[-1]
        )
    return found


def test_threads(built, models, weights):
    assert built.run(built.programs / "threads", models / "open", *weights, build.STEP) == "done\n"


def test_lifetimes(built, models):
    forks = [] if built.sanitizers == "thread" else ["fork"]  # TSan does not follow forks
    assert built.run(built.programs / "lifetimes", models / "open", *forks) == "done\n"


@pytest.mark.parametrize("name", ["infer_c", "infer_cpp"])
def test_inference(built, digits, name):
    assert built.run(built.examples / name, digits / "reader", digits).endswith("images right\n")


def test_training(built, digits, tmp_path):
    command = [built.examples / "train", digits / "step", digits / "reader", digits, 1]
    for _ in range(2):
        assert built.run(*command, tmp_path / "state").endswith("images right\n")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["calls", "open", "state"])
def test_calls_from_python(builds, models, part):
    """The other tests of this folder, with ASan and UBSan: a Python without TSan cannot load a
    library with it."""
    libraries = ("libasan.so", "libubsan.so", "libstdc++.so")
    found = [build.ran(["c++", f"-print-file-name={each}"]).stdout.strip() for each in libraries]
    if not all(map(os.path.isabs, found)):
        pytest.skip("the compiler has no shared libasan")
    installed = builds("address,undefined").prefix
    variables = {
        "LD_PRELOAD": " ".join(found),
        # Python itself never frees some memory.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        MODELS_VARIABLE: str(models),
        LIBRARY_VARIABLE: str(installed / "lib" / "libneedle_runtime.so"),
    }
    file = build.PROGRAMS / f"test_{part}.py"
    options = ["-q", "-s", "--sample", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, file]
    build.ran(command, env=build.environment(**variables), cwd=ROOT)
