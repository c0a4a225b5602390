"""The workloads: one file each, with its sizes, definition and NumPy reference."""
