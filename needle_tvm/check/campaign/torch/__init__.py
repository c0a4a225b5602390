"""Modules of PyTorch drawn at random."""
