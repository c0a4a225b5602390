"""Converters of PyTorch operators, one file for a family.

`needle.torch.registry` says what a converter is, and lists the files.
"""
