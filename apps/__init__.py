"""Command lines that evaluate and train models, and what they share with benchmarks and tests."""
