"""`inspect --graph`: a picture of a model's graph, its kernels and the sizes of its weights.

`script` and `onnx_file` read a graph of boxes, `layout` places the boxes, and `svg` draws them.
"""
