"""Random PyTorch modules."""
