"""Sizes that the call of compiled code decides.

`dims` has `Dim` and the expressions of dims; `polynomials` does their arithmetic, and `extents`
answers questions about ints and such expressions alike. `size_numbers` has numbers that depend on
sizes and are not whole. Expressions are kept in one exact form. If form and bounds do not decide a
question, the error names the dim and the line.

Sizes in other forms are translations of these: PyTorch's symbols (`needle.torch.symbols`), nodes of
ONNX (`needle.onnx.emit`), TVM's variables, and back (`needle_tvm.frontend.extents`), and a
manifest's text (`needle_tvm.artifact.sizes`), which is read where needle is not installed.
"""
