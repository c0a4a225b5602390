"""Arguments and results of PyTorch models as people write them: keywords, None, dataclasses, and
objects that hold tensors, as the models of transformers take and return them."""

import copy

import numpy as np
import pytest

import needle_runtime
import needle_tvm
from needle import Dim
from needle_runtime.errors import InputError
from needle_tvm.errors import TranslationError
from tests.needle.torch.structures import Cache, CacheLayer, LanguageModel
from tests.needle_tvm.compiler.torch_checks import Applied

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        yield


def close(found, wanted):
    np.testing.assert_allclose(np.asarray(found), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_language_model_as_it_is(tmp_path):
    model, ids = LanguageModel().eval(), torch.randint(0, 50, (2, 7))
    mask = (torch.rand(2, 7) > 0.3).long()
    named = {"attention_mask": mask, "output_hidden_states": True}
    wanted = model(ids, **named)
    compiled = needle_tvm.compile_torch(model, ids, kwargs=named, stage="noopt")
    close(compiled(ids, **named).logits.numpy(), wanted.logits)
    with pytest.raises(InputError, match="'attention_mask'"):
        compiled(ids)
    with pytest.raises(InputError, match=r"'output_hidden_states' is False, .*for True"):
        compiled(ids, mask, output_hidden_states=False)
    with pytest.raises(InputError, match="2 arguments by position"):
        compiled(ids, mask, True)
    compiled.export(tmp_path / "lm")
    loaded = needle_runtime.load(tmp_path / "lm")
    found = loaded(ids, mask)
    assert list(found) == ["logits", "past_key_values", "hidden_states"]
    close(found.logits, wanted.logits)
    close(found[0], wanted.logits)
    close(found["hidden_states"][1], wanted.hidden_states[1])
    close(found.past_key_values.layers[0].keys, wanted.past_key_values.layers[0].keys)
    weights = {name: 1.5 * value for name, value in model.named_parameters()}
    assert set(weights) != set(model.state_dict())  # tied: PyTorch gives one name of two
    compiled.set_params(weights)
    model.load_state_dict(weights, strict=False)
    close(compiled(ids, mask).logits.numpy(), model(ids, mask).logits)


@pytest.mark.slow
def test_a_step_with_a_cache_from_another_model():
    model, ids = LanguageModel().eval(), torch.randint(0, 50, (2, 7))
    one = torch.randint(0, 50, (2, 1))
    before = model(ids).past_key_values
    first = needle_tvm.compile_torch(model, kwargs={"input_ids": ids})
    step = needle_tvm.compile_torch(model, one, kwargs={"past_key_values": copy.deepcopy(before)})
    wanted = model(one, past_key_values=copy.deepcopy(before))
    for cache in (before, first(ids).past_key_values, first(input_ids=ids).past_key_values):
        found = step(one, past_key_values=cache)
        close(found.logits.numpy(), wanted.logits)
        assert found.past_key_values.layers[0].values.shape == (2, 8, 16)
    with pytest.raises(InputError, match="'past_key_values' must have the field 'layers'"):
        step(one, past_key_values=before.layers[0])


def test_arguments_that_are_no_tensors_are_fixed():
    class Scaled(nn.Module):
        def forward(self, x, factor=1, mode=None, *, shift=None):
            y = x * factor if mode == "scale" else x
            return {"y": y if shift is None else y + shift, "mode": mode, "none": [None, 3.5, y]}

    x = torch.randn(3, 4)
    compiled = needle_tvm.compile_torch(
        Scaled().eval(), x, 3, kwargs={"mode": "scale", "shift": x}, stage="noopt"
    )
    found = compiled(x, 3, "scale", shift=x)
    close(found["y"].numpy(), 4 * x)
    assert found["mode"] == "scale" and found["none"][:2] == [None, 3.5]
    close(compiled(x, shift=x)["y"].numpy(), 4 * x)
    with pytest.raises(InputError, match="'factor' is 4"):
        compiled(x, 4, shift=x)
    with pytest.raises(TranslationError, match=r"TypeError.*'sift'"):
        needle_tvm.compile_torch(Scaled().eval(), x, kwargs={"sift": x})


def test_names_that_are_no_identifiers_and_dims():
    class Pair:
        def __init__(self, x, y):
            self.x, self.y = x, y

    def model(given):
        return Pair(given["a.b"] + given["a_b"], given["class"] * 2)

    n = Dim("n", max=9)
    x = torch.randn(4, 3)
    given = {"a.b": x, "a_b": 2 * x, "class": 3 * x}
    dims = {"inputs_0": {name: {0: n} for name in given}}
    compiled = needle_tvm.compile_torch(Applied(model).eval(), given, dims=dims, stage="noopt")
    found = compiled({name: each[:2] for name, each in given.items()})
    close(found.x.numpy(), 3 * x[:2])
    close(found.y.numpy(), 6 * x[:2])


def test_dicts_with_whole_numbers_as_keys(tmp_path):
    def model(states):
        return {**states, 2: states[0] * states["last"]}

    given = {0: torch.randn(3), "last": torch.randn(3)}
    compiled = needle_tvm.compile_torch(Applied(model).eval(), given, stage="noopt")
    compiled.export(tmp_path / "states")
    for found in (compiled(given), needle_runtime.load(tmp_path / "states")(given)):
        assert list(found) == [0, "last", 2]
        close(found[2], given[0] * given["last"])
    with pytest.raises(InputError, match=r"a dict with the keys \[0, 'last'\]"):
        compiled({"0": given[0], "last": given["last"]})


def test_a_layer_of_a_cache_that_holds_nothing(tmp_path):
    """As MiniMax's layers of linear attention keep theirs elsewhere."""

    def cached(x, cache):
        cache.update(x, x * 2, 1)
        return cache

    def empty():
        cache = Cache()
        cache.layers.append(CacheLayer())
        return cache

    before, x = empty(), torch.rand(1, 2, 3)
    before.update(x, x, 1)
    wanted = cached(x, copy.deepcopy(before)).layers[1].values
    compiled = needle_tvm.compile_torch(Applied(cached).eval(), x, before, stage="noopt")
    compiled.export(tmp_path / "cached")
    for call in (compiled, needle_runtime.load(tmp_path / "cached")):
        found = call(x, before).layers
        assert found[0].keys is None
        close(found[1].values, wanted)
        other = empty()
        other.update(x, x, 1)
        other.layers[0].keys = x
        with pytest.raises(InputError, match=r"layers\[0\]\.keys is a Tensor, .*compiled for None"):
            call(x, other)
