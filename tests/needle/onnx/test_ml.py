"""Classical machine learning beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from needle.errors import ModelError, UnsupportedError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from .one_node import by_needle, by_onnxruntime, compiled, model_of

_ML = "ai.onnx.ml"


def _alike(op_type, inputs, attributes, opset=1, domain=_ML, dtype="float32"):
    model = model_of(op_type, inputs, attributes, opset, 1, domain, [dtype])
    found, expected = by_needle(model, inputs)[0], by_onnxruntime(model, inputs)[0]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5, err_msg=f"{op_type} {attributes}")


def test_of_numbers():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5)).astype("float32")
    _alike("Binarizer", (x,), {"threshold": 0.3})
    for data in (x, x[0]):
        _alike("ArrayFeatureExtractor", (data, np.array([3, 0, 3])), {})
    _alike("Scaler", (x,), {"offset": x[0].tolist(), "scale": x[1].tolist()})
    _alike("Scaler", (rng.integers(0, 9, (4, 5)),), {"offset": [0.5], "scale": [2.0]})
    for norm in ("MAX", "L1", "L2"):
        _alike("Normalizer", (x,), {"norm": norm})
    holes = np.where(x > 0.5, np.nan, x).astype("float32")
    attributes = {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0, 5.0]}
    _alike("Imputer", (holes,), {**attributes, "replaced_value_float": float("nan")})
    for post in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        attributes = {"coefficients": x[:2].ravel().tolist(), "intercepts": [0.1, 0.2]}
        _alike("LinearRegressor", (x,), {**attributes, "targets": 2, "post_transform": post})
    _alike("OneHotEncoder", (rng.integers(0, 5, 9),), {"cats_int64s": [3, 0, 2]})
    _alike("FeatureVectorizer", (x, x[:, :2]), {"inputdimensions": [5, 2]})


def test_label_encoder():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (3, 4))
    attributes = {"keys_int64s": [3, 1, 8], "values_int64s": [30, 10, 80]}
    _alike("LabelEncoder", (x,), attributes, 2, dtype="int64")
    attributes = {"keys_int64s": [3, 1, 8], "values_floats": [3.5, 1.5, 8.5]}
    _alike("LabelEncoder", (x,), {**attributes, "default_float": 7.0}, 2)
    x = rng.choice([1.5, 2.5, np.nan, 0], (3, 4)).astype("float32")
    attributes = {"keys_floats": [2.5, 1.5, float("nan")], "values_int64s": [2, 1, 9]}
    for opset in (2, 4):
        _alike("LabelEncoder", (x,), {**attributes, "default_int64": 77}, opset, dtype="int64")


def test_tf_idf():
    rng = np.random.default_rng(0)
    pool = [2, 3, 5, 5, 4, 3, 2, 1, 2, 3]
    for mode in ("TF", "IDF", "TFIDF"):
        for least, most, skip, shape in ((1, 2, 0, (3, 12)), (1, 3, 3, (12,)), (2, 2, 2, (2, 9))):
            attributes = {"mode": mode, "ngram_counts": [0, 3, 7], "pool_int64s": pool}
            attributes |= {"min_gram_length": least, "max_gram_length": most}
            attributes |= {"max_skip_count": skip, "ngram_indexes": [0, 5, 1, 3, 2, 4]}
            attributes["weights"] = rng.standard_normal(6).astype("float32").tolist()
            _alike("TfIdfVectorizer", (rng.integers(1, 6, shape),), attributes, 9, "")


def _forest(rng, modes, targets):
    """Attributes of three drawn trees."""
    found = {f"nodes_{key}": [] for key in ("treeids", "nodeids", "modes", "featureids", "values")}
    found |= {f"nodes_{key}": [] for key in ("truenodeids", "falsenodeids")}
    found |= {f"target_{key}": [] for key in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, depth):
        number = sum(1 for t in found["nodes_treeids"] if t == tree)
        place = len(found["nodes_treeids"])
        leaf = depth == 0
        row = (tree, number, "LEAF" if leaf else str(rng.choice(modes)), int(rng.integers(5)))
        for key, value in zip(found, (*row, float(rng.choice([-0.5, 0, 1])), 0, 0), strict=False):
            found[key].append(value)
        if leaf:
            for target in range(targets):
                for key, value in zip(
                    ("treeids", "nodeids", "ids", "weights"),
                    (tree, number, target, float(rng.standard_normal())),
                    strict=True,
                ):
                    found[f"target_{key}"].append(value)
        else:
            found["nodes_truenodeids"][place] = grow(tree, depth - 1)
            found["nodes_falsenodeids"][place] = grow(tree, int(rng.integers(depth)))
        return number

    for tree in range(3):
        grow(tree, 4)
    missing = rng.integers(0, 2, len(found["nodes_modes"])).tolist()
    return {**found, "nodes_missing_value_tracks_true": missing, "n_targets": targets}


def test_trees():
    rng = np.random.default_rng(0)
    x = rng.choice([-1, -0.5, 0, 0.25, 1, np.nan], (20, 5)).astype("float32")
    kinds = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for modes in (("BRANCH_LEQ",), tuple(f"BRANCH_{kind}" for kind in kinds)):
            attributes = _forest(rng, modes, 2)
            attributes |= {"aggregate_function": aggregate, "base_values": [0.5, -1.0]}
            _alike("TreeEnsembleRegressor", (x,), attributes, 3)


@pytest.mark.slow
def test_trees_compiled():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 5)).astype("float32")
    attributes = _forest(rng, ("BRANCH_LEQ",), 2)
    model = model_of("TreeEnsembleRegressor", (x,), attributes, 3, 1, _ML, ["float32"])
    np.testing.assert_allclose(compiled(model, (x,))[0], by_onnxruntime(model, (x,))[0], 1e-5)


def test_faults_are_named():
    x = np.ones((2, 3), "float32")
    with pytest.raises(ModelError, match="norm 'L3'"):
        by_needle(model_of("Normalizer", (x,), {"norm": "L3"}, 1, 1, _ML, ["float32"]), (x,))
    attributes = {"keys_strings": ["a"], "values_int64s": [1]}
    model = model_of("LabelEncoder", (x,), attributes, 2, 1, _ML, ["int64"])
    with pytest.raises(UnsupportedError, match="strings"):
        by_needle(model, (x,))
    attributes = _forest(np.random.default_rng(0), ("BRANCH_LEQ",), 1)
    attributes["nodes_truenodeids"][2] = 1  # back to where it comes from
    model = model_of("TreeEnsembleRegressor", (x,), attributes, 3, 1, _ML, ["float32"])
    with pytest.raises(ModelError, match="circle"):
        by_needle(model, (x,))
