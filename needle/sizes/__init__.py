"""Sizes that are decided when compiled code is called.

`dims` has `Dim` and the expressions of dims, `polynomials` does their arithmetic, and `extents`
answers questions about ints and expressions alike. `size_numbers` has numbers that depend on sizes
and need not be whole. Each expression is kept in one exact form. If neither this form nor the
bounds decide a question, an error names the dim and the line.

Other forms of sizes are converted from or to these: PyTorch symbols (`needle.torch.symbols`), ONNX
nodes (`needle.onnx.emit`), TVM variables (`needle_tvm.frontend.extents`), and the text of a
manifest (`needle_runtime.artifact.sizes`), which can be read without needle.
"""
