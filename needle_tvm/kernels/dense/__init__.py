"""Matmuls: packed weights, register tiles, tiles and tensor cores on a GPU, cuBLAS."""
