"""Arguments and results of loaded models as people write them: keywords, None, dataclasses, and
objects that hold tensors, as the models of transformers take and return them."""

import copy

import numpy as np
import pytest

import needle.torch
from needle import Dim
from needle.errors import ModelError, UnsupportedError
from tests.needle.torch.structures import Cache, CacheLayer, LanguageModel

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.peer


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, inputs):
        return self.function(inputs)


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        yield


def close(found, wanted):
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_a_language_model_as_it_is():
    model, ids = LanguageModel().eval(), torch.randint(0, 50, (2, 7))
    mask = (torch.rand(2, 7) > 0.3).long()
    wanted = model(ids, mask, output_hidden_states=True)
    named = {"attention_mask": mask, "output_hidden_states": True}
    loaded = needle.torch.load(model, ids, kwargs=named)
    ids, mask = ids.numpy(), mask.numpy()
    found = loaded(ids, attention_mask=mask, output_hidden_states=True)
    assert list(found) == ["logits", "past_key_values", "hidden_states"]
    close(found["logits"], wanted.logits)
    close(found["hidden_states"][1], wanted.hidden_states[1])
    close(found["past_key_values"]["layers"][0]["keys"], wanted.past_key_values.layers[0].keys)
    close(loaded(ids, mask)["logits"], wanted.logits)
    with pytest.raises(TypeError, match="'attention_mask' is missing"):
        loaded(ids)
    with pytest.raises(TypeError, match="output_hidden_states is False, but was True"):
        loaded(ids, mask, output_hidden_states=False)
    with pytest.raises(TypeError, match="2 arguments by position"):
        loaded(ids, mask, True)
    with pytest.raises(TypeError, match="argument 'mask' is not one"):
        loaded(ids, mask, mask=mask)
    with pytest.raises(TypeError, match="more than one value for argument 'attention_mask'"):
        loaded(ids, mask, attention_mask=mask)


def test_a_step_with_a_cache():
    model, ids = LanguageModel().eval(), torch.randint(0, 50, (2, 7))
    one = torch.randint(0, 50, (2, 1))
    before = model(ids).past_key_values
    first = needle.torch.load(model, kwargs={"input_ids": ids})
    step = needle.torch.load(model, one, kwargs={"past_key_values": copy.deepcopy(before)})
    wanted = model(one, past_key_values=copy.deepcopy(before))
    cache = first(input_ids=ids.numpy())["past_key_values"]
    found = step(one.numpy(), past_key_values=cache)
    close(found["logits"], wanted.logits)
    assert found["past_key_values"]["layers"][0]["values"].shape == (2, 8, 16)
    with pytest.raises(TypeError, match="past_key_values has no 'layers'"):
        step(one.numpy(), past_key_values=before.layers[0])


def test_arguments_that_are_no_tensors_are_fixed():
    class Scaled(nn.Module):
        def forward(self, x, factor=1, mode=None, *, shift=None):
            y = x * factor if mode == "scale" else x
            return {"y": y if shift is None else y + shift, "mode": mode, "none": [None, 3.5, y]}

    x = torch.randn(3, 4)
    loaded = needle.torch.load(Scaled().eval(), x, 3, kwargs={"mode": "scale", "shift": x})
    array = x.numpy()
    found = loaded(array, 3, "scale", shift=array)
    close(found["y"], 4 * x)
    assert found["mode"] == "scale" and found["none"][:2] == [None, 3.5]
    close(loaded(array, shift=array)["y"], 4 * x)
    with pytest.raises(TypeError, match="factor is 4, but was 3"):
        loaded(array, 4, shift=array)
    with pytest.raises(ModelError, match=r"TypeError.*'sift'"):
        needle.torch.load(Scaled().eval(), x, kwargs={"sift": x})


def test_names_that_are_no_identifiers_and_dims():
    class Pair:
        def __init__(self, x, y):
            self.x, self.y = x, y

    def model(given):
        return Pair(given["a.b"] + given["a_b"], given["class"] * 2)

    n = Dim("n", max=9)
    x = torch.randn(4, 3)
    given = {"a.b": x, "a_b": 2 * x, "class": 3 * x}
    dims = {"inputs": {name: {0: n} for name in given}}
    loaded = needle.torch.load(Applied(model).eval(), given, dims=dims)
    found = loaded({name: each[:2].numpy() for name, each in given.items()})
    close(found["x"], 3 * x[:2])
    close(found["y"], 6 * x[:2])


def test_dicts_with_whole_numbers_as_keys():
    def model(states):
        return {**states, 2: states[0] * states["last"]}

    given = {0: torch.randn(3), "last": torch.randn(3)}
    loaded = needle.torch.load(Applied(model).eval(), given)
    arrays = {name: each.numpy() for name, each in given.items()}
    found = loaded(arrays)
    assert list(found) == [0, "last", 2]
    close(found[2], given[0] * given["last"])
    with pytest.raises(TypeError, match="inputs has 3, which was not there"):
        loaded({**arrays, 3: arrays[0]})
    with pytest.raises(TypeError, match="inputs has '0', which was not there"):
        loaded({"0": arrays[0], "last": arrays["last"]})


def test_a_layer_of_a_cache_that_holds_nothing():
    """As MiniMax's layers of linear attention keep theirs elsewhere."""

    def cached(inputs):
        x, cache = inputs
        cache.update(x, x * 2, 1)
        return cache

    def arrays(cache):
        found = copy.deepcopy(cache)
        for layer in found.layers:
            if layer.keys is not None:
                layer.keys, layer.values = layer.keys.numpy(), layer.values.numpy()
        return found

    cache, x = Cache(), torch.rand(1, 2, 3)
    cache.layers.append(CacheLayer())
    cache.update(x, x, 1)
    wanted = cached((x, copy.deepcopy(cache))).layers[1].values
    loaded = needle.torch.load(Applied(cached).eval(), (x, cache))
    found = loaded((x.numpy(), arrays(cache)))["layers"]
    assert found[0]["keys"] is None
    close(found[1]["values"], wanted)
    other = arrays(cache)
    other.layers[0].keys = x.numpy()
    with pytest.raises(TypeError, match=r"layers'\]\[0\]\['keys'\] is a ndarray, but was None"):
        loaded((x.numpy(), other))


def test_one_tensor_in_two_places():
    x = torch.randn(3)
    loaded = needle.torch.load(Applied(lambda pair: pair[0] - 2 * pair[1]).eval(), (x, x))
    close(loaded((x.numpy(), 3 * x.numpy())), -5 * x)


def test_results_that_hold_no_tensor_are_refused():
    for function, match in (
        (lambda x: (x, {1, 2}), r"output\[1\] is a value of type set"),
        (lambda x: {3.5: x}, r"output has the key 3\.5: only strings"),
        (lambda x: [x, CacheLayer()], r"output\[1\] is a value of type CacheLayer"),
    ):
        with pytest.raises(UnsupportedError, match=match):
            needle.torch.load(Applied(function).eval(), torch.ones(2))
