"""What is captured as a CUDA graph, and, on the emulated GPU, that replaying it gives what it must.

The checks that run it are emulated_gpu/graph_checks.py.
"""

import json

import numpy as np
import pytest

from apps import models
from apps.contestants import build_model
from needle import Tensor, nn, ops
from needle.trace import trace
from needle_runtime.artifact import artifact
from needle_runtime.errors import ArtifactError
from needle_tvm.frontend import lowering
from needle_tvm.lower import build, cuda_graph, pipeline
from needle_tvm.target.spec import resolve
from needle_tvm.tir.functions import calls_of
from tests.needle_tvm import emulated_gpu
from tests.needle_tvm.emulated_gpu.test_emulated_gpu import check

TARGET = resolve("cuda:sm_90")


def scheduled(function, inputs, stage="tuned", disable=()):
    graph = trace(function, *inputs)
    target = TARGET.to_tvm()
    module = lowering.lower(graph, target, stage, disable=disable)
    return graph, build.schedule(module, target, stage, disable)


def tensor(*shape):
    return Tensor(np.zeros(shape, np.float32), requires_grad=False)


def chain(count):
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(count))).eval()


@pytest.mark.parametrize("name", sorted(models.EVALUATED))
def test_the_models_of_the_apps_are_captured(name):
    model, inputs = build_model(models.find(name).factory, batch=8)
    inputs = [Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    graph, module = scheduled(model.eval(), inputs)
    assert cuda_graph.is_marked(module)
    manifest = build.describe(lowering.signature(graph), module, TARGET, TARGET.to_tvm(), {})
    names = {"function": "main_for_graph", "results": "main_results"}
    assert manifest["functions"]["main"]["graph"] == names
    # Linear layers one after the other, at least: what is counted is not nothing.
    assert len(calls_of(module, "main")) >= 5


def test_memory_that_is_written_to_is_given_back():
    _, module = scheduled(chain(5), [tensor(4, 8)])
    # Two in turn for what is in between, and the result's own.
    result = cuda_graph.add_graph_functions(planned(module))["main_for_graph"].ret_ty
    assert len(result.fields) == 1 + 3
    assert "main_results" not in str(cuda_graph.add_graph_functions(planned(unmarked())))


def unmarked():
    _, module = scheduled(chain(5), [tensor(4, 8)], disable=("cuda_graph",))
    assert not cuda_graph.is_marked(module)
    return module


def planned(module):
    from needle_tvm._tvm.names import relax, sequential

    steps = relax.transform
    return sequential(
        [
            steps.ToNonDataflow(),
            steps.RemovePurityChecking(),
            steps.CallTIRRewrite(),
            steps.StaticPlanBlockMemory(),
        ]
    )(module)


@pytest.mark.parametrize(("stage", "captured"), [("tuned", True), ("noopt", False)])
def test_a_stage_whose_kernels_take_memory_for_themselves_is_not_captured(stage, captured):
    def function(x):
        for _ in range(8):
            x = ops.softmax(x, axis=1)
        return x

    _, module = scheduled(function, [tensor(4, 8)], stage)
    assert cuda_graph.is_marked(module) == captured


def test_every_stage_has_the_switch():
    for stage in ("noopt", "fused", "tuned"):
        assert "cuda_graph" in pipeline.switches(stage, "cuda")
        assert "cuda_graph" not in pipeline.switches(stage, "llvm")


@pytest.mark.parametrize("entry", [{}, {"function": "main"}, {"function": 1, "results": "x"}])
def test_a_manifest_that_names_no_functions_is_refused(tmp_path, entry):
    graph, module = scheduled(chain(4), [tensor(4, 8)])
    manifest = build.describe(lowering.signature(graph), module, TARGET, TARGET.to_tvm(), {})
    (tmp_path / artifact.LIBRARY).write_bytes(b"\x7fELF")
    artifact.write_manifest(tmp_path, manifest)
    assert artifact.read_manifest(tmp_path)["functions"] == json.loads(
        json.dumps(manifest["functions"])
    )
    manifest["functions"]["main"]["graph"] = entry
    artifact.write_manifest(tmp_path, manifest)
    with pytest.raises(ArtifactError, match="is not an artifact's manifest"):
        artifact.read_manifest(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    emulated_gpu.compiler() is None, reason="no C++ compiler to compile the emulated GPU with"
)
def test_replaying():
    check("", 300, file="graph_checks.py")
