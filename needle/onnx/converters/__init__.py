"""Converters of ONNX operators, one file per family; `needle.onnx.registry` finds them."""
