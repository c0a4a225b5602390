"""The cost of shipping a model: needle-runtime compared with ONNX Runtime and AOTInductor.

    python -m bench.shipping --onnxruntime-include FOLDER

FOLDER has the headers of ONNX Runtime's C API, which its wheel lacks.

- `models` exports a model for each runtime, with the same weights.
- `environments` makes an environment for each runtime with only the packages that it needs, and
  counts its bytes.
- `starts` starts processes in these environments: the import, the first answer, the memory.
- `drivers` has a small C++ program for each runtime; `cpp` compiles, compares and times them.
- `summary` makes the tables and the picture.
"""
