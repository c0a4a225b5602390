"""`compile`, `compile_torch`, `compile_onnx` and `jit`: from a model to checked and cached code."""
