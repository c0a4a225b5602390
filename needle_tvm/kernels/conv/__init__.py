"""Convolutions, and the windows of pooling."""
