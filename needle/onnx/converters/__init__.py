"""Converters of ONNX operators, one file for a family; `needle.onnx.registry` lists the files."""
