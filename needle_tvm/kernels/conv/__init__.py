"""Convolutions, and the windows of pooling.

Passes pack weights, and transform 3x3 convolutions where that saves enough (`winograd`). On a GPU,
`kernels.dense` schedules convolutions as matmuls, and `gpu` schedules depthwise convolutions and
pooling.
"""
