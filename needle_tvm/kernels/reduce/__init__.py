"""Sums, maxima, softmax and norms."""
