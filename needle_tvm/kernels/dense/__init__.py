"""Matrix products: packed weights, register tiles, a GPU's tiles and tensor cores, cuBLAS."""
