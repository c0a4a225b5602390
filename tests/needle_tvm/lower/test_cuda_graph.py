"""Which code is captured as a CUDA graph, and the results of replays on the emulated GPU.

The checks that run graphs are in emulated_gpu/graph_checks.py.
"""

import json

import numpy as np
import pytest

from apps import models
from apps.contestants import build_model
from needle import Tensor, nn, ops
from needle.trace import trace
from needle_tvm.artifact import layout
from needle_tvm.artifact.manifest import read_manifest, write_manifest
from needle_tvm.errors import ArtifactError
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


@pytest.mark.parametrize("name", sorted(models.FACTORIES))
def test_the_models_of_the_apps_are_captured(name):
    model, inputs = build_model(models.factory(name), batch=8)
    inputs = [Tensor(np.asarray(x), requires_grad=False) for x in inputs]
    graph, module = scheduled(model.eval(), inputs)
    assert cuda_graph.is_marked(module)
    manifest = build.describe(lowering.signature(graph), module, TARGET, TARGET.to_tvm(), {})
    names = {"function": "main_for_graph", "results": "main_results"}
    assert manifest["functions"]["main"]["graph"] == names
    # There are at least the linear layers, so that the count is not empty.
    assert len(calls_of(module, "main")) >= 5


def test_memory_that_is_written_to_is_given_back():
    _, module = scheduled(chain(5), [tensor(4, 8)])
    # Two buffers in turn for intermediate values, and one for the result.
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


@pytest.mark.parametrize(("kernels", "captured"), [(1, False), (3, False), (4, True)])
def test_few_kernels_gain_nothing(kernels, captured):
    # Estimates: 3 us a kernel, 6 us for a graph, 2 us each for a small input and a small result.
    _, module = scheduled(chain(kernels), [tensor(4, 8)])
    assert cuda_graph.is_marked(module) == captured


def test_large_inputs_cost_more_than_few_kernels_save():
    def of_size(rows):
        def function(x):
            return nn_chain(x.sum(axes=(0,)).reshape((1, 8)))

        return scheduled(function, [tensor(rows, 8)])[1]

    nn_chain = chain(6)
    assert cuda_graph.is_marked(of_size(4))
    assert not cuda_graph.is_marked(of_size(1 << 20))  # 32 MB: 64 us


def test_a_function_that_takes_memory_for_itself_is_not_captured():
    def function(x):
        for _ in range(8):
            x = ops.softmax(x, axis=1)
        return x

    for stage, captured in (("tuned", True), ("noopt", False)):
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
    (tmp_path / layout.LIBRARY).write_bytes(b"\x7fELF")
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path)["functions"] == json.loads(json.dumps(manifest["functions"]))
    manifest["functions"]["main"]["graph"] = entry
    write_manifest(tmp_path, manifest)
    with pytest.raises(ArtifactError, match="is not an artifact's manifest"):
        read_manifest(tmp_path)


@pytest.mark.skipif(
    emulated_gpu.compiler() is None, reason="no C++ compiler to compile the emulated GPU with"
)
def test_replaying():
    check("", 300, file="graph_checks.py")
