"""Models as exported programs, and as files of them."""

import numpy as np
import pytest

import needle.torch
from needle import Dim
from needle.errors import ModelError

torch = pytest.importorskip("torch")
Network = pytest.importorskip("tests.torch_network").Network
nn = torch.nn
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        yield


def agrees(loaded, model, x):
    found, wanted = loaded(x.numpy()), model(x)
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
    loaded = needle.torch.load(path)
    agrees(loaded, model, x)
    names = [name for name, _ in loaded.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]
    dims = {"image": {0: Dim("n", max=5)}}
    agrees(needle.torch.load(program, x, dims=dims), model, x[:1])


def test_files_that_hold_no_program(tmp_path, capfd):
    other = tmp_path / "other.pt2"
    with pytest.raises(ModelError, match=r"other\.pt2': there is no such file"):
        needle.torch.load(other)
    other.write_bytes(b"none")
    with pytest.raises(ModelError, match=r"other\.pt2': not a file that torch\.export\.save"):
        needle.torch.load(str(other))
    assert capfd.readouterr() == ("", "")
