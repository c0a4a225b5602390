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
    attributes = {"cats_int64s": [3, 0, 2], "zeros": 0}
    model = model_of("OneHotEncoder", (np.array([0, 7, 3]),), attributes, 1, 1, _ML, ["float32"])
    nan = float("nan")
    expected = [[0, 1, 0], [nan, nan, nan], [1, 0, 0]]
    np.testing.assert_array_equal(by_needle(model, (np.array([0, 7, 3]),))[0], expected)
    _alike("FeatureVectorizer", (x, x[:, :2]), {"inputdimensions": [5, 2]})


def _classified(op_type, x, attributes):
    """Labels and scores of a classifier by needle, ONNX Runtime's being the expected ones."""
    model = model_of(op_type, (x,), attributes, 1, 2, _ML, ["int64", "float32"])
    found, expected = by_needle(model, (x,)), by_onnxruntime(model, (x,))
    np.testing.assert_array_equal(found[0], expected[0], f"{op_type} {attributes}")
    np.testing.assert_allclose(found[1], expected[1], 1e-5, 1e-5, err_msg=f"{attributes}")
    return model, expected


def _numbers(rng, *shape):
    return rng.standard_normal(shape).astype("float32").ravel().tolist()


def test_linear_classifier():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 3)).astype("float32")
    for labels, rows in (([5, 9], 1), ([5, 9], 2), ([4, 2, 8], 3)):
        for post in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
            attributes = {"coefficients": _numbers(rng, rows, 3), "classlabels_ints": labels}
            attributes |= {"intercepts": _numbers(rng, rows), "post_transform": post}
            model, expected = _classified("LinearClassifier", x, attributes)
    for found, each in zip(compiled(model, (x,)), expected, strict=True):
        np.testing.assert_allclose(found, each, 1e-5, 1e-5)
    attributes["intercepts"] = [0.5]
    model = model_of("LinearClassifier", (x,), attributes, 1, 2, _ML, ["int64", "float32"])
    with pytest.raises(ModelError, match="9 coefficients for 1 scores"):
        by_needle(model, (x,))


def _machine(rng, counts, kernel, post="NONE"):
    """Attributes of a support vector machine of so many vectors of each class."""
    classes, vectors = len(counts), sum(counts)
    return {
        "kernel_type": kernel,
        "kernel_params": [0.5, 0.25, 3.0],
        "support_vectors": _numbers(rng, vectors, 3),
        "coefficients": _numbers(rng, classes - 1, vectors),
        "vectors_per_class": list(counts),
        "rho": _numbers(rng, classes * (classes - 1) // 2),
        "classlabels_ints": list(range(4, 4 + classes)),
        "post_transform": post,
    }


def test_support_vector_machines():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((7, 3)).astype("float32")
    kernels = ("LINEAR", "POLY", "RBF", "SIGMOID")
    for counts in ((2, 4), (3, 2, 4), (2, 1, 3, 2)):
        for kernel in kernels:
            model, expected = _classified("SVMClassifier", x, _machine(rng, counts, kernel))
        for post in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"):
            _classified("SVMClassifier", x, _machine(rng, counts, "RBF", post))
    for found, each in zip(compiled(model, (x,)), expected, strict=True):
        np.testing.assert_allclose(found, each, 1e-5, 1e-5)
    positive = _machine(rng, (2, 4), "RBF")
    positive["coefficients"] = np.abs(positive["coefficients"]).tolist()
    _classified("SVMClassifier", x, positive | {"rho": [-1.0]})
    for shift in (-4.0, 4.0):  # votes decide, and not the probabilities
        probable = _machine(rng, (2, 4), "RBF") | {"prob_a": [-1.5], "prob_b": [shift]}
        _classified("SVMClassifier", x, probable)
    for count in (3, 5):
        pairs = count * (count - 1) // 2
        probable = _machine(rng, [2] * count, "RBF")
        probable |= {"prob_a": [-1.5] * pairs, "prob_b": _numbers(rng, pairs)}
        _classified("SVMClassifier", x, probable)
    probable = _machine(rng, [1] * 11, "RBF") | {"prob_a": [-1.0] * 55, "prob_b": [0.0] * 55}
    model = model_of("SVMClassifier", (x,), probable, 1, 2, _ML, ["int64", "float32"])
    with pytest.raises(UnsupportedError, match="of 11 classes; at most 10"):
        by_needle(model, (x,))
    for kernel in kernels:
        for one_class in (0, 1):
            attributes = {"support_vectors": _numbers(rng, 5, 3), "n_supports": 5}
            attributes |= {"coefficients": _numbers(rng, 5), "rho": [0.25], "kernel_type": kernel}
            attributes |= {"kernel_params": [0.5, 0.25, 3.0], "one_class": one_class}
            _alike("SVMRegressor", (x,), attributes)
    linear = {"coefficients": _numbers(rng, 3), "rho": [0.25], "kernel_params": [0.0, 0.0, 0.0]}
    _alike("SVMRegressor", (x,), linear)


def test_maps_of_scores_are_their_array():
    from onnx import TensorProto, helper

    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 3)).astype("float32")
    attributes = {"coefficients": _numbers(rng, 2, 3), "intercepts": [0.5, -0.5]}
    scores = helper.make_node(
        "LinearClassifier", ["x0"], ["label", "scores"], domain=_ML,
        classlabels_ints=[3, 4], post_transform="SOFTMAX", **attributes,
    )  # fmt: skip
    maps = helper.make_node("ZipMap", ["scores"], ["maps"], domain=_ML, classlabels_int64s=[3, 4])
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    graph = helper.make_graph(
        [scores, maps],
        "zipped",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [None, 3])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_value_info("maps", helper.make_sequence_type_proto(kind)),
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_ML, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    expected = by_onnxruntime(model, (x,))
    label, found = by_needle(model, (x,))
    np.testing.assert_array_equal(label, expected[0])
    np.testing.assert_allclose(found, [list(each.values()) for each in expected[1]], 1e-5)


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


def _forest(rng, modes, targets, what="target"):
    """Attributes of three drawn trees, whose leaves have a weight for each of these targets."""
    targets = range(targets) if isinstance(targets, int) else targets
    found = {f"nodes_{key}": [] for key in ("treeids", "nodeids", "modes", "featureids", "values")}
    found |= {f"nodes_{key}": [] for key in ("truenodeids", "falsenodeids")}
    found |= {f"{what}_{key}": [] for key in ("treeids", "nodeids", "ids", "weights")}

    def grow(tree, depth):
        number = sum(1 for t in found["nodes_treeids"] if t == tree)
        place = len(found["nodes_treeids"])
        leaf = depth == 0
        row = (tree, number, "LEAF" if leaf else str(rng.choice(modes)), int(rng.integers(5)))
        for key, value in zip(found, (*row, float(rng.choice([-0.5, 0, 1])), 0, 0), strict=False):
            found[key].append(value)
        if leaf:
            for target in targets:
                for key, value in zip(
                    ("treeids", "nodeids", "ids", "weights"),
                    (tree, number, target, float(rng.standard_normal())),
                    strict=True,
                ):
                    found[f"{what}_{key}"].append(value)
        else:
            found["nodes_truenodeids"][place] = grow(tree, depth - 1)
            found["nodes_falsenodeids"][place] = grow(tree, int(rng.integers(depth)))
        return number

    for tree in range(3):
        grow(tree, 4)
    missing = rng.integers(0, 2, len(found["nodes_modes"])).tolist()
    found["nodes_missing_value_tracks_true"] = missing
    return {**found, "n_targets": len(targets)} if what == "target" else found


def test_trees():
    rng = np.random.default_rng(0)
    x = rng.choice([-1, -0.5, 0, 0.25, 1, np.nan], (20, 5)).astype("float32")
    kinds = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for modes in (("BRANCH_LEQ",), tuple(f"BRANCH_{kind}" for kind in kinds)):
            attributes = _forest(rng, modes, 2)
            attributes |= {"aggregate_function": aggregate, "base_values": [0.5, -1.0]}
            _alike("TreeEnsembleRegressor", (x,), attributes, 3)


_MOVED = ("nodes_values", "base_values", "target_weights", "class_weights")


def _as_tensors(attributes, move=lambda x: x):
    """With the numbers of trees as tensors of float64."""
    from onnx import numpy_helper

    found = dict(attributes)
    for name in found.keys() & set(_MOVED):
        array = move(np.array(found.pop(name), "float64"))
        found[f"{name}_as_tensor"] = numpy_helper.from_array(array)
    return found


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_trees_of_float64(aggregate):
    """Float64 inputs next to the splits, which are lists of float32 or tensors of float64."""
    rng = np.random.default_rng(0)
    x = rng.choice([-0.5, -0.5 + 1e-12, 0, 1e-12, 1, 1 - 1e-12, np.nan], (40, 5))
    attributes = _forest(rng, ("BRANCH_LEQ", "BRANCH_GT"), 2)
    attributes |= {"aggregate_function": aggregate, "base_values": [0.5, -1.0]}
    _alike("TreeEnsembleRegressor", (x,), attributes, 3)
    nearly = _as_tensors(attributes, lambda values: values + 5e-13)
    _alike("TreeEnsembleRegressor", (x,), nearly, 3)


@pytest.mark.parametrize("named", [(0, 1, 2), (1,)])
def test_classes_of_trees_of_float64(named):
    rng = np.random.default_rng(1)
    x = rng.choice([-0.5, -0.5 + 1e-12, 0, 1e-12, 1, 1 - 1e-12], (40, 5))
    attributes = _forest(rng, ("BRANCH_LEQ",), named, "class")
    attributes["classlabels_int64s"] = [7, -1, 4][: max(2, len(named))]
    for given in (attributes, _as_tensors(attributes, lambda values: values + 5e-13)):
        kinds = ["int64", "float32"]
        model = model_of("TreeEnsembleClassifier", (x,), given, 3, 2, _ML, kinds)
        for found, right in zip(by_needle(model, (x,)), by_onnxruntime(model, (x,)), strict=True):
            np.testing.assert_allclose(found, right, 1e-6, 1e-7)


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_classes_of_trees(post):
    """Three classes, and two of which leaves name the first or the second alone."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1, -0.5, 0, 0.25, 1, np.nan], (20, 5)).astype("float32")
    for named, labels, base, positive in (
        (range(3), [7, -1, 4], (), False),
        (range(3), [7, -1, 4], (0.5, -1.0, 0.25), False),
        ((2, 0), [7, -1, 4], (), False),
        ((0,), [3, 8], (), False),
        ((0,), [3, 8], (-0.25,), False),
        ((0,), [3, 8], (0.125,), True),
        ((1,), [3, 8], (), True),
    ):
        attributes = _forest(rng, ("BRANCH_LEQ",), named, "class")
        if positive:
            attributes["class_weights"] = [abs(w) / 3 for w in attributes["class_weights"]]
        attributes |= {"classlabels_int64s": labels, "post_transform": post}
        attributes |= {"base_values": list(base)} if base else {}
        kind, kinds = "TreeEnsembleClassifier", ["int64", "float32"]
        model = model_of(kind, (x,), attributes, 3, 2, _ML, kinds)
        expected = by_onnxruntime(model, (x,))
        found = by_needle(model, (x,))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_allclose(found[1], expected[1], 1e-5, 1e-6)


def _of_sklearn(forest):
    """The attributes of a classifier for a forest of scikit-learn. Its inputs are float32, so that
    a threshold of float64 can be rounded down."""
    keys = ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids")
    nodes = {f"nodes_{key}": [] for key in keys}
    leaves = {f"class_{key}": [] for key in ("treeids", "nodeids", "ids", "weights")}
    for number, each in enumerate(forest.estimators_):
        tree = each.tree_
        low = tree.threshold.astype("float32")
        low = np.where(low > tree.threshold, np.nextafter(low, np.float32(-np.inf)), low)
        for i in range(tree.node_count):
            leaf = tree.children_left[i] < 0
            row = (number, i, "LEAF" if leaf else "BRANCH_LEQ", 0 if leaf else tree.feature[i])
            ways = (0, 0) if leaf else (tree.children_left[i], tree.children_right[i])
            for key, value in zip(nodes, (*row, float(low[i]), *ways), strict=True):
                nodes[key].append(value if isinstance(value, (str, float)) else int(value))
            share = tree.value[i, 0] / tree.value[i, 0].sum() / len(forest.estimators_)
            for target, weight in enumerate(share if leaf else ()):
                row = (number, i, target, float(weight))
                for key, value in zip(leaves, row, strict=True):
                    leaves[key].append(value)
    return {**nodes, **leaves, "classlabels_int64s": [int(n) for n in forest.classes_]}


@pytest.mark.slow
def test_a_deep_forest_of_sklearn_compiled():
    """Trees of some hundred leaves, beside the library that grew them."""
    pytest.importorskip("needle_tvm")
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1500, 8)).astype("float32")
    noise = rng.standard_normal(1500)
    y = (np.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + noise > 0).astype(int) + (x[:, 3] > 0.5)
    forest = ensemble.RandomForestClassifier(30, random_state=0).fit(x, y)
    assert max(each.get_depth() for each in forest.estimators_) > 15
    rows = rng.standard_normal((200, 8)).astype("float32")
    kinds = ["int64", "float32"]
    attributes = _of_sklearn(forest)
    model = model_of("TreeEnsembleClassifier", (rows,), attributes, 3, 2, _ML, kinds)
    label, share = compiled(model, (rows,))
    np.testing.assert_allclose(share, forest.predict_proba(rows), 1e-5, 1e-6)
    np.testing.assert_array_equal(label, forest.predict(rows))


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
    with pytest.raises(ModelError, match="cycle"):
        by_needle(model, (x,))
    attributes = _forest(np.random.default_rng(0), ("BRANCH_LEQ",), 1)
    model = model_of("TreeEnsembleRegressor", (x,), attributes, 3, 1, _ML, ["float32"])
    with pytest.raises(ModelError, match=r"asks for feature [34], but its input has 3"):
        by_needle(model, (x,))
