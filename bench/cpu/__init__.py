"""`python -m bench.cpu`: inference on the CPU, and what is measured of a model besides times."""
