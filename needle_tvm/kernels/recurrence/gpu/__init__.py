"""The layers of recurrences on GPUs, frozen until they are timed (docs/gpu.md)."""
