"""Models compiled for GPUs without a GPU: the artifacts' contents, and errors on running them."""

import json
import re
import subprocess

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import Tensor, nn
from needle_runtime.artifact import layout
from needle_runtime.artifact.manifest import read_manifest
from needle_runtime.errors import ParameterError, TargetError
from needle_runtime.target import gpu
from needle_tvm.errors import CudaCompilerError
from needle_tvm.lower import gpu_code
from needle_tvm.stages import STAGES
from needle_tvm.target import nvcc
from needle_tvm.target.spec import ARCHITECTURES, resolve

needs_nvcc = pytest.mark.skipif(nvcc.find() is None, reason="no nvcc to compile CUDA with")
no_gpu = pytest.mark.skipif(bool(gpu.gpus()), reason="there is a GPU, which would run it")

pytestmark = needs_nvcc


@pytest.fixture
def model():
    layers = (nn.Conv(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(125, 7))
    return nn.Sequential(*layers).eval()


@pytest.fixture
def x(rng):
    return Tensor(rng.standard_normal((2, 3, 5, 5), dtype=np.float32), requires_grad=False)


@pytest.mark.parametrize("stage", STAGES)
def test_the_library_holds_machine_code_for_every_kernel(model, x, stage):
    found = needle_tvm.compile(model, x, target="cuda:sm_80", stage=stage)
    library = (found.path / layout.LIBRARY).read_bytes()
    kernels = [kernel["kernel"] for kernel in found.manifest["kernels"]]
    assert kernels and b"__global__" not in library  # loading would have to compile source
    (start,) = [
        each.start() for each in re.finditer(b"\x7fELF", library) if each.start()
    ]  # the library itself begins like this, hence the search from the second
    (length,) = np.frombuffer(library[start - 8 : start], "<u8")
    cubin = library[start : start + int(length)]
    assert all(f".text.{kernel}\0".encode() in cubin for kernel in kernels)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_90a"])
def test_the_manifest_says_what_the_code_is_for_and_takes(model, x, arch):
    manifest = needle_tvm.compile(model, x, target=f"cuda:{arch}").manifest
    assert manifest["target"]["kind"] == "cuda" and manifest["target"]["arch"] == arch
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifest["target"]["nvcc"])
    for kernel in manifest["kernels"]:
        assert 0 < kernel["registers"] <= 255 and 0 <= kernel["shared"] <= 48 << 10
        assert kernel["spill_stores"] == kernel["spill_loads"] == 0


@no_gpu
def test_without_a_gpu_it_is_exported_and_not_run(model, x, tmp_path):
    found = needle_tvm.compile(model, x, target="cuda:sm_90")
    with pytest.raises(TargetError, match=r"for a CUDA GPU \(sm_90\); no CUDA device was found"):
        found(x)
    with pytest.raises(TargetError, match="no CUDA device was found"):
        _ = found.program
    folder = found.export(tmp_path / "model")
    golden = needle_runtime.read_arrays(folder, read_manifest(folder), layout.GOLDEN)
    np.testing.assert_array_equal(golden["output.0"], model(x).numpy())
    for load in (needle_tvm.load, needle_runtime.load):
        with pytest.raises(TargetError, match=r"sm_90\); no CUDA device was found"):
            load(folder)
    assert needle_tvm.compile(model, x, target="cuda:sm_90").from_cache


@no_gpu
def test_weights_are_checked_where_the_code_cannot_run(model, x, tmp_path):
    found = needle_tvm.compile(model, x, target="cuda:sm_90")
    state = {name: value.numpy() + 1 for name, value in model.state_dict().items()}
    first = next(iter(state))
    with pytest.raises(ParameterError, match=f"missing {first!r}"):
        found.set_params({name: state[name] for name in state if name != first})
    found.set_params(state)
    folder = found.export(tmp_path / "model")
    carried = needle_runtime.read_arrays(folder, read_manifest(folder), layout.PARAMS)
    np.testing.assert_array_equal(carried[first], state[first])


@no_gpu
@pytest.mark.parametrize("target", ["cuda", "cuda:0", "cuda:3"])
def test_this_machines_gpu_is_asked_for_where_there_is_none(model, x, target):
    with pytest.raises(TargetError, match=f"'{target}': no CUDA device was found"):
        needle_tvm.compile(model, x, target=target)


@pytest.mark.parametrize("target", ["cuda:sm_35", "cuda:sm_", "cuda:90", "cuda:sm_90 ", "cuda:-1"])
def test_what_is_no_architecture_is_refused(target):
    if target == "cuda:90":
        pattern = "no CUDA device|this machine has"
    else:
        pattern = "must be"
    with pytest.raises(TargetError, match=pattern):
        resolve(target)


def test_every_architecture_is_one_that_nvcc_knows():
    said = subprocess.run(
        [nvcc.require(), "--list-gpu-code"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {arch for arch in ARCHITECTURES if not arch.endswith("a")} <= set(said)


def test_the_architecture_and_the_toolkit_are_part_of_the_key(monkeypatch):
    keys = [resolve(f"cuda:{arch}").key() for arch in ("sm_80", "sm_90")]
    monkeypatch.setattr(nvcc, "version", lambda: "99.9")
    keys.append(resolve("cuda:sm_90").key())
    assert len({json.dumps(key, sort_keys=True) for key in keys}) == 3


def test_functions_are_not_approximated(rng):
    layers = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Tanh()).eval()
    x = Tensor(rng.standard_normal((2, 8), dtype=np.float32), requires_grad=False)
    sources = []
    compile_cubin = nvcc.compile_cubin

    def seen(source, arch):
        sources.append(source)
        return compile_cubin(source, arch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvcc, "compile_cubin", seen)
        needle_tvm.compile(layers, x, target="cuda:sm_90", recompile=True)
    (source,) = sources
    assert re.search(r"\bexpf\(", source) and not re.search(r"\b__(exp|log|pow)f\(", source)


def test_code_that_does_not_compile_is_an_error_with_nvccs_words():
    with pytest.raises(CudaCompilerError, match=r"nvcc -arch=sm_80 failed: .*nonsense"):
        nvcc.compile_cubin("__global__ void f() { nonsense; }", "sm_80")


def test_without_nvcc_is_one_line(monkeypatch, tmp_path, model, x):
    monkeypatch.setattr(nvcc, "find", lambda: None)
    with pytest.raises(TargetError, match="no nvcc was found: compiling for CUDA needs"):
        needle_tvm.compile(model, x, target="cuda:sm_90", recompile=True)


@pytest.mark.parametrize("change", ["source", "length", "twice", "format"])
def test_bytes_that_are_not_as_expected_are_refused(change):
    """No library is better than one with its code in the wrong place."""
    source, code = b"the source", b"\x7fELF code"
    string = gpu_code._string
    module = string(b"cuda") + b"parameters" + string(source)
    body = b"tree" + string(b"_lib") + string(b"cuda") + string(module) + string(b"end")

    def image(body):
        return len(body).to_bytes(8, "little") + body

    changed = gpu_code.with_code(image(body), source, code)
    wanted = string(b"cubin") + b"parameters" + string(code)
    assert changed == image(
        b"tree" + string(b"_lib") + string(b"cuda") + string(wanted) + string(b"end")
    )
    broken = {
        "source": image(body.replace(b"the source", b"the sauce!")),
        "length": image(body)[:-1],
        "twice": image(body + string(source)),
        "format": image(body.replace(string(b"cuda") + b"par", string(b"ptx?") + b"par")),
    }[change]
    with pytest.raises(ValueError, match=r"TVM 0\.27"):
        gpu_code.with_code(broken, source, code)
