"""The examples of runtime/examples, built as users build them, reach Python's results."""

import numpy as np
import pytest

import needle_runtime
from tests.needle_runtime.capi import build
from tests.needle_runtime.capi.library import prefix
from tests.needle_runtime.capi.models import BATCH, EPOCHS


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The folder of the examples, built with CMake's package."""
    return build.programs(build.EXAMPLES, tmp_path_factory.mktemp("examples"), prefix())


def data(folder, split):
    """The images and labels of a split."""
    images = np.fromfile(folder / f"{split}_images.f32", "<f4").reshape(-1, 64)
    return images, np.fromfile(folder / f"{split}_labels.i32", "<i4")


def right(program, folder):
    """The line that the examples print for a classifier."""
    images, labels = data(folder, "test")
    count = int((program(images).argmax(1) == labels).sum())
    return f"{count} of {len(labels)} images right\n"


@pytest.mark.parametrize(
    "command", [["infer_c"], ["infer_cpp"], ["infer_cpp", 1], ["infer_cpp", 7]]
)
def test_inference_has_pythons_accuracy(examples, digits, command):
    name, *threads = command
    done = build.ran([examples / name, digits / "reader", digits, *threads])
    wanted = right(needle_runtime.load(digits / "reader"), digits)
    assert (done.stdout, done.stderr) == (wanted, "")
    assert int(wanted.split()[0]) >= 300  # of 355


def trained(step, folder, epochs):
    """What Python's runtime gets from a step: the lines of train.cpp."""
    images, labels = data(folder, "train")
    lines = []
    for _ in range(epochs):
        for at in range(0, len(labels) - BATCH + 1, BATCH):
            loss = step(images[at : at + BATCH], labels[at : at + BATCH])
        lines.append(f"loss {float(loss):.6g}\n")
    reader, state = needle_runtime.load(folder / "reader"), step.state()
    reader.set_params({each["name"]: state[f"model.{each['name']}"] for each in reader.params})
    return "".join(lines) + right(reader, folder)


def test_training_has_pythons_losses_and_accuracy(examples, digits, tmp_path):
    step = needle_runtime.load(digits / "step")
    command = [examples / "train", digits / "step", digits / "reader", digits]
    for _ in range(2):  # the second continues
        done = build.ran([*command, EPOCHS, tmp_path / "state"])
        assert (done.stdout, done.stderr) == (trained(step, digits, EPOCHS), "")
    build.ran([*command, 2 * EPOCHS, tmp_path / "whole"])
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "state").read_bytes()


def test_training_has_needles_accuracy(examples, digits, tmp_path):
    """The reader was exported after as many epochs of the step in needle."""
    command = [examples / "train", digits / "step", digits / "reader", digits, EPOCHS]
    done = build.ran([*command, tmp_path / "state"])
    assert done.stdout.endswith(right(needle_runtime.load(digits / "reader"), digits))


@pytest.mark.parametrize("name", ["infer_c", "infer_cpp", "train"])
def test_failures_are_one_line(examples, digits, tmp_path, name):
    rest = [digits / "reader"] if name == "train" else []
    more = [1, tmp_path / "state"] if name == "train" else []

    def failure(model, folder):
        done = build.ran([examples / name, model, *rest, folder, *more], check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        return done.stderr

    assert "no artifact there" in failure(tmp_path, digits)
    assert "cannot be read" in failure(digits / "reader", tmp_path)
    done = build.ran([examples / name], check=False)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("usage: ")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("name", "compiler"), [("infer.c", "cc -std=c11"), ("infer.cpp", "c++ -std=c++20 -pthread")]
)
def test_pkg_config(digits, tmp_path, monkeypatch, name, compiler):
    if build.shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    monkeypatch.setenv("PKG_CONFIG_PATH", str(prefix() / "lib" / "pkgconfig"))
    flags = build.ran(["pkg-config", "--cflags", "--libs", "needle_runtime"]).stdout.split()
    source, program = build.EXAMPLES / name, tmp_path / "infer"
    warnings = build.WARNINGS.split()
    build.ran([*compiler.split(), *warnings, source, "-o", program, *flags])
    assert build.ran([program, digits / "reader", digits]).stdout.endswith("images right\n")


@pytest.mark.parametrize(
    "language", ["c -std=c99", "c -std=c17", "c++ -std=c++17", "c++ -std=c++20"]
)
def test_the_headers_need_nothing_else(tmp_path, language):
    header = "needle_runtime.hpp" if language.startswith("c++") else "needle_runtime.h"
    source = tmp_path / "source"
    source.write_text(f"#include <{header}>\n#include <{header}>\n")
    flags = [*build.WARNINGS.split(), "-I", prefix() / "include", "-fsyntax-only"]
    build.ran(["c++" if "++" in language else "cc", "-x", *language.split(), *flags, source])


def test_the_wrong_type_is_a_compile_error(tmp_path):
    """A view of memory that is gone, and types that no array has."""
    begin = "#include <needle_runtime.hpp>\nvoid use(needle::Program& p, needle::Call& c) {\n"
    source = tmp_path / "source.cc"
    command = ["c++", "-std=c++17", "-I", prefix() / "include", "-fsyntax-only", source]
    for line, right_ in [
        ('std::vector<float> x; c.input("x", x);', True),
        ('c.input("x", std::vector<float>(3));', False),
        ('std::vector<bool> x; c.input("x", x);', False),
        ('struct S {}; S s; c.input("x", &s, 1);', False),
        ('long double s; c.input("x", &s, 1);', False),
        ("needle::Call d = c;", False),
        ('p.state<std::int64_t>("calls");', True),
    ]:
        source.write_text(f"{begin}{line}\n(void)p; (void)c;\n}}\n")
        assert (build.ran(command, check=False).returncode == 0) == right_, line
