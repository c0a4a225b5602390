"""Matmuls: packed weights, register tiles, tiles and tensor cores on a GPU, cuBLAS.

Passes pack weights (bfloat16 weights in pairs: `pack_pairs`), and round operands if a narrower
precision is requested (`narrow_products`).
"""
