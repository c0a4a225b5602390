"""Operators that read images at given places, beside ONNX Runtime and onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
from needle.errors import ModelError, UnsupportedError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from .one_node import by_needle, by_onnxruntime, by_reference, compiled, model_of


def _floats(rng, *shape):
    return rng.standard_normal(shape).astype("float32")


def _alike(op_type, inputs, attributes, opset, known=(), judge=by_onnxruntime):
    model = model_of(op_type, inputs, attributes, opset)
    found, expected = by_needle(model, inputs, known)[0], judge(model, inputs)[0]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4, err_msg=f"{op_type} {attributes}")


def test_grid_sample():
    rng = np.random.default_rng(0)
    for opset, modes in ((16, ("bilinear", "nearest", "bicubic")), (20, ("linear", "nearest"))):
        for mode in modes:
            for padding in ("zeros", "border", "reflection"):
                for corners in (0, 1):
                    size, out = ((4, 5), (3, 2)) if opset == 16 else ((3, 4, 5), (2, 3, 2))
                    grid = rng.uniform(-1.5, 1.5, (2, *out, len(size))).astype("float32")
                    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners}
                    _alike("GridSample", (_floats(rng, 2, 3, *size), grid), attributes, opset)


def test_grid_sample_cubic_of_three_axes():
    rng = np.random.default_rng(0)
    grid = rng.uniform(-0.9, 0.9, (1, 2, 2, 2, 3)).astype("float32")
    inputs = _floats(rng, 1, 2, 5, 4, 6), grid
    _alike("GridSample", inputs, {"mode": "cubic"}, 20, judge=by_reference)


def test_affine_grid():
    rng = np.random.default_rng(0)
    for size in ((2, 3, 4, 5), (2, 3, 4, 5, 6)):
        for corners in (0, 1):
            axes = len(size) - 2
            inputs = _floats(rng, 2, axes, axes + 1), np.array(size)
            _alike("AffineGrid", inputs, {"align_corners": corners}, 20, (1,))


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(opset, mode):
    rng = np.random.default_rng(opset)
    x, images = _floats(rng, 2, 3, 9, 11), np.array([1, 0, 1, 1])
    for ratio in (0, 1, 3):
        first = rng.uniform(-2, 10, (4, 2))
        regions = np.concatenate([first, first + rng.uniform(0, 14, (4, 2))], 1).astype("float32")
        attributes = {"mode": mode, "output_height": 3, "output_width": 2, "spatial_scale": 0.5}
        attributes["sampling_ratio"] = ratio
        for kind in ("half_pixel", "output_half_pixel") if opset > 10 else (None,):
            if kind is not None:
                attributes["coordinate_transformation_mode"] = kind
            inputs = x, regions, images
            _alike("RoiAlign", inputs, attributes, opset)
            _alike("RoiAlign", inputs, attributes, opset, (1, 2))


def test_max_roi_pool():
    rng = np.random.default_rng(0)
    for scale in (1.0, 0.5):
        first = rng.uniform(-2, 8, (5, 2))
        corners = np.concatenate([first, first + rng.uniform(-2, 9, (5, 2))], 1)
        rois = np.concatenate([rng.integers(0, 2, (5, 1)), corners], 1).astype("float32")
        attributes = {"pooled_shape": [3, 2], "spatial_scale": scale}
        _alike("MaxRoiPool", (_floats(rng, 2, 3, 9, 11), rois), attributes, 12)


def test_deform_conv():
    rng = np.random.default_rng(0)
    for group, parts, stride, dilation, pads in ((1, 1, 1, 1, [0, 0]), (2, 2, 2, 2, [1, 2])):
        size = [
            (n + 2 * p - (k - 1) * dilation - 1) // stride + 1
            for n, p, k in zip((8, 9), pads, (3, 2), strict=True)
        ]
        inputs = (
            _floats(rng, 2, 4, 8, 9),
            _floats(rng, 6, 4 // group, 3, 2),
            2 * _floats(rng, 2, parts * 12, *size),
            _floats(rng, 6),
            _floats(rng, 2, parts * 6, *size),
        )
        attributes = {"group": group, "offset_group": parts, "pads": pads * 2}
        attributes |= {"strides": [stride] * 2, "dilations": [dilation] * 2}
        _alike("DeformConv", inputs, attributes, 19)
        _alike("DeformConv", (*inputs[:3],), attributes, 19)


@pytest.mark.slow
def test_compiled_as_eager():
    rng = np.random.default_rng(0)
    inputs = (
        _floats(rng, 1, 4, 8, 9),
        _floats(rng, 2, 4, 3, 3),
        _floats(rng, 1, 18, 6, 7),
    )
    model = model_of("DeformConv", inputs, {}, 19)
    np.testing.assert_allclose(
        compiled(model, inputs)[0], by_onnxruntime(model, inputs)[0], 1e-4, 1e-4
    )


def test_pools_of_four_axes_of_which_some_have_windows_of_one():
    """As Keras's exporter writes them for jax, with the batch among the axes."""
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 6, 7, 4)).astype("float32")
    attributes = {"kernel_shape": [1, 2, 3, 1], "strides": [1, 2, 1, 1]}
    attributes["pads"] = [0, 1, 0, 0, 0, 0, 1, 0]
    images = x.transpose(0, 2, 5, 1, 3, 4).reshape(12, 2, 6, 7)  # ONNX Runtime pools these
    two_axes = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]}
    for op_type in ("MaxPool", "AveragePool"):
        found = by_needle(model_of(op_type, (x,), attributes), (x,))[0]
        expected = by_onnxruntime(model_of(op_type, (images,), two_axes), (images,))[0]
        expected = expected.reshape(1, 3, 4, 2, *expected.shape[2:]).transpose(0, 3, 1, 4, 5, 2)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    with pytest.raises(UnsupportedError, match="needle pools over 1, 2 or 3 axes"):
        by_needle(model_of("MaxPool", (x,), {"kernel_shape": [2, 2, 2, 2]}), (x,))


def test_non_max_suppression_of_known_boxes():
    rng = np.random.default_rng(0)
    for centre in (0, 1):
        for count in (2, 3, 4, 5):
            inputs = (
                rng.uniform(0, 10, (2, 20, 4)).astype("float32"),
                rng.choice(np.linspace(0, 1, 30), (2, 3, 20)).astype("float32"),
                np.array([6]),
                np.array([0.4], "float32"),
                np.array([0.3], "float32"),
            )[:count]
            known = range(count)
            _alike("NonMaxSuppression", inputs, {"center_point_box": centre}, 11, known)


def test_what_depends_on_values_is_refused():
    import needle.onnx
    from needle.trace import trace

    boxes, scores = np.ones((1, 4, 4), "float32"), np.ones((1, 1, 4), "float32")
    module = needle.onnx.load(model_of("NonMaxSuppression", (boxes, scores), {}, 11))
    with pytest.raises(UnsupportedError, match=r"NonMaxSuppression.*fixed="):
        trace(module, ndl.Tensor(boxes), ndl.Tensor(scores))
    inputs = np.ones((1, 1, 4, 4), "float32"), boxes[0], np.zeros(4, "int64")
    module = needle.onnx.load(model_of("RoiAlign", inputs, {}, 16))
    with pytest.raises(UnsupportedError, match="sampling_ratio 0"):
        trace(module, *map(ndl.Tensor, inputs))


def test_faults_are_named():
    x, grid = np.ones((1, 1, 4, 4), "float32"), np.zeros((1, 2, 2, 3), "float32")
    with pytest.raises(ModelError, match="do not match"):
        by_needle(model_of("GridSample", (x, grid), {}, 16, dtypes=["float32"]), (x, grid))
    grid = grid[..., :2]
    with pytest.raises(ModelError, match="mode 'cosine'"):
        by_needle(model_of("GridSample", (x, grid), {"mode": "cosine"}, 16), (x, grid))
    inputs = x, np.ones((1, 1, 3, 3), "float32"), np.zeros((1, 5, 2, 2), "float32")
    with pytest.raises(ModelError, match="9 taps"):
        by_needle(model_of("DeformConv", inputs, {}, 19, dtypes=["float32"]), inputs)
