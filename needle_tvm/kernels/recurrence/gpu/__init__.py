"""Recurrent layers on GPUs. This code is frozen until it is timed (docs/gpu.md)."""
