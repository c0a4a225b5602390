"""Passes that prepare the Relax module that TVM's front end makes from a PyTorch model."""
