"""Models of PyTorch, through `torch.export`."""
