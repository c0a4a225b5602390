"""Converters of PyTorch operators, one file per family.

`needle.torch.registry` defines what a converter is.
"""
