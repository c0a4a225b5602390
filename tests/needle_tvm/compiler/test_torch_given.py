"""Code of models as exported programs, as files of them, and with weights in bfloat16."""

import numpy as np
import pytest

import needle_tvm
from needle import Dim

torch = pytest.importorskip("torch")
Network = pytest.importorskip("tests.torch_network").Network
nn = torch.nn
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        yield


def agrees(compiled, model, x):
    found, wanted = compiled(x), model(x)
    for have, want in (
        (found["scores"], wanted["scores"]),
        (found["hidden"][0], wanted["hidden"][0]),
    ):
        np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


def test_exported_programs_and_their_files(tmp_path):
    model, x = Network().eval(), torch.randn(2, 3, 6, 6)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    compiled = needle_tvm.compile_torch(path, stage="noopt")
    agrees(compiled, model, x)
    names = [entry["name"] for entry in compiled.program.params]
    assert sorted(names) == sorted(set(model.state_dict()) - {"norm.num_batches_tracked"})
    dims = {"image": {0: Dim("n", max=5)}}
    agrees(needle_tvm.compile_torch(program, x, dims=dims, stage="noopt"), model, x[:1])


def test_weights_in_bfloat16(tmp_path):
    """Compared with PyTorch in float64 from the same weights."""
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8))
    model, x = model.bfloat16().eval(), torch.randn(4, 64).bfloat16()
    compiled = needle_tvm.compile_torch(model, x)
    compiled.set_params(dict(model.named_parameters()))
    compiled.export(tmp_path / "half")
    wanted = model.double()(x.double()).numpy()
    for each in (compiled, needle_tvm.load(tmp_path / "half")):
        found = each(x).numpy()
        assert found.dtype.name == "bfloat16"
        np.testing.assert_allclose(found.astype("float64"), wanted, rtol=0.03, atol=0.03)
