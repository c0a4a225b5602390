"""Passes that prepare what TVM's front end makes of a PyTorch model."""
