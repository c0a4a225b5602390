"""Side-by-side runs against peers; `python -m bench.cpu --help`."""
