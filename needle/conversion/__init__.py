"""The code that `needle.onnx` and `needle.torch` share to turn a foreign graph into needle's ops.

`registry` finds the converter of an operator. `values` handles values that are known while tracing.
`budget` limits the memory and work that the numbers in a file may request. `node` names a node in
errors. The other files have arithmetic that converters of both formats use.
"""
