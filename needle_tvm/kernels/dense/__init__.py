"""Matmuls: packed weights and register tiles on a CPU; tiles, tensor cores and cuBLAS on a GPU.

Passes pack weights (bfloat16 weights in pairs: `pack_pairs`), and round operands if a narrower
precision is requested (`narrow_products`).
"""
