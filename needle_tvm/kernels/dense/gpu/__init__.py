"""Matmuls and convolutions on GPUs: our rules, frozen until timed (docs/gpu.md), and cuBLAS."""
