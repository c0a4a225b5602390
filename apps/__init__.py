"""Command lines that evaluate and train models, and code they share with benchmarks and tests."""
