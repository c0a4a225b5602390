"""Resize and Upsample beside ONNX Runtime and onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest

import needle as ndl
import needle_tvm
from needle import nn
from needle.errors import ModelError, UnsupportedError

pytest.importorskip("onnx")

from .one_node import by_needle, by_onnxruntime, by_reference, compiled, model_of

_COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "tf_crop_and_resize"),
)
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _drawn(rng, mode, coordinates, by_scales):
    """The inputs and attributes of a Resize; scales are such that sizes are no rounded ones."""
    old = [int(n) for n in rng.choice([2, 4, 6, 8], 2)]
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    roi = scales = sizes = None
    if mode == "nearest":
        attributes["nearest_mode"] = str(rng.choice(_NEAREST))
    elif coordinates != "tf_crop_and_resize":
        attributes["antialias"] = int(rng.integers(2))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = float(rng.choice([-0.5, -0.75]))
        attributes["exclude_outside"] = int(rng.integers(2))
    if coordinates == "tf_crop_and_resize":
        attributes["extrapolation_value"] = 7.0
        bounds = rng.uniform((-0.2, -0.2, 0.5, 0.5), (0.5, 0.5, 1.2, 1.2))
        roi = np.array([0, 0, *bounds[:2], 1, 1, *bounds[2:]], "float32")
    if by_scales:
        scales = np.array([1, 1, *rng.choice([0.5, 1.5, 2, 2.5, 3], 2)], "float32")
    else:
        sizes = np.array([2, 3, *rng.integers(1, 15, 2)], "int64")
    x = rng.standard_normal((2, 3, *old)).astype("float32")
    return (x, roi, scales, sizes)[: 3 if by_scales else 4], attributes


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_drawn_parameters(mode):
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(len(mode))
    for coordinates in _COORDINATES:
        for i in range(8):
            inputs, attributes = _drawn(rng, mode, coordinates, i % 2 == 0)
            model = model_of("Resize", inputs, attributes, 19)
            found = by_needle(model, inputs, (1, 2, 3)[: len(inputs) - 1])[0]
            # ONNX Runtime leaves the region out where a size does not change.
            judge = by_reference if coordinates == "tf_crop_and_resize" else by_onnxruntime
            (expected,) = judge(model, inputs)
            np.testing.assert_allclose(found, expected, 1e-4, 1e-5, err_msg=str(attributes))


def test_scales_that_leave_a_fraction_follow_the_reference():
    x = np.arange(2 * 7 * 9, dtype="float32").reshape(1, 2, 7, 9) ** 1.5
    scales = np.array([1, 1, 0.6, 1.1], "float32")
    for coordinates in ("align_corners", "half_pixel", "half_pixel_symmetric"):
        for mode in ("linear", "cubic"):
            attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
            model = model_of("Resize", (x, None, scales), attributes, 19)
            found = by_needle(model, (x, None, scales), (2,))[0]
            np.testing.assert_allclose(found, by_reference(model, (x, None, scales))[0], 1e-4)


def test_integers_are_rounded_and_saturate():
    x = np.random.default_rng(0).integers(0, 256, (1, 1, 6, 6)).astype("uint8")
    sizes = np.array([1, 1, 11, 4])
    for mode in ("nearest", "linear", "cubic"):
        model = model_of("Resize", (x, None, None, sizes), {"mode": mode}, 19)
        found = by_needle(model, (x, None, None, sizes), (3,))[0]
        np.testing.assert_array_equal(found, by_reference(model, (x, None, None, sizes))[0])


def test_axes_and_aspect_ratio():
    x = np.random.default_rng(0).standard_normal((5, 8, 6, 2)).astype("float32")
    sizes = np.array([7, 5])
    for policy in ("stretch", "not_larger", "not_smaller"):
        attributes = {"mode": "linear", "axes": [1, 2], "keep_aspect_ratio_policy": policy}
        model = model_of("Resize", (x, None, None, sizes), attributes, 18)
        found = by_needle(model, (x, None, None, sizes), (3,))[0]
        expected = by_reference(model, (x, None, None, sizes))[0]
        np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def test_opsets_before_roi():
    pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype("float32")
    scales = np.array([1, 1, 2, 1.5], "float32")
    for op_type, opset in (("Upsample", 9), ("Resize", 10)):
        for mode in ("nearest", "linear"):
            model = model_of(op_type, (x, scales), {"mode": mode}, opset)
            found = by_needle(model, (x, scales), (1,))[0]
            np.testing.assert_allclose(found, by_onnxruntime(model, (x, scales))[0], 1e-5, 1e-6)
    model = model_of("Upsample", (x,), {"mode": "linear", "scales": scales.tolist()}, 7)
    np.testing.assert_allclose(
        by_needle(model, (x,))[0], by_onnxruntime(model, (x,))[0], 1e-5, 1e-6
    )


@pytest.mark.slow
def test_compiled():
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype("float32")
    scales = np.array([1, 1, 2, 0.5], "float32")
    model = model_of("Resize", (x, None, scales), {"mode": "cubic"}, 19)
    found = compiled(model, (x, None, scales), (2,))[0]
    np.testing.assert_allclose(found, by_reference(model, (x, None, scales))[0], 1e-4, 1e-5)


class _Several(nn.Module):
    """Several models of the same input."""

    def __init__(self, modules):
        super().__init__()
        self.items = nn.ModuleList(modules)

    def forward(self, x):
        return tuple(item(x) for item in self.items)


@pytest.mark.slow
def test_open_sizes():
    """Compiled once, used at sizes of which none was seen."""
    import needle.onnx

    rng = np.random.default_rng(0)
    shapes = [(1, 2, 6, 8), (1, 2, 10, 4), (1, 2, 2, 12)]
    inputs = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    models, fixed = [], []
    for mode, coordinates, scale in (
        ("nearest", "asymmetric", 2.0),
        ("nearest", "half_pixel", 1.5),
        ("cubic", "half_pixel", 2.0),
        ("linear", "align_corners", 0.5),
        ("linear", "pytorch_half_pixel", 0.5),
        ("linear", "tf_crop_and_resize", 0.5),
        ("linear", "half_pixel", None),
        ("nearest", "asymmetric", None),
    ):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
        attributes["nearest_mode"] = "floor"
        roi = None
        if coordinates == "tf_crop_and_resize":
            roi = np.array([0, 0, 0.2, -0.1, 1, 1, 0.9, 0.7], "float32")
        given = (inputs[0], roi, np.array([1, 1, scale, scale], "float32"))
        if scale is None:
            given = (inputs[0], None, None, np.array([1, 2, 7, 5]))
        models.append(model_of("Resize", given, attributes, 19))
        fixed.append({f"x{i}": x for i, x in enumerate(given) if i and x is not None})
    modules = [needle.onnx.load(m, fixed=f) for m, f in zip(models, fixed, strict=True)]
    h, w = ndl.Dim("h", max=8), ndl.Dim("w", max=8)
    x = ndl.Tensor(inputs[0])
    exe = needle_tvm.compile(_Several(modules).eval(), x, dims={0: {2: 2 * h, 3: 2 * w}})
    for x in inputs:
        for found, model, known in zip(exe(x), models, fixed, strict=True):
            given = [x, *(known.get(f"x{i}") for i in (1, 2, 3))]
            expected = by_reference(model, given)[0]
            np.testing.assert_allclose(found.numpy(), expected, 1e-4, 1e-5, err_msg=str(known))


def test_faults_are_named():
    x = np.ones((1, 1, 4, 4), "float32")
    for inputs, attributes, error, match in (
        ((x, None, np.ones(3, "float32")), {}, ModelError, "3 numbers, but there are 4 axes"),
        ((x, None, np.array([1, 1, 0, 1], "float32")), {}, ModelError, "scale 0"),
        ((x, None, np.ones(4, "float32")), {"mode": "area"}, ModelError, "mode 'area'"),
    ):
        with pytest.raises(error, match=match):
            by_needle(model_of("Resize", inputs, attributes, 19), inputs, (2,))
    scales = np.array([1, 1, 2, 2], "float32")
    with pytest.raises(UnsupportedError, match="scales depends on values"):
        import needle.onnx
        from needle.trace import trace

        module = needle.onnx.load(model_of("Resize", (x, None, scales), {}, 19))
        trace(module, ndl.Tensor(x), ndl.Tensor(scales))
