"""Tests and benchmarks on a machine with a GPU, prepared on one without.

Until the bundle is unpacked (`host.py`), only the standard library is imported.
"""
