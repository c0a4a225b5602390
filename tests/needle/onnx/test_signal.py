"""Fourier transforms, windows and filters beside NumPy, ONNX Runtime and onnx's reference."""

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


def _alike(op_type, inputs, attributes, opset, known, judge=by_onnxruntime, tolerance=1e-4):
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    model = model_of(op_type, inputs, attributes, opset)
    found, expected = by_needle(model, inputs, known)[0], judge(model, inputs)[0]
    assert found.dtype == expected.dtype
    largest = max(1.0, float(np.abs(expected).max(initial=0)))
    message = f"{op_type} {attributes} {[np.shape(x) for x in inputs]}"
    np.testing.assert_allclose(found, expected, tolerance, tolerance * largest, err_msg=message)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("onesided", [0, 1])
def test_dft(inverse, onesided):
    """Of every axis, of lengths that are given or not; the long ones take more than one product."""
    rng = np.random.default_rng(2 * inverse + onesided)
    for opset, n, axis, length in (
        (17, 8, 1, None),
        (17, 5, 0, 9),
        (20, 6, -2, None),
        (20, 7, 1, 4),
        (20, 1024, 2, None),
        (20, 1, 0, 3),
        (20, 1536, 1, 1530),
    ):
        channels = 2 if inverse else 1 if onesided else int(rng.integers(1, 3))
        shape = [2, 3, 2] if n < 100 else [1, 1, 1]
        shape[axis % 4 if axis >= 0 else 2] = n
        inputs = [_floats(rng, *shape, channels), None if length is None else np.array(length)]
        attributes = {"inverse": inverse, "onesided": onesided}
        if opset == 17:
            attributes["axis"] = axis
            inputs = inputs[: 2 if length else 1]
        else:
            inputs.append(np.array(axis))
        _alike("DFT", inputs, attributes, opset, range(1, len(inputs)), by_reference)


def test_stft():
    rng = np.random.default_rng(0)
    for channels, onesided in ((1, 0), (1, 1), (2, 0)):
        for size, hop, kind in ((16, 5, "both"), (7, 7, "window"), (4, 1, "length")):
            window = None if kind == "length" else _floats(rng, size)
            length = None if kind == "window" else size
            inputs = [_floats(rng, 2, 40, channels), hop, window, length]
            inputs = inputs[:3] if length is None else inputs
            _alike("STFT", inputs, {"onesided": onesided}, 17, range(1, len(inputs)))


def test_stft_of_signals_of_open_length():
    import needle.onnx
    import needle_tvm

    rng = np.random.default_rng(0)
    signals = [_floats(rng, 1, n, 1) for n in (40, 64, 25)]
    hop, window = np.array(5), _floats(rng, 16)
    model = model_of("STFT", (signals[0], hop, window), {}, 17)
    module = needle.onnx.load(model, fixed={"x1": hop, "x2": window})
    n = ndl.Dim("n", max=80, min=16)
    exe = needle_tvm.compile(module, ndl.Tensor(signals[0]), dims={0: {1: n}}, progress=False)
    for x in signals:
        # Of its own length: the shape is part of the model.
        expected = by_onnxruntime(model_of("STFT", (x, hop, window), {}, 17), (x, hop, window))[0]
        np.testing.assert_allclose(exe(x).numpy(), expected, 1e-4, 1e-4)


@pytest.mark.slow
def test_dft_compiled():
    x = _floats(np.random.default_rng(0), 2, 600, 1)
    model = model_of("DFT", (x,), {"onesided": 1}, 20)
    expected = np.fft.rfft(x[..., 0].astype("float64"))
    expected = np.stack([expected.real, expected.imag], -1)
    np.testing.assert_allclose(compiled(model, (x,))[0], expected, 1e-4, 1e-3)


def test_windows_and_mel():
    for op_type in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic in (0, 1):
            for size, dtype in ((2, 1), (25, 11), (10, 10)):
                attributes = {"periodic": periodic, "output_datatype": dtype}
                tolerance = 1e-3 if dtype == 10 else 1e-6
                _alike(op_type, [np.array(size)], attributes, 17, (0,), tolerance=tolerance)
    for bins, length, rate, low, high in ((8, 256, 16000, 0, 8000), (29, 400, 8000, 100, 3000)):
        edges = np.array(low, "float32"), np.array(high, "float32")
        inputs = [np.array(bins), np.array(length), np.array(rate), *edges]
        _alike("MelWeightMatrix", inputs, {}, 17, range(5), tolerance=1e-6)


def test_faults_are_named():
    x = np.ones((1, 8, 3), "float32")
    with pytest.raises(ModelError, match=r"not \(\.\.\., n, 1\)"):
        by_needle(model_of("DFT", (x,), {}, 20, dtypes=["float32"]), (x,))
    x, axis = x[..., :1], np.array(2)
    with pytest.raises(ModelError, match="real and imaginary"):
        by_needle(
            model_of("DFT", (x, None, axis), {}, 20, dtypes=["float32"]), (x, None, axis), (2,)
        )
    length = np.array(8209)
    with pytest.raises(UnsupportedError, match="prime factor 8209"):
        by_needle(model_of("DFT", (x, length), {}, 20), (x, length), (1,))
    inputs = [x, np.array(2), np.ones(4, "float32"), np.array(5)]
    with pytest.raises(ModelError, match="window of shape"):
        by_needle(model_of("STFT", inputs, {}, 17, dtypes=["float32"]), inputs, (1, 2, 3))
    inputs = [np.array(4), np.array(16), np.array(1000), *np.array([0, 900], "float32")]
    with pytest.raises(ModelError, match="4 bins"):
        by_needle(model_of("MelWeightMatrix", inputs, {}, 17), inputs, range(5))
