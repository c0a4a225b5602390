"""The front end for PyTorch models, through `torch.export`."""
