"""The code that `needle.onnx` and `needle.torch` share: a foreign graph becomes needle's ops.

`registry` finds the converter of an operator. `values` handles values that are known while tracing.
`budget` limits the memory and work that the numbers of a file may ask for. `node` names a node in
errors. The other files have arithmetic that converters of both formats use.
"""
